"""Reads everything in a hostile SFrame section, and checks that the bytes around it do not matter.

Every section is read three times, as a slice of a buffer with different bytes around it; the results must be
equal.
"""

import tracemalloc
from typing import NamedTuple, Self

import pytest

import sfsample.formats.sframe.validate  # noqa: F401 - a late import would count as memory in BoundedMemory
from sfsample.core.rule import Rule
from sfsample.errors import FormatError
from sfsample.formats.sframe import HEADER_SIZE, SFrameFre, SFrameTables, read_tables
from tests.builders.sframe_builder import (
    AMD64,
    Function,
    control,
    flex,
    row,
    section,
)

ADDRESS, START = 0x2000, 0x1000
CODE = ((START, START + 0x800),)
SP_24 = Rule(7, 24, deref=False)
GOOD = Function(START, 16, [row(0, 8)])
NEXT = Function(START + 16, 16, [row(0, 24)])  # the neighbour of a damaged function; its rows must be found
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])
SURROUNDINGS = (bytes(64), b"\xff" * 64, section(3, [NEXT]) + bytes(4))  # the last looks like one more table
MAX_BYTES = 1 << 18


class SectionReading(NamedTuple):
    """All that can be read from a section.  `rows` are by function start; a text is the damage."""

    refusal: FormatError | None
    rows: dict[int, tuple[SFrameFre, ...] | str] = {}  # noqa: RUF012 - never changed
    found: dict[int, SFrameFre | str | None] = {}  # noqa: RUF012 - by address
    check: tuple[str, ...] = ()


def read_section(data: bytes, *addresses: int, address: int = ADDRESS, **options) -> SectionReading:
    """Return all that can be read from a section, which must not depend on the bytes around it."""
    readings = []
    for surrounding in SURROUNDINGS:
        around = surrounding[:64]
        view = memoryview(around + data + around)[len(around) : len(around) + len(data)]
        readings.append(_read(view, addresses, address, options))
    assert [repr(reading) for reading in readings] == [repr(readings[0])] * len(SURROUNDINGS)
    return readings[0]


def _read(view, addresses, address, options) -> SectionReading:
    try:
        tables = read_tables(view, address, **options)
    except FormatError as refusal:
        return SectionReading(refusal)
    rows: dict[int, tuple[SFrameFre, ...] | str] = {}
    for table in tables:
        for fde in table.fdes():
            try:
                rows[fde.start] = table.rows(fde)
            except FormatError as damage:
                rows[fde.start] = damage.what
    vaddrs = {*addresses, *rows, *(start - 1 for start in rows), START, NEXT.start, 0, (1 << 64) - 1}
    check = tuple(text for table in tables for text in table.check())
    return SectionReading(None, rows, {vaddr: look_up(tables, vaddr) for vaddr in sorted(vaddrs)}, check)


def look_up(tables: SFrameTables, vaddr: int) -> SFrameFre | str | None:
    """Return the row that the stepper finds, None without one; a text is the damage."""
    what: str | None = None
    for table in tables.covering(vaddr):
        try:
            fre = table.row_at(vaddr)
        except FormatError as damage:
            what = damage.what
            continue
        if fre is not None:
            return fre
    return what


def refusal_of(data: bytes, **options) -> str:
    """Return why the reader refuses a section; it must refuse it because of the header."""
    reading = read_section(data, **options)
    assert reading.refusal is not None
    assert reading.refusal.section == ".sframe"
    assert 0 <= reading.refusal.offset < HEADER_SIZE
    return reading.refusal.what


def neighbour_survives(reading: SectionReading) -> bool:
    found = reading.found[NEXT.start]
    return isinstance(found, SFrameFre) and found.cfa == SP_24


def read_with_neighbour(version: int, bad: Function, **options) -> SectionReading:
    """Return the reading of a section with a damaged function and a good one, which must be found."""
    reading = read_section(section(version, [bad, NEXT], address=ADDRESS, **options))
    assert reading.refusal is None
    assert neighbour_survives(reading)
    return reading


def read_row(version: int, fre, *, abi: int = AMD64, flexible: bool = False, **options) -> SFrameFre:
    """Return a damaged row as it is read; the second row and the next function are good and must be found."""
    last = flex(8, control(7), 16) if flexible else row(8, 16)
    bad = Function(START, 16, [fre, last], flexible=flexible)
    reading = read_section(section(version, [bad, NEXT], abi=abi, address=ADDRESS, **options), START + 8)
    rows = reading.rows[START]
    assert isinstance(rows, tuple)
    assert isinstance(reading.found[START + 8], SFrameFre)
    assert isinstance(reading.found[NEXT.start], SFrameFre)
    assert (reading.found[START] is None) == (rows[0].problem is not None)
    return rows[0]


class BoundedMemory:
    """Asserts that a block of code allocates little: sfsample refuses hostile counts before it allocates."""

    def __enter__(self) -> Self:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MAX_BYTES


class UnreadableMemory:
    """Memory of which nothing can be read."""

    def word(self, _):
        return None

    def read(self, *_):
        return None
