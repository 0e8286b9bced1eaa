"""Caches the row of a search for all the instructions that the search has passed.

A search from an instruction to the returns of its function passes hundreds of other instructions.  Threads
stop at many instructions of few functions, for example in compiled loops.  From a passed instruction the same
returns are reached, so its row follows from the row of the search.  A failed search of generated code is
cached too: from the next instruction it would fail as well.
"""

from collections.abc import Sequence

from sfsample.core.arch import AMD64
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.steppers.code_analysis.flow import State, Value, Visit

_MAX_KEPT = 5000  # instructions, of about 1 KiB each
_MAX_KEPT_OF_SEARCH = 300  # instructions that a search has passed first
_UNSURE = 100  # instructions at the end of a failed search; a search from there might find a return

_Result = tuple[UnwindRow, State] | None  # row of the search, state at the instruction; None: no return


class PassedRows:
    """Results by the address and the bytes of an instruction.  The bytes are b"" if code does not change."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, bytes], _Result] = {}

    def row_at(self, address: int, code: bytes = b"") -> tuple[UnwindRow | None] | None:
        """Return (row,); (None,) if a search has found no return; None if nothing is cached."""
        result = self._results.get((address, code), ())
        if not result:
            return (None,) if result is None else None
        row = seen_from(*result)
        return (row,) if row is not None and _is_whole(row) else None

    def keep(self, row: UnwindRow, passed: Sequence[tuple[Visit, bytes]]) -> None:
        """Add the row of a search for the instructions that it has passed.

        A row that lacks a callee-saved register is not added, because a later search may find that register.
        """
        if _is_whole(row):
            first = passed[:_MAX_KEPT_OF_SEARCH]
            self._add({(visit.address, code): (row, visit.state) for visit, code in first})

    def keep_failure(self, passed: Sequence[tuple[Visit, bytes]]) -> None:
        """Add a search that was given up before it came to a return."""
        self._add({(visit.address, code): None for visit, code in passed[:-_UNSURE]})

    def _add(self, results: dict[tuple[int, bytes], _Result]) -> None:
        if len(self._results) + len(results) > _MAX_KEPT:
            self._results.clear()
        self._results.update(results)


def _is_whole(row: UnwindRow) -> bool:
    return len(row.kept) + len(row.registers) == len(AMD64.callee_saved)


def seen_from(row: UnwindRow, state: State) -> UnwindRow | None:
    """Return a row as it is at a later instruction, at which the state is `state`; None: its CFA is unknown.

    The CFA is known if a register differs by a known distance from the one from which `row` counts it.  A
    callee-saved register with an unknown value is left out.
    """
    cfa, top = row.cfa, state.value(AMD64.sp)
    values = ((n, state.value(n)) for n in (cfa.base, AMD64.sp, *sorted(AMD64.callee_saved)))
    base = next(((n, value) for n, value in values if value is not None and value.base == cfa.base), None)
    if cfa.deref or cfa.expression or base is None:
        return None
    frame = Value(cfa.base, cfa.offset)
    lowest = top.offset if top is not None and top.base == cfa.base else None  # offset of sp, if known
    unchanged, rules = [], []
    for number in sorted(AMD64.callee_saved):
        place = _place_in_frame(row, number, frame, state, lowest)
        value = _value_at_return(row, number, frame)
        if place is not None:
            rules.append((number, Rule(CFA, place.offset - frame.offset, deref=True)))
        elif value is not None and state.value(number) == value:
            unchanged.append(number)
    register, moved = base
    cfa = Rule(register, cfa.offset - moved.offset, deref=False)
    return row._replace(cfa=cfa, registers=tuple(rules), kept=tuple(unchanged))


def _place_in_frame(
    row: UnwindRow, number: int, frame: Value, state: State, lowest: int | None
) -> Value | None:
    """Return the address in the frame of the caller's value of a register, or None.

    The code may have saved the register since the search began.
    """
    value = _value_at_return(row, number, frame)
    place = state.saved(number, lowest) if value == Value(number) else value.place if value else None
    in_frame = place is not None and place.base == frame.base and (lowest is None or place.offset >= lowest)
    return place if in_frame else None


def _value_at_return(row: UnwindRow, number: int, frame: Value) -> Value | None:
    """Return the caller's value of a register, in terms of the registers at the start of the search."""
    if number in row.kept:
        return Value(number)
    rule = dict(row.registers).get(number)
    if rule is None or rule.base != CFA or rule.expression:
        return None
    place = frame.moved(rule.offset)
    return Value(place) if rule.deref else place
