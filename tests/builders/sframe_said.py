"""Asks a hostile section everything that can be asked, amid bytes that must not matter.

Every section is read three times, as a slice of a buffer with other bytes around it, and must say the same.
"""

import tracemalloc
from typing import NamedTuple, Self

import pytest

import sfsample.formats.sframe.validate  # noqa: F401 - it is imported late, which must not count as Work
from sfsample.core.rule import Rule
from sfsample.errors import FormatError
from sfsample.formats.sframe.section import HEADER_SIZE, SFrameFre, SFrameTables, read_tables
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
NEXT = Function(START + 16, 16, [row(0, 24)])  # the neighbour that must survive
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])
# nothing, everything, and what looks like one more table
POISONS = (bytes(64), b"\xff" * 64, section(3, [NEXT]) + bytes(4))


class TableAnswer(NamedTuple):
    """All that can be asked of a section.  `rows` by function start; a text is the damage."""

    refusal: FormatError | None
    rows: dict[int, tuple[SFrameFre, ...] | str] = {}  # noqa: RUF012 - never changed
    found: dict[int, SFrameFre | str | None] = {}  # noqa: RUF012 - by address
    check: tuple[str, ...] = ()


def said(data: bytes, *addresses: int, address: int = ADDRESS, **options) -> TableAnswer:
    """Ask a section everything, amid other bytes each time; it must say the same."""
    answers = []
    for poison in POISONS:
        around = poison[:64]
        view = memoryview(around + data + around)[len(around) : len(around) + len(data)]
        answers.append(_ask(view, addresses, address, options))
    assert [repr(answer) for answer in answers] == [repr(answers[0])] * len(POISONS)
    return answers[0]


def _ask(view, addresses, address, options) -> TableAnswer:
    try:
        tables = read_tables(view, address, **options)
    except FormatError as refusal:
        return TableAnswer(refusal)
    rows: dict[int, tuple[SFrameFre, ...] | str] = {}
    for table in tables:
        for fde in table.fdes():
            try:
                rows[fde.start] = table.rows(fde)
            except FormatError as damage:
                rows[fde.start] = damage.what
    asked = {*addresses, *rows, *(start - 1 for start in rows), START, NEXT.start, 0, (1 << 64) - 1}
    check = tuple(text for table in tables for text in table.check())
    return TableAnswer(None, rows, {vaddr: look_up(tables, vaddr) for vaddr in sorted(asked)}, check)


def look_up(tables: SFrameTables, vaddr: int) -> SFrameFre | str | None:
    """Do what the stepper does: ask the tables in turn; a text is the damage."""
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


def refused(data: bytes, **options) -> str:
    answer = said(data, **options)
    assert answer.refusal is not None
    assert answer.refusal.section == ".sframe"
    assert 0 <= answer.refusal.offset < HEADER_SIZE
    return answer.refusal.what


def next_survives(answer: TableAnswer) -> bool:
    found = answer.found[NEXT.start]
    return isinstance(found, SFrameFre) and found.cfa == SP_24


def beside(version: int, bad: Function, **options) -> TableAnswer:
    """Return what a section says of a damaged function and its good neighbour, which must survive."""
    answer = said(section(version, [bad, NEXT], address=ADDRESS, **options))
    assert answer.refusal is None
    assert next_survives(answer)
    return answer


def one_row(version: int, fre, *, abi: int = AMD64, flexible: bool = False, **options) -> SFrameFre:
    """Return the damaged row of a function whose second row, and whose neighbour, are good."""
    last = flex(8, control(7), 16) if flexible else row(8, 16)
    bad = Function(START, 16, [fre, last], flexible=flexible)
    answer = said(section(version, [bad, NEXT], abi=abi, address=ADDRESS, **options), START + 8)
    rows = answer.rows[START]
    assert isinstance(rows, tuple)
    assert isinstance(answer.found[START + 8], SFrameFre)
    assert isinstance(answer.found[NEXT.start], SFrameFre)
    assert (answer.found[START] is None) == (rows[0].problem is not None)
    return rows[0]


class Work:
    """Memory that a block of code needs: what is asked of hostile counts is refused, not begun."""

    def __enter__(self) -> Self:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 18


class NoMemory:
    """Nothing can be read."""

    def word(self, _):
        return None

    def read(self, *_):
        return None
