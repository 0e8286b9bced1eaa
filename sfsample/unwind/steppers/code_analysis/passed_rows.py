"""Keeps what a search has found for the instructions that it has passed.

A search from an instruction to the returns of its function passes hundreds of others, and the threads of a
program are found at many instructions of few functions (compiled loops above all).  From any of these the
same returns are reached, so its row is that of the first one, seen from there.  Where a search of generated
code, which is short, ended without a return, one from the next instruction would, too.
"""

from collections.abc import Sequence

from sfsample.core.arch import AMD64
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.steppers.code_analysis.flow import State, Value, Visit

_MAX_KEPT = 5000  # instructions; about 1 KiB each
_MAX_KEPT_OF_SEARCH = 300  # instructions; those passed first
_UNSURE = 100  # instructions: a search that began at one of the last may have come to a return


class PassedRows:
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
        """Keep the row that a search has found, and what it has passed.

        From a later instruction a register may be known that this row lacks, so only a whole row is kept.
        """
        if len(row.kept) + len(row.registers) < len(AMD64.callee_saved):
            return
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

    The place of the CFA follows if the register that it hangs on has moved by a known distance.
    """
    cfa, base, top = row.cfa, state.value(row.cfa.base), state.value(AMD64.sp)
    if cfa.deref or cfa.expression or base is None or base.base != cfa.base:
        return None
    frame = Value(cfa.base, cfa.offset)
    lowest = top.offset if top is not None and top.base == cfa.base else None  # below it, words were popped
    kept, rules = [], []
    for number in sorted(AMD64.callee_saved):
        place = _place_in_frame(row, number, frame, state, lowest)
        if place is not None:
            rules.append((number, Rule(CFA, place.offset - frame.offset, deref=True)))
        elif state.value(number) == _value_at_return(row, number, frame):
            kept.append(number)
        else:
            return None
    moved = cfa._replace(offset=cfa.offset - base.offset)
    return row._replace(cfa=moved, registers=tuple(rules), kept=tuple(kept))


def _place_in_frame(
    row: UnwindRow, number: int, frame: Value, state: State, lowest: int | None
) -> Value | None:
    """Return where the frame holds the caller's value of a register; the code may have saved it meanwhile."""
    value = _value_at_return(row, number, frame)
    place = state.saved(number, lowest) if value == Value(number) else value.place if value else None
    in_frame = place is not None and place.base == frame.base and (lowest is None or place.offset >= lowest)
    return place if in_frame else None


def _value_at_return(row: UnwindRow, number: int, frame: Value) -> Value | None:
    """Return the caller's value of a register in terms of the registers where the search began."""
    if number in row.kept:
        return Value(number)
    rule = dict(row.registers).get(number)
    if rule is None or rule.base != CFA or rule.expression:
        return None
    place = frame.moved(rule.offset)
    return Value(place) if rule.deref else place
