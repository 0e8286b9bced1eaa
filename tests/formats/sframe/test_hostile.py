"""The malformed-input catalogue, group by group: 1 to 8, the header (fact sheet section 6).

Damage to the section costs the section, damage to a function costs that function, nothing but `FormatError`
is raised, nothing outside the section is read (`read_section` asserts that), and no count in the file decides
how much is done.  Groups 9 to 19 are in `test_sframe_hostile_rows.py`, 20 to 24 in `..._walks.py`.
"""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe.section import HEADER_SIZE, SFrameFre, read_tables
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

# -- header


def test_01_length_0_to_27_and_zeros():
    good = section(3, [GOOD])
    for length in range(HEADER_SIZE):
        assert "cannot hold the 28-byte header" in refusal_of(good[:length])
    for length in (28, 100):
        assert "magic is 0000" in refusal_of(bytes(length))


def test_01_bytes_that_end_before_the_section_does():
    good = section(3, [GOOD, NEXT])
    for length in range(HEADER_SIZE, len(good)):
        assert f"claims {len(good)} bytes of the {length}" in refusal_of(good[:length])


def test_01_nobits_and_a_segment_without_bytes():
    """A file of debug information only: the section has a size and no bytes."""
    nobits = Bytes(".sframe", ADDRESS, b"", SHT_NOBITS, size=100)
    empty = Load(ADDRESS, b"", type=PT_GNU_SFRAME, filesz=0, memsz=100)
    beyond = Load(ADDRESS, section(3, [GOOD])[:30], type=PT_GNU_SFRAME, filesz=1 << 40)
    assert ElfImage(elf([empty], [nobits]), "x").sframe() is None
    image = ElfImage(elf([Load(START, bytes(64)), beyond]), "x")
    module = Module(image, 0, "x")
    assert len(module.sframe) == 0
    assert len(module.problems) == 1


def test_02_wrong_magic_and_the_other_byte_order():
    good = section(3, [GOOD])
    for magic in (b"\xe2\xdf", b"\x00\xde", b"\x7fE"):
        assert "magic" in refusal_of(magic + good[2:])
    assert "in big-endian bytes" in refusal_of(b"\xde\xe2" + good[2:4] + bytes([AMD64]) + bytes(23))


@pytest.mark.parametrize("number", [0, 4, 5, 127, 255])
def test_02_versions_that_do_not_exist(number):
    assert f"version {number} is not" in refusal_of(section(3, [GOOD], version=number))


@pytest.mark.parametrize(("version", "known"), [(1, 3), (2, 7), (3, 5)])
def test_02_unknown_flags(version, known):
    for flags in range(256):
        answer = read_section(section(version, [GOOD], flags=flags, address=ADDRESS))
        assert (answer.refusal is not None) == bool(flags & ~known)
    assert "unknown flags 0x2" in refusal_of(section(3, [GOOD], flags=FRAME_POINTER))


def test_03_unknown_abi():
    for abi in (0, 5, 127, 255):
        assert f"unknown ABI {abi}" in refusal_of(section(3, [GOOD], abi=abi))


def test_03_abi_that_contradicts_the_file():
    for machine in ((183, "little"), (62, "big"), (22, "big"), (3, "little")):
        assert "in a file for machine" in refusal_of(section(3, [GOOD]), machine=machine)
    for abi in (AARCH64_BE, S390X):
        assert "little-endian" in refusal_of(section(3, [GOOD])[:4] + bytes([abi]) + section(3, [GOOD])[5:])


def test_03_a_32_bit_file_has_no_tables():
    with pytest.raises(FormatError, match="not a 64-bit"):
        ElfImage(elf([Load(ADDRESS, section(3, [GOOD]), type=PT_GNU_SFRAME)], elf_class=1), "x32")


@VERSIONS
def test_04_auxiliary_header(version):
    """Skipped by its length; one that does not fit takes the section with it."""
    answer = read_section(section(version, [GOOD, NEXT], aux=bytes(range(255)), address=ADDRESS))
    assert neighbour_survives(answer)
    assert "claims" in refusal_of(section(version, [GOOD], aux_len=255))


def test_04_fixed_slots_of_odd_value():
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
def test_05_areas_that_overlap_wrap_or_do_not_exist(version, header):
    data = section(version, [GOOD, NEXT], address=ADDRESS, **header)
    with BoundedMemory():
        assert refusal_of(data)


