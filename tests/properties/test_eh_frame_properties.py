"""For any bytes the .eh_frame reader returns values, None, or a `FormatError` inside the section."""

import sys
from itertools import islice
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory
from sfsample.errors import FormatError
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.dwarf.expression import evaluate
from tests.builders.eh_frame_builder import (
    AMD64_START,
    REMEMBER_STATE,
    RESTORE_STATE,
    EhFrameBuilder,
    advance_loc,
    def_cfa_offset,
    offset,
    restore,
)

VADDR, HDR_VADDR = 0x2000, 0x1F00
START = 0x1000
WORDS = st.integers(0, (1 << 64) - 1)
ADDRESSES = st.one_of(WORDS, st.integers(START - 4, START + 0x200))
BYTEORDERS = st.sampled_from(["little", "big"])
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def exercise(eh_frame: EhFrame, size: int, hdr_size: int, *vaddrs: int) -> None:
    """Use every query.  Only 1,000 rows are read: a program may have one for each byte."""
    fdes = list(islice(eh_frame.fdes(), 100))
    for fde in fdes:
        assert 0 <= fde.offset < fde.program_begin <= fde.program_end <= size
        try:
            assert all(isinstance(row, CfiRow) for _, row in islice(eh_frame.rows(fde), 1000))
        except FormatError as error:
            assert_inside(error, size, hdr_size)
    for vaddr in (*vaddrs, *(fde.start for fde in fdes)):
        try:
            fde, row = eh_frame.find(vaddr), eh_frame.row_at(vaddr)
        except FormatError as error:
            assert_inside(error, size, hdr_size)
        else:
            assert (fde is None) == (row is None)
            assert fde is None or fde.start <= vaddr < fde.start + fde.size


def assert_inside(error: FormatError, size: int, hdr_size: int) -> None:
    limit = {".eh_frame": size, ".eh_frame_hdr": hdr_size}[error.section]
    assert 0 <= error.offset <= limit


@QUICK
@given(
    data=st.binary(max_size=300),
    hdr=st.none() | st.binary(max_size=100),
    byteorder=BYTEORDERS,
    vaddr=WORDS,
    hdr_vaddr=WORDS,
    address=ADDRESSES,
)
def test_any_bytes(*, data, hdr, byteorder, vaddr, hdr_vaddr, address):
    eh_frame = EhFrame(data, vaddr, byteorder, hdr, hdr_vaddr)

    exercise(eh_frame, len(data), len(hdr or b""), address)


@QUICK
@given(st.binary(max_size=40), WORDS, BYTEORDERS)
def test_any_header(hdr, vaddr, byteorder):
    try:
        assert 0 <= eh_frame_address(hdr, vaddr, byteorder) < 1 << 64
    except FormatError as error:
        assert_inside(error, 0, len(hdr))


@QUICK
@given(
    augmentation_data=st.binary(max_size=12),
    program=st.binary(max_size=60),
    encoding=st.integers(0, 255),
    augmentation=st.sampled_from([b"", b"eh", b"zR", b"zPLR", b"zRS", b"zXR"]),
    version=st.sampled_from([1, 3, 4]),
    byteorder=BYTEORDERS,
    address=ADDRESSES,
)
def test_any_program_and_augmentation_in_sound_entries(
    *, augmentation_data, program, encoding, augmentation, version, byteorder, address
):
    section = EhFrameBuilder(VADDR, byteorder)
    cie = section.cie(augmentation=augmentation, augmentation_data=augmentation_data, version=version)
    usual = section.cie()
    section.fde(cie, START, 0x100, program)
    section.fde(usual, START + 0x100, 0x100, program)
    hdr = bytearray(section.hdr(HDR_VADDR))
    for table in (None, bytes(hdr), bytes([*hdr[:3], encoding, *hdr[4:]])):
        eh_frame = EhFrame(section.terminated(), VADDR, byteorder, table, HDR_VADDR)
        exercise(eh_frame, len(section.data) + 4, len(hdr), address, START + 0xFF, START + 0x1FF)


INSTRUCTIONS = st.one_of(
    st.builds(advance_loc, st.integers(0, 63)),
    st.builds(offset, st.integers(0, 15), st.integers(0, 100)),
    st.builds(restore, st.integers(0, 16)),
    st.builds(def_cfa_offset, st.integers(0, 10_000)),
    st.just(REMEMBER_STATE + offset(3, 2) + RESTORE_STATE),
)


