"""Keeps what a search has found for the instructions that it has passed.

A search from an instruction to the returns of its function passes hundreds of others, and the threads of a
program are found at many instructions of few functions (compiled loops above all).  From any of these the
same returns are reached, so its row is that of the first one, seen from there.  Where a search ended without
a return, one from the next instruction would, too.
"""

from collections.abc import Sequence

from sfsample.core.arch import AMD64
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.steppers.code_analysis.flow import State, Value, Visit

_MAX_KEPT = 5000  # instructions; about 1 KiB each
_MAX_KEPT_OF_SEARCH = 300  # instructions; those passed first
_UNSURE = 100  # instructions: a search that began at one of the last may have come to a return


class KnownRows:
    """Rows by the address and the bytes of an instruction; the bytes are b"" where code does not change."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, bytes], tuple[UnwindRow, State] | None] = {}

    def row_at(self, address: int, code: bytes = b"") -> tuple[UnwindRow | None] | None:
        """Return the row in a tuple, which has None if there is none; return None if it is not known."""
        found = self._found.get((address, code), ())
        if not found:
            return (None,) if found is None else None
        row = seen_from(*found)
        return None if row is None else (row,)

    def keep(self, row: UnwindRow, passed: Sequence[tuple[Visit, bytes]]) -> None:
        """Keep the row that a search has found, and what it has passed."""
        self._add({(visit.address, code): (row, visit.state) for visit, code in passed[:_MAX_KEPT_OF_SEARCH]})

    def keep_failure(self, passed: Sequence[tuple[Visit, bytes]]) -> None:
        """Keep that a search has come to no return before it was given up."""
        self._add({(visit.address, code): None for visit, code in passed[:-_UNSURE]})

    def _add(self, found: dict[tuple[int, bytes], tuple[UnwindRow, State] | None]) -> None:
        if len(self._found) + len(found) > _MAX_KEPT:
            self._found.clear()
        self._found.update(found)


def seen_from(row: UnwindRow, state: State) -> UnwindRow | None:
    """Return a row as it is at a later instruction, to which `state` has led; None: unknown.

    The place of the CFA follows if the register that it hangs on has moved by a known distance.  What the
    code has saved meanwhile is where it was saved, as in a table.  Where it has changed another register that
    the row keeps, the value is lost.
    """
    cfa, base = row.cfa, state.value(row.cfa.base)
    on_frame = not cfa.deref and not cfa.expression and all(rule.base == CFA for _, rule in row.registers)
    if not on_frame or base is None or base.base != cfa.base:
        return None
    top = state.value(AMD64.sp)
    lowest = top.offset if top is not None and top.base == cfa.base == AMD64.sp else None
    places = {number: state.saved(number, lowest) for number in row.kept}
    saved = {number: at for number, at in places.items() if at is not None and at.base == cfa.base}
    if any(state.value(number) != Value(number) for number in row.kept if number not in saved):
        return None
    rules = ((n, Rule(CFA, at.offset - cfa.offset, deref=True)) for n, at in saved.items())
    return row._replace(
        cfa=cfa._replace(offset=cfa.offset - base.offset),
        registers=tuple(sorted((*row.registers, *rules))),
        kept=tuple(number for number in row.kept if number not in saved),
    )
