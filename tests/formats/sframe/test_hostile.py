"""Malformed SFrame headers: groups 1 to 8 of the malformed-input catalogue (fact sheet section 6).

The number in a test's name is its group.  Damage to the section costs the section, damage to a function
costs that function, only `FormatError` is raised, nothing outside the section is read (`read_section` asserts
that), and counts in the file do not decide how much work is done.  Groups 9 to 19 are in
`test_hostile_rows.py`, 20 to 24 in `tests/unwind/steppers/test_hostile_sframe.py`.
"""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe import HEADER_SIZE, SFrameFre, read_tables
from sfsample.modules.module import Module
from tests.builders.elf_builder import PT_GNU_SFRAME, SHT_NOBITS, Bytes, Load, elf
from tests.builders.sframe_builder import (
    AARCH64_BE,
    AARCH64_LE,
    AMD64,
    FDE_SIZE,
    FRAME_POINTER,
    PCREL,
    S390X,
    SORTED,
    Function,
    row,
    section,
)
from tests.builders.sframe_reading import (
    ADDRESS,
    CODE,
    GOOD,
    NEXT,
    START,
    VERSIONS,
    BoundedMemory,
    neighbour_survives,
    read_section,
    refusal_of,
)


def test_01_data_without_a_header_is_refused():
    good = section(3, [GOOD])
    for length in range(HEADER_SIZE):
        assert "cannot hold the 28-byte header" in refusal_of(good[:length])
    for length in (28, 100):
        assert "magic is 0000" in refusal_of(bytes(length))


def test_01_truncated_section_is_refused():
    good = section(3, [GOOD, NEXT])
    for length in range(HEADER_SIZE, len(good)):
        assert f"claims {len(good)} bytes, but has {length}" in refusal_of(good[:length])


def test_01_section_without_bytes_in_the_file_gives_no_table():
    """A file of debug information only: the section has a size and no bytes."""
    nobits = Bytes(".sframe", ADDRESS, b"", SHT_NOBITS, size=100)
    empty = Load(ADDRESS, b"", type=PT_GNU_SFRAME, filesz=0, memsz=100)
    beyond = Load(ADDRESS, section(3, [GOOD])[:30], type=PT_GNU_SFRAME, filesz=1 << 40)
    assert ElfImage(elf([empty], [nobits]), "x").sframe() is None
    image = ElfImage(elf([Load(START, bytes(64)), beyond]), "x")
    module = Module(image, 0, "x")
    assert len(module.tables.sframe) == 0
    assert len(module.problems) == 1


def test_02_wrong_magic_and_byte_order_are_refused():
    good = section(3, [GOOD])
    for magic in (b"\xe2\xdf", b"\x00\xde", b"\x7fE"):
        assert "magic" in refusal_of(magic + good[2:])
    assert "in big-endian bytes" in refusal_of(b"\xde\xe2" + good[2:4] + bytes([AMD64]) + bytes(23))


@pytest.mark.parametrize("number", [0, 4, 5, 127, 255])
def test_02_unknown_version_is_refused(number):
    assert f"version {number} is not" in refusal_of(section(3, [GOOD], version=number))


@pytest.mark.parametrize(("version", "known"), [(1, 3), (2, 7), (3, 5)])
def test_02_unknown_flags_are_refused(version, known):
    for flags in range(256):
        reading = read_section(section(version, [GOOD], flags=flags, address=ADDRESS))
        assert (reading.refusal is not None) == bool(flags & ~known)
    assert "unknown flags 0x2" in refusal_of(section(3, [GOOD], flags=FRAME_POINTER))


def test_03_unknown_abi_is_refused():
    for abi in (0, 5, 127, 255):
        assert f"unknown ABI {abi}" in refusal_of(section(3, [GOOD], abi=abi))


def test_03_abi_of_another_machine_or_byte_order_is_refused():
    for machine in ((183, "little"), (62, "big"), (22, "big"), (3, "little")):
        assert "in a file for machine" in refusal_of(section(3, [GOOD]), machine=machine)
    for abi in (AARCH64_BE, S390X):
        assert "little-endian" in refusal_of(section(3, [GOOD])[:4] + bytes([abi]) + section(3, [GOOD])[5:])


def test_03_32_bit_file_is_refused():
    with pytest.raises(FormatError, match="not a 64-bit"):
        ElfImage(elf([Load(ADDRESS, section(3, [GOOD]), type=PT_GNU_SFRAME)], elf_class=1), "x32")


@VERSIONS
def test_04_auxiliary_header_is_skipped_or_refused_where_it_does_not_fit(version):
    reading = read_section(section(version, [GOOD, NEXT], aux=bytes(range(255)), address=ADDRESS))
    assert neighbour_survives(reading)
    assert "claims" in refusal_of(section(version, [GOOD], aux_len=255))


def test_04_invalid_fixed_offsets_are_refused():
    for offset in (-128, -8, 1, 8, 127):
        assert "fixed FP offset" in refusal_of(section(3, [GOOD], fixed_fp=offset))
    for offset in (-7, -1, 0, 1, 8, 127):
        assert "fixed RA offset" in refusal_of(section(3, [GOOD], fixed_ra=offset))
    for abi in (AARCH64_LE, AARCH64_BE, S390X):
        assert "fixed RA offset" in refusal_of(section(3, [GOOD], abi=abi, fixed_ra=-8))
    assert read_section(section(3, [GOOD], fixed_ra=-16)).refusal is None


