"""For any bytes the SFrame reader returns values, or a `FormatError` inside the section.

No count in the file decides how much is done: the size of the section bounds time and memory.
"""

import tracemalloc
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe import HEADER_SIZE, SFrameFre, SFrameTable, read_tables
from sfsample.unwind.row import apply_row
from sfsample.unwind.steppers.sframe import to_row
from tests.builders.sframe_builder import (
    AARCH64_BE,
    AARCH64_LE,
    AMD64,
    FDE_SIZE,
    PCREL,
    S390X,
    SORTED,
    Function,
    control,
    flex,
    row,
    section,
)

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
FIXTURES = Path(__file__).parent.parent / "fixtures"
ADDRESS, START = 0x2000, 0x1000
WORDS = st.integers(0, (1 << 64) - 1)
VADDRS = st.one_of(WORDS, st.integers(START - 4, START + 0x200), st.integers(-4, 4))


def real_sections() -> list[tuple[str, bytes, int]]:
    found = []
    for dump in sorted(FIXTURES.glob("v*/*.readelf")):
        path = dump.with_suffix("")
        data, vaddr = ElfImage(path.read_bytes(), path.name).sframe()
        found.append((f"{path.parent.name}/{path.name}", bytes(data), vaddr))
    return found


REAL = real_sections()


def exercise(data: bytes, address: int, *vaddrs: int, executable=()) -> bool:
    """Use every query; return whether there was a table."""
    try:
        tables = read_tables(data, address, executable=executable)
    except FormatError as refusal:
        inside(refusal, data)
        return False
    assert len(tables) <= len(data) // HEADER_SIZE
    for table in tables:
        exercise_table(table, data, vaddrs)
    return True


def exercise_table(table: SFrameTable, data: bytes, vaddrs) -> None:
    assert table.num_fdes * table.fde_size <= len(data)
    fdes = list(table.fdes())
    assert len(fdes) == table.num_fdes or table.problems
    assert len(table.problems) <= 51
    assert all(isinstance(text, str) for text in table.check())
    for fde in fdes:
        try:
            rows = table.rows(fde)
        except FormatError as damage:
            inside(damage, data)
            continue
        assert len(rows) == fde.num_fres
        assert [r.start for r in rows] == sorted(r.start for r in rows)
    for vaddr in (*vaddrs, *(f.start for f in fdes[:50]), *(f.start + f.size - 1 for f in fdes[:50])):
        try:
            found, fre = table.find(vaddr), table.row_at(vaddr)
        except FormatError as damage:
            inside(damage, data)
            continue
        assert found is None or found.start <= vaddr < found.start + found.size
        assert fre is None or found is not None
        if fre is not None:
            usable(fre, table)


def usable(fre: SFrameFre, table: SFrameTable) -> None:
    """Assert that a row can be executed: the result is a caller or a reason."""
    assert fre.problem is None
    unwind_row = to_row(fre, table)
    if unwind_row.ra is not None:
        arch = table.abi.arch
        memory = BytesMemory(0x7000, bytes(64), arch.byteorder)
        apply_row(unwind_row, {arch.sp: 0x7000, arch.fp: 0x7010, arch.pc: START}, memory, arch)


def inside(error: FormatError, data: bytes) -> None:
    """Assert that the offset of the damage is possible: at most 4 GiB beyond the section."""
    assert error.section == ".sframe"
    assert 0 <= error.offset <= len(data) + (1 << 32)


# -- any bytes

HEADERS = st.builds(
    lambda version, flags, abi, ra, aux, counts: (version, flags, abi, ra, aux, *counts),
    st.integers(1, 3),
    st.sampled_from([0, SORTED, PCREL, SORTED | PCREL]),
    st.sampled_from([AARCH64_BE, AARCH64_LE, AMD64, S390X]),
    st.sampled_from([0, -8, -16]),
    st.integers(0, 3),
    st.tuples(st.integers(0, 6), st.integers(0, 20), st.integers(0, 60)),
)


@QUICK
@given(st.binary(max_size=300), WORDS, VADDRS)
def test_any_bytes(data, address, vaddr):
    exercise(data, address, vaddr)
    exercise(b"\xe2\xde" + data, address, vaddr)


@QUICK
@given(HEADERS, st.binary(max_size=300), VADDRS, st.booleans())
def test_any_content_under_a_good_header(header, content, vaddr, code):
    version, flags, abi, fixed_ra, aux, num_fdes, num_fres, fre_len = header
    order = "big" if abi in (AARCH64_BE, S390X) else "little"
    data = bytearray(HEADER_SIZE + aux) + content
    mark = ">" if order == "big" else "<"
    freoff = num_fdes * FDE_SIZE[version]
    pack_into(mark + "HBBBbbBIIIII", data, 0, 0xDEE2, version, flags, abi, 0,
              fixed_ra if abi == AMD64 else 0, aux, num_fdes, num_fres, fre_len, 0, freoff)  # fmt: skip

    exercise(bytes(data), ADDRESS, vaddr, executable=[(START, START + 0x200)] if code else ())


# -- well-formed sections

