"""Checks a whole SFrame table, and reports the functions and rows that sfsample cannot use.

Each kind of finding is one line, with a count and the first example.  If functions share rows, the check
decodes only as many rows as would fit into the table without sharing.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from sfsample.errors import FormatError
from sfsample.formats.sframe.rows import repair

if TYPE_CHECKING:
    from sfsample.formats.sframe.table import SFrameTable

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
    """Return one text for each kind of finding; empty if the table has no fault."""
    findings = _Findings()
    misplaced = (start for (before, _), (start, _) in pairwise(table.extents()) if before > start)
    if table.flags & _SORTED and (first := next(misplaced, None)) is not None:
        findings.add("functions not in the order that the flag promises, so look-ups may fail", f"{first:#x}")
    repairs = _check_functions(table, findings)
    return list(dict.fromkeys([*table.problems, *findings.lines(), *repairs[:_MAX_REPAIRS]]))


def _check_functions(table: "SFrameTable", findings: _Findings) -> list[str]:
    """Check the rows of every function; return the texts about repairs."""
    repairs: list[str] = []
    decoded = 0
    for index in range(table.num_fdes):
        try:
            fde = table.fde(index)
            rows = table.decode(fde)
        except FormatError as damage:
            findings.add("damaged functions", str(damage))
            continue
        decoded += len(rows)
        if decoded > table.fre_len // _MIN_ROW_SIZE + table.num_fdes:
            findings.add("functions share rows, so the check ended early", f"stopped at {fde.start:#x}")
            break
        if fde.masked and not fde.rep_size:
            findings.add("repeating functions without a block size", f"{fde.start:#x}")
        for row in rows:
            if row.problem:
                findings.add("unusable rows", f"{fde.start + row.start:#x}: {row.problem}")
        repaired = repair(table, fde, rows)
        if repaired is not None:
            repairs.append(repaired[1])
    return repairs