@VERSIONS
@pytest.mark.parametrize(
    "header",
    [
        {"fdeoff": 64},
        {"fdeoff": 0xFFFFFFFF},
        {"freoff": 0},
        {"freoff": 1},
        {"num_fdes": 0xFFFFFFFF},
        {"num_fdes": 0xFFFFFFFF, "freoff": 0xFFFFFFFF},
        {"num_fdes": 0x10000000, "freoff": 0},  # 16 times this wraps to 0 in 32 bits
        {"fdeoff": 0xFFFFFFF0, "freoff": 0x20},  # their sum wraps
        {"fdeoff": 0xFFFFFFFF, "freoff": 0xFFFFFFFF, "num_fdes": 0},
        {"fre_len": 0xFFFFFFFF},
    ],
    ids=str,
)
def test_05_areas_that_overlap_or_wrap_are_refused(version, header):
    data = section(version, [GOOD, NEXT], address=ADDRESS, **header)
    with BoundedMemory():
        assert refusal_of(data)


def test_06_fre_area_beyond_the_section_is_refused():
    good = section(3, [GOOD])
    assert refusal_of(section(3, [GOOD], fre_len=len(good) - HEADER_SIZE - 16 + 1))


@VERSIONS
def test_06_empty_fre_area_damages_every_function_only(version):
    data = section(version, [GOOD, NEXT], address=ADDRESS, fre_len=0)
    reading = read_section(data)

    assert reading.refusal is None
    assert not any(isinstance(found, SFrameFre) for found in reading.found.values())
    assert any("damaged functions: 2 times" in text for text in reading.check)


@VERSIONS
@pytest.mark.parametrize("total", [0, 1, 77, 0xFFFFFFFF])
def test_06_wrong_total_of_rows_does_no_harm(version, total):
    with BoundedMemory():
        reading = read_section(section(version, [GOOD, NEXT], address=ADDRESS, num_fres=total))
    assert neighbour_survives(reading)


@VERSIONS
def test_07_trailing_bytes_are_ignored(version):
    good = section(version, [GOOD, NEXT], address=ADDRESS)
    for tail in (bytes(1), bytes(100), b"\xff" * 40, b"garbage"):
        reading = read_section(good + tail)
        assert neighbour_survives(reading)
        assert reading.check == ()


def test_07_later_table_counts_from_its_own_header():
    """Addresses of the second count from its own first byte, offsets of its errors from the section."""
    first = section(3, [GOOD], address=ADDRESS)
    first += bytes(-len(first) % 8)
    second = section(3, [NEXT._replace(info=3)], address=ADDRESS + len(first))
    tables = read_tables(first + second, ADDRESS)
    assert [table.origin for table in tables] == [0, len(first)]
    with pytest.raises(FormatError) as damage:
        tables[1].row_at(NEXT.start)
    assert damage.value.offset == len(first) + HEADER_SIZE + FDE_SIZE[3] + 5
    for damaged in (second[:20], second[:2] + b"\x09" + second[3:], second[:-1]):
        reading = read_section(first + damaged)
        assert isinstance(reading.found[START], SFrameFre)
        assert any(f"the table after it, at {len(first):#x}, is unusable" in text for text in reading.check)


def test_07_look_up_in_3000_tables_yields_only_those_that_cover_the_address():
    parts, at = [], ADDRESS
    for number in range(3000):
        function = Function(0x10_0000 + 16 * (number * 7 % 3000), 16, [row(0, 8 + 8 * (number % 9))])
        part = section(2, [function], address=at, flags=PCREL)
        part += bytes(-len(part) % 8)
        parts.append(part)
        at += len(part)
    tables = read_tables(b"".join(parts), ADDRESS)
    assert len(tables) == 3000
    for number in (0, 1, 1234, 2999):
        [covering] = tables.covering(0x10_0000 + 16 * (number * 7 % 3000) + 15)
        assert covering is tables[number]
    assert list(tables.covering(0x10_0000 - 1)) == list(tables.covering(0x10_0000 + 16 * 3000)) == []


def test_07_damaged_table_does_not_hide_an_overlapping_one():
    """Of identical functions of two object files, one of which is damaged, the other gives the row."""
    damaged = section(3, [GOOD._replace(info=3), NEXT], address=ADDRESS)
    damaged += bytes(-len(damaged) % 8)
    good = section(3, [Function(START, 16, [row(0, 40)])], address=ADDRESS + len(damaged))
    reading = read_section(damaged + good)

    assert reading.found[START].cfa.offset == 40
    assert neighbour_survives(reading)


def test_07_table_with_several_functions_at_an_address_is_yielded_once():
    first = section(3, [Function(START, 64, [row(0, 8)])] * 3, address=ADDRESS)
    first += bytes(-len(first) % 8)
    inner = [Function(START + 4 * i, 4, [row(0, 16)]) for i in range(10)]
    tables = read_tables(first + section(3, inner, address=ADDRESS + len(first)), ADDRESS)

    assert list(tables.covering(START + 5)) == [tables[1], tables[0]]
    assert list(tables.covering(START + 50)) == [tables[0]]  # ten functions between end before


def test_07_oxcaml_entries_of_21_bytes_are_refused():
    entry = 21
    assert "2 FDEs need 32 bytes, have 42" in refusal_of(section(3, [GOOD, NEXT], freoff=2 * entry))


@VERSIONS
def test_08_unrelocated_starts_cover_no_code(version):
    """In ET_REL files every start is 0, so no function covers real code."""
    flags = SORTED | (PCREL if version == 3 else 0)
    data = section(version, [Function(ADDRESS, 16, [row(0, 8)])] * 3, address=ADDRESS, flags=flags,
                   field_relative=False)  # fmt: skip
    reading = read_section(data, executable=CODE)

    assert reading.found[START] is None