def test_06_fre_area_beyond_the_section():
    good = section(3, [GOOD])
    assert refusal_of(section(3, [GOOD], fre_len=len(good) - HEADER_SIZE - 16 + 1))


@VERSIONS
def test_06_no_fre_area_but_functions(version):
    """Each function is damaged; the header and the extents are not."""
    data = section(version, [GOOD, NEXT], address=ADDRESS, fre_len=0)
    answer = read_section(data)

    assert answer.refusal is None
    assert not any(isinstance(found, SFrameFre) for found in answer.found.values())
    assert any("damaged functions: 2 times" in text for text in answer.check)


@VERSIONS
@pytest.mark.parametrize("total", [0, 1, 77, 0xFFFFFFFF])
def test_06_total_of_rows_that_does_not_match(version, total):
    with BoundedMemory():
        answer = read_section(section(version, [GOOD, NEXT], address=ADDRESS, num_fres=total))
    assert neighbour_survives(answer)
    assert [text for text in answer.check if "header counts" in text] == [
        f"the header counts other rows than the functions: {total}, not 2"]  # fmt: skip


@VERSIONS
def test_07_trailing_bytes(version):
    good = section(version, [GOOD, NEXT], address=ADDRESS)
    for tail in (bytes(1), bytes(100), b"\xff" * 40, b"garbage"):
        answer = read_section(good + tail)
        assert neighbour_survives(answer)
        assert answer.check == ()


def test_07_several_headers():
    """The second counts from its own first byte, and an error in it from the section's."""
    first = section(3, [GOOD], address=ADDRESS)
    first += bytes(-len(first) % 8)
    second = section(3, [NEXT._replace(info=3)], address=ADDRESS + len(first))
    tables = read_tables(first + second, ADDRESS)
    assert [table.origin for table in tables] == [0, len(first)]
    with pytest.raises(FormatError) as damage:
        tables[1].row_at(NEXT.start)
    assert damage.value.offset == len(first) + HEADER_SIZE + FDE_SIZE[3] + 5
    for bad in (second[:20], second[:2] + b"\x09" + second[3:], second[:-1]):
        answer = read_section(first + bad)
        assert isinstance(answer.found[START], SFrameFre)
        assert any(f"the table after it, at {len(first):#x}, is unusable" in text for text in answer.check)


def test_07_thousands_of_headers_are_looked_up_by_one_index():
    """No look-up asks every table: those asked are those that cover the address."""
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
        [asked] = tables.covering(0x10_0000 + 16 * (number * 7 % 3000) + 15)
        assert asked is tables[number]
    assert list(tables.covering(0x10_0000 - 1)) == list(tables.covering(0x10_0000 + 16 * 3000)) == []


def test_07_tables_that_overlap_are_asked_in_turn():
    """Identical functions of two object files, one of them damaged: the other answers."""
    bad = section(3, [GOOD._replace(info=3), NEXT], address=ADDRESS)
    bad += bytes(-len(bad) % 8)
    good = section(3, [Function(START, 16, [row(0, 40)])], address=ADDRESS + len(bad))
    answer = read_section(bad + good)

    assert answer.found[START].cfa.offset == 40
    assert neighbour_survives(answer)


def test_07_a_table_is_asked_once_however_many_of_its_functions_cover_the_address():
    first = section(3, [Function(START, 64, [row(0, 8)])] * 3, address=ADDRESS)
    first += bytes(-len(first) % 8)
    inner = [Function(START + 4 * i, 4, [row(0, 16)]) for i in range(10)]
    tables = read_tables(first + section(3, inner, address=ADDRESS + len(first)), ADDRESS)

    assert list(tables.covering(START + 5)) == [tables[1], tables[0]]
    assert list(tables.covering(START + 50)) == [tables[0]]  # behind ten that end before


def test_07_oxcaml_entries_of_21_bytes():
    entry = 21
    assert "2 FDEs need 32 bytes, have 42" in refusal_of(section(3, [GOOD, NEXT], freoff=2 * entry))


@VERSIONS
def test_08_relocations_that_were_not_applied(version):
    """ET_REL: every start is 0 (from its field or the section).  Told, and no function covers real code."""
    flags = SORTED | (PCREL if version == 3 else 0)
    data = section(version, [Function(ADDRESS, 16, [row(0, 8)])] * 3, address=ADDRESS, flags=flags,
                   field_relative=False)  # fmt: skip
    answer = read_section(data, executable=CODE)

    assert any("functions outside the code: 3 times" in text for text in answer.check)
    assert answer.found[START] is None