SMALL_WORDS = st.integers(-128, 127)
ROWS = st.lists(
    st.one_of(
        st.builds(row, st.integers(0, 40), SMALL_WORDS),
        st.builds(row, st.integers(0, 40), SMALL_WORDS, SMALL_WORDS, base=st.sampled_from(["sp", "fp"])),
        st.builds(
            flex,
            st.integers(0, 40),
            st.integers(0, 16).map(lambda register: control(register) - 256 * (control(register) > 127)),
            SMALL_WORDS,
        ),
        st.builds(row, st.integers(0, 40)),
    ),
    max_size=5,
).map(lambda rows: sorted(rows, key=lambda fre: fre.start))
FUNCTIONS = st.lists(
    st.builds(
        lambda *fields: Function(*fields),  # noqa: PLW0108 - for the class itself, Hypothesis would also fill the fields that make damage
        st.integers(START, START + 0x200),
        st.sampled_from([0, 1, 16, 40, 0x200]),
        ROWS,
        st.sampled_from([0, 0, 8, 16]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
)


@QUICK
@given(st.integers(1, 3), FUNCTIONS, st.booleans(), VADDRS)
def test_well_formed_sections_are_read_whole(version, functions, ordered, vaddr):
    """With overlaps, duplicates and functions of size 0; the flag "sorted" may be wrong."""
    flags = (SORTED if ordered else 0) | (PCREL if version == 3 else 0)
    data = section(version, functions, address=ADDRESS, flags=flags)
    [table] = read_tables(data, ADDRESS)

    assert [f.start for f in table.fdes()] == [f.start for f in functions]
    for fde, function in zip(table.fdes(), functions, strict=True):
        if version == 3 or fde.fre_type < 3:
            assert [r.start for r in table.rows(fde)] == [r.start for r in function.rows]
    assert exercise(data, ADDRESS, vaddr)


@QUICK
@given(st.integers(1, 3), FUNCTIONS, VADDRS)
def test_lookup_agrees_with_a_search_of_the_whole_table(version, functions, vaddr):
    """The functions do not overlap, so that at most one covers an address."""
    apart, end = [], 0
    for function in sorted(functions, key=lambda f: f.start):
        if function.start >= end:
            apart.append(function)
            end = function.start + function.size
    data = section(version, apart, address=ADDRESS)
    covering = [f for f in apart if f.start <= vaddr < f.start + f.size]
    found = SFrameTable(data, ADDRESS).find(vaddr)

    assert (found and (found.start, found.size)) == (covering[0][:2] if covering else None)


MUTATIONS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, HEADER_SIZE + 40), st.integers(0, 1 << 16)),
        st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])),
    ),
    min_size=1,
    max_size=6,
)


@QUICK
@given(st.sampled_from(REAL), MUTATIONS, st.integers(0, 60), VADDRS)
def test_mutated_real_sections(real, mutations, cut, vaddr):
    _, good, address = real
    data = bytearray(good[: len(good) - cut // 2])
    for position, byte in mutations:
        data[position % len(data)] = byte

    exercise(bytes(data), address, vaddr, executable=[(0x1000, 0x9000)] if cut % 2 else ())


@pytest.mark.parametrize(("name", "data", "address"), REAL, ids=[name for name, *_ in REAL])
def test_every_header_byte_of_a_real_section_set_to_extremes(name, data, address):
    accepted = exercise(data, address)
    assert accepted, name
    for position in range(HEADER_SIZE):
        for byte in (0, 1, 0x7F, 0x80, 0xFF):
            exercise(data[:position] + bytes([byte]) + data[position + 1 :], address)


# -- wrong counts


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    "header",
    [
        {"num_fdes": 0xFFFFFFFF},
        {"num_fdes": 0xFFFFFFFF, "freoff": 0xFFFFFFFF},
        {"num_fdes": 0x0C000000, "freoff": 0x0C000000},
        {"fre_len": 0xFFFFFFFF},
        {"fdeoff": 0xFFFFFFFF, "freoff": 0xFFFFFFFF},
    ],
    ids=str,
)
def test_huge_count_is_refused_without_allocation(version, header):
    data = section(version, [Function(START, 16, [row(0, 8)])], address=ADDRESS, **header)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            SFrameTable(data, ADDRESS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("version", "count"), [(1, 0xFFFFFFFF), (2, 0xFFFFFFFF), (3, 0xFFFF)])
def test_huge_count_of_rows_is_refused_without_allocation(version, count):
    data = section(version, [Function(START, 16, [row(0, 8)], num_fres=count)], address=ADDRESS)
    table = SFrameTable(data, ADDRESS)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            table.row_at(START)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_huge_total_of_rows_is_ignored():
    data = section(3, [Function(START, 16, [row(0, 8)])], address=ADDRESS, num_fres=0xFFFFFFFF)

    assert SFrameTable(data, ADDRESS).row_at(START).cfa.offset == 8


def test_many_tables_in_one_section_are_read():
    empty = section(3, [], address=ADDRESS)
    empty += bytes(-len(empty) % 8)

    assert len(read_tables(empty * 2000, ADDRESS)) == 2000
