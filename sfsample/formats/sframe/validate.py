"""Checks a whole SFrame table, and says in words what is wrong with it.

Each kind of finding is one line, with a count and the first example.  The size of the table bounds the work:
if functions share rows, no more rows are decoded than would fit without sharing.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from sfsample.errors import FormatError
from sfsample.formats.sframe.rows import SFrameFre, repair

if TYPE_CHECKING:
    from sfsample.formats.sframe.table import SFrameFde, SFrameTable

_SORTED = 1  # sfh_flags
_MIN_ROW_SIZE = 2  # bytes
_MAX_REPAIRS = 50  # lines about repairs


class _Findings:
    """Counts findings by kind, and keeps the first example of each."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[int, str]] = {}  # kind -> count, first example

    def add(self, kind: str, example: str) -> None:
        count, first = self._kinds.get(kind, (0, example))
        self._kinds[kind] = count + 1, first

    def lines(self) -> Iterator[str]:
        for kind, (count, example) in self._kinds.items():
            yield f"{kind}: {example}" if count == 1 else f"{kind}: {count} times, first {example}"


def check(table: "SFrameTable") -> list[str]:
    """Return one text for each kind of finding; an empty list for a table without faults."""
    findings = _Findings()
    repairs: list[str] = []
    _check_extents(table, findings)
    total = _check_functions(table, findings, repairs)
    if total not in (None, table.num_fres):
        findings.add("the header counts other rows than the functions", f"{table.num_fres}, not {total}")
    lines = [*table.problems, *findings.lines(), *repairs[:_MAX_REPAIRS]]
    return list(dict.fromkeys(lines))


def _check_extents(table: "SFrameTable", findings: _Findings) -> None:
    extents = list(table.extents())
    ordered = sorted(extents)
    misplaced = (start for (before, _), (start, _) in pairwise(extents) if before > start)
    if table.flags & _SORTED and (first := next(misplaced, None)) is not None:
        findings.add(
            "functions not in the order that the flag promises, so some are not found", f"{first:#x}"
        )
    highest_end = -1
    for start, end in ordered:
        if start < highest_end and start < end:
            findings.add("functions that overlap another", f"{start:#x}")
        highest_end = max(highest_end, end)
    if table.executable:
        code = sorted(table.executable)
        lows = [low for low, _ in code]
        for start, end in extents:
            at = bisect_right(lows, start) - 1
            if at < 0 or end > code[at][1] or start == end == code[at][1]:
                findings.add("functions outside the code", f"{start:#x}, {end - start} bytes")


def _check_functions(table: "SFrameTable", findings: _Findings, repairs: list[str]) -> int | None:
    """Return the number of rows that the functions claim; None: not all functions were checked."""
    total = decoded = 0
    budget = table.fre_len // _MIN_ROW_SIZE + table.num_fdes
    for index in range(table.num_fdes):
        try:
            fde = table.fde(index)
            total += fde.num_fres
            rows = table.decode(fde)
        except FormatError as damage:
            findings.add("damaged functions", str(damage))
            continue
        decoded += len(rows)
        if decoded > budget:
            findings.add("functions share rows, so not all were looked at", f"stopped at {fde.start:#x}")
            return None
        _check_rows(fde, rows, findings)
        repaired = repair(table, fde, rows)
        if repaired is not None:
            repairs.append(repaired[1])
    return total


def _check_rows(fde: "SFrameFde", rows: Sequence[SFrameFre], findings: _Findings) -> None:
    where = f"{fde.start:#x}"
    if fde.masked and not fde.rep_size:
        findings.add("repeating functions without a block size", where)
    if rows and rows[0].start:
        findings.add("functions whose first row begins after them", where)
    end = fde.rep_size if fde.masked and fde.rep_size else fde.size
    last = rows[-1].start if rows else -1
    if last >= end > 0:
        first = next(row.start for row in rows if row.start >= end)
        findings.add("rows at or after the end of their function", f"{fde.start + first:#x}")
    for row in rows:
        if row.problem:
            findings.add("rows without sense", f"{fde.start + row.start:#x}: {row.problem}")