@QUICK
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 40), st.lists(INSTRUCTIONS, max_size=8)), min_size=1
    )
)
def test_entries_are_found_by_table_and_by_walk(functions):
    section = EhFrameBuilder(VADDR + 0x10_0000)
    cie = section.cie(AMD64_START)
    spans, vaddr = [], START
    for gap, size, program in functions:
        spans.append((vaddr + gap, size))
        section.fde(cie, vaddr + gap, size, b"".join(program))
        vaddr += gap + size
    walked = EhFrame(section.terminated(), section.vaddr, "little")
    searched = EhFrame(section.terminated(), section.vaddr, "little", section.hdr(HDR_VADDR), HDR_VADDR)

    assert searched._table is not None
    assert [(fde.start, fde.size) for fde in walked.fdes()] == spans
    for fde in walked.fdes():
        rows = list(walked.rows(fde))
        assert [location for location, _ in rows] == sorted(location for location, _ in rows)
        for address in range(fde.start, fde.start + fde.size):
            expected = [row for location, row in rows if location <= address][-1]
            assert walked.row_at(address) == searched.row_at(address) == expected
    for address in range(START - 1, vaddr + 1):
        assert walked.find(address) == searched.find(address)


def real_sections() -> tuple[bytes, int, bytes, int]:
    """Return those of the loader: it has hand-written assembly, a PLT, expressions, a signal frame."""
    path = next(p for p in (Path("/lib64/ld-linux-x86-64.so.2"), Path(sys.executable)) if p.exists())
    with path.open("rb") as file:
        elf = ELFFile(file)
        eh_frame, hdr = (elf.get_section_by_name(name) for name in (".eh_frame", ".eh_frame_hdr"))
        return eh_frame.data(), eh_frame["sh_addr"], hdr.data(), hdr["sh_addr"]


@pytest.fixture(scope="module")
def real():
    return real_sections()


MUTATIONS = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=8)


@QUICK
@given(MUTATIONS, st.integers(0, 3000), st.data())
def test_mutated_real_sections(real, mutations, cut, data):
    """Only the first 3,000 bytes are used, so that mutations hit entries that are read."""
    section, vaddr, hdr, hdr_vaddr = real
    section, hdr = bytearray(section[: 3000 - cut // 2]), bytearray(hdr)
    for position, byte in mutations:
        section[position % len(section)] = byte
        if position % 3 == 0:
            hdr[position % min(len(hdr), 60)] = byte
    table = data.draw(st.sampled_from([None, bytes(hdr), bytes(hdr[: 12 + cut % 200])]))
    eh_frame = EhFrame(bytes(section), vaddr, "little", table, hdr_vaddr)

    exercise(eh_frame, len(section), len(hdr), hdr_vaddr, 0, data.draw(st.integers(0, vaddr)))


@QUICK
@given(
    st.binary(max_size=60),
    st.dictionaries(st.integers(0, 40), st.integers(), max_size=20),
    st.binary(max_size=64),
    BYTEORDERS,
    st.none() | st.integers(),
)
def test_any_expression_has_a_word_or_no_value(expression, registers, stack, byteorder, initial):
    value = evaluate(expression, registers, BytesMemory(0, stack, byteorder), byteorder, initial)

    assert value is None or 0 <= value < 1 << 64


USUAL_OPERATIONS = st.one_of(
    st.integers(0x30, 0x4F).map(lambda op: bytes([op])),
    st.sampled_from([*range(0x12, 0x15), *range(0x16, 0x18), *range(0x19, 0x23), *range(0x24, 0x28),
                     *range(0x29, 0x2F), 0x06, 0x96]).map(lambda op: bytes([op])),
    st.binary(min_size=8, max_size=8).map(lambda data: b"\x0e" + data),
    st.tuples(st.sampled_from([0x28, 0x2F]), st.integers(-20, 20)).map(
        lambda branch: bytes([branch[0]]) + branch[1].to_bytes(2, "little", signed=True)
    ),
)  # fmt: skip


@QUICK
@given(st.lists(USUAL_OPERATIONS, max_size=40).map(b"".join))
def test_expressions_of_real_operations_end(expression):
    value = evaluate(expression, {}, BytesMemory(0, bytes(64)), "little", 8)

    assert value is None or 0 <= value < 1 << 64
