"""Computes rows from instructions.

A search follows code from the pc to its returns.  At a return, sp points to the return address, and the
callee-saved registers have the caller's values.  All returns that the search finds must agree.  If code never
returns (the outermost functions of musl), the path from the start of the function to the pc gives the row.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache

from sfsample.core.arch import AMD64
from sfsample.core.rule import CFA, Rule
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.calls import call_target, stub_slot
from sfsample.formats.machine_code.decode_x86 import LONGEST
from sfsample.formats.machine_code.functions import find_function_starts, stubs_without_return
from sfsample.modules.module_map import ReadCode
from sfsample.unwind.row import UnwindRow, entry_row
from sfsample.unwind.steppers.code_analysis.flow import Flow, ReadBytes, State, Value, Visit

_WORD = 8  # bytes
_DIRECT_CALL = 5  # bytes of the longest call that states its target
_ENOUGH_INSTRUCTIONS = 300  # instructions after which a search ends if it has found a return
_MAX_SEARCHED = 1500  # instructions after which a search without a return ends; libc, libstdc++ need no more
_MAX_GENERATED = 500  # instructions; longer searches take 20 ms for each new pc, and hardly ever succeed
_MAX_KEPT = 5000  # instructions in the cache; each takes about 1 KiB
_MAX_KEPT_OF_SEARCH = 300  # instructions from the start of a search that are cached
_MAX_REACHED_FUNCTIONS = 200  # functions for which the reached instructions are cached
_UNSURE = 100  # last instructions of a failed search; a search from one of these might find a return
_Result = tuple[UnwindRow, State] | None  # row of the search, state at the instruction; None: no return
_SP = AMD64.sp
_AT_START = entry_row(AMD64)._replace(guess=True)  # row at the start of any function
_BREG0, _DEREF, _CONST8S, _PLUS = 0x70, b"\x06", b"\x0f", b"\x22"  # DWARF 5, table 7.9


class PassedRows:
    """Caches the row of a search for all the instructions that the search has passed.

    Key: the address and the bytes of an instruction (b"" if code does not change).  A search passes hundreds
    of instructions, and threads stop at many instructions of few functions (compiled loops).  The row of a
    search is the row at its first instruction.  A passed instruction leads to the same returns, so its row
    can be computed from that row.  A failed search of generated code is also cached.
    """

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
        """Cache a row for passed instructions, unless it lacks a register that a later search may find."""
        if _is_whole(row):
            first = passed[:_MAX_KEPT_OF_SEARCH]
            self._add({(visit.address, code): (row, visit.state) for visit, code in first})

    def keep_failure(self, passed: Sequence[tuple[Visit, bytes]]) -> None:
        """Add a search that has ended without a return."""
        self._add({(visit.address, code): None for visit, code in passed[:-_UNSURE]})

    def _add(self, results: dict[tuple[int, bytes], _Result]) -> None:
        if len(self._results) + len(results) > _MAX_KEPT:
            self._results.clear()
        self._results.update(results)


class CodeOfFile:
    """The code of one file, for all processes that map the file."""

    def __init__(self, image: ElfImage) -> None:
        self._flow = Flow(
            lambda vaddr: _read(image, vaddr), stubs_without_return(image),
            is_start=lambda vaddr: self._start_before(vaddr) == vaddr,
        )  # fmt: skip
        self._image = image
        self._cache = PassedRows()
        self._reached_from = lru_cache(_MAX_REACHED_FUNCTIONS)(self._flow.reached_from)
        self.slots_from = lru_cache(_MAX_REACHED_FUNCTIONS)(self._slots_from)

    @cached_property
    def _starts(self) -> list[int]:
        return find_function_starts(self._image)

    def _start_before(self, vaddr: int) -> int | None:
        position = bisect_right(self._starts, vaddr) - 1
        return None if position < 0 else self._starts[position]

    def row_at(self, pc: int, *, exact: bool) -> UnwindRow | None:
        """Return the row at `pc`: an instruction if `exact`, else a return address.  None: no row."""
        row = row_to_return(self._flow, pc, self._cache) if exact or self._may_be_returned_to(pc) else None
        start = self._start_before(pc if exact else pc - 1) if row is None else None
        for visit in () if start is None else self._flow.visits(start):
            instruction = visit.instruction
            if visit.address == pc if exact else instruction.calls and instruction.end == pc:
                return seen_from(_AT_START, visit.state)
        return row

    def runs_from(self, start: int, pc: int) -> bool | None:
        """Return True if the function at `start` leads to `pc` without a call; None: not known."""
        reached, is_all = self._reached_from(start)
        return pc in reached or (False if is_all else None)

    def _slots_from(self, start: int) -> tuple[int, ...]:
        """Return the GOT slots through which the function at `start` jumps: tail calls to other files."""
        reached, _ = self._reached_from(start)
        slots = (stub_slot(AMD64.machine, _read(self._image, at), at) for at in reached)
        return tuple(slot for slot in slots if slot is not None)

    def _may_be_returned_to(self, pc: int) -> bool:
        before = _read(self._image, pc - _DIRECT_CALL)[:_DIRECT_CALL]
        target = call_target(AMD64.machine, before, pc) if len(before) == _DIRECT_CALL else None
        return target is None or self._flow.may_return(target)


class GeneratedCode:
    """Code of a process that lies in no file; each search reads the code again, because code may change."""

    def __init__(self, code: ReadCode) -> None:
        self._read = lambda address: code(address, LONGEST)
        self._cache = PassedRows()

    def row_at(self, pc: int) -> UnwindRow | None:
        """Return the row at an instruction."""
        flow = Flow(self._read, max_instructions=_MAX_GENERATED)
        return row_to_return(flow, pc, self._cache, self._read)


def row_to_return(flow: Flow, pc: int, cache: PassedRows, code: ReadBytes | None = None) -> UnwindRow | None:
    """Return the row at an instruction; None: no return was found, or returns disagree about the CFA.

    `code` reads generated code, whose bytes are part of the key of `cache`, because such code may change.
    """
    cached = cache.row_at(pc, code(pc) if code else b"")
    if cached is not None:
        return cached[0]
    rows: list[UnwindRow] = []
    passed: list[tuple[Visit, bytes]] = []
    for visit in flow.visits(pc):
        if len(passed) >= (_ENOUGH_INSTRUCTIONS if rows else _MAX_SEARCHED):
            break
        passed.append((visit, code(visit.address) if code else b""))
        row = _at_return(visit.state) if visit.instruction.returns else None
        if row is not None:
            rows.append(row)
    if not rows and code is not None:
        cache.keep_failure(passed)
    if len({row.cfa for row in rows}) != 1:
        return None
    cache.keep(rows[0], passed)
    return rows[0]


def _at_return(state: State) -> UnwindRow | None:
    """Return the row at the start of a search, given the state at a return."""
    top = state.value(_SP)
    cfa = top and top.moved(_WORD)
    rule = cfa and _cfa_rule(cfa)
    if cfa is None or rule is None:
        return None
    values = {number: state.value(number) for number in sorted(AMD64.callee_saved)}
    rules = ((n, _rule(value, cfa)) for n, value in values.items() if value is not None and value != Value(n))
    return UnwindRow(
        rule,
        Rule(CFA, -_WORD, deref=True),
        tuple((n, rule) for n, rule in rules if rule is not None),
        kept=tuple(n for n, value in values.items() if value == Value(n)),
        guess=True,
    )


def _cfa_rule(cfa: Value) -> Rule | None:
    """Return the rule for a CFA; None if the CFA lies below sp, or on a stack to which code switches."""
    place = cfa.place
    if place is None:
        return None if cfa.base == _SP and cfa.offset < _WORD else _plain(cfa)
    if not cfa.offset:
        return _plain(cfa)
    # an aligned frame saves the old sp: pop %rsp, or mov 64(%rsp),%rsp
    if place.base not in (_SP, AMD64.fp) or (place.base == _SP and place.offset < 0):
        return None
    expression = bytes([_BREG0 + place.base, 0]) + _plus(place.offset) + _DEREF + _plus(cfa.offset)
    return Rule(place.base, 0, deref=False, expression=expression)


def _plus(number: int) -> bytes:
    return _CONST8S + number.to_bytes(8, "little", signed=True) + _PLUS


def _rule(value: Value, cfa: Value) -> Rule | None:
    if value.base == cfa.base:
        return Rule(CFA, value.offset - cfa.offset, deref=False)
    if value.place is not None and value.place.base == cfa.base and not value.offset:
        return Rule(CFA, value.place.offset - cfa.offset, deref=True)
    return _plain(value)


def _plain(value: Value) -> Rule | None:
    """Return the rule for a value: register + offset, or the word at register + offset; else None."""
    match value:
        case Value(int(base), offset):
            return Rule(base, offset, deref=False)
        case Value(Value(int(base), offset), 0):
            return Rule(base, offset, deref=True)
    return None


def _is_whole(row: UnwindRow) -> bool:
    return len(row.kept) + len(row.registers) == len(AMD64.callee_saved)


def seen_from(row: UnwindRow, state: State) -> UnwindRow | None:
    """Return the row at a later instruction of the search, reached in `state`; None: the CFA is unknown.

    `row` counts the CFA from a register.  The CFA is known if a register of `state` has a known distance from
    that register's value at the start.  A callee-saved register with an unknown value is left out.
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
    """Return where in the frame the caller's value of a register is saved by now; None: nowhere."""
    value = _value_at_return(row, number, frame)
    place = state.saved(number, lowest) if value == Value(number) else value.place if value else None
    in_frame = place is not None and place.base == frame.base and (lowest is None or place.offset >= lowest)
    return place if in_frame else None


def _value_at_return(row: UnwindRow, number: int, frame: Value) -> Value | None:
    """Return the caller's value of a register, expressed by registers at the start of the search; or None."""
    if number in row.kept:
        return Value(number)
    rule = dict(row.registers).get(number)
    if rule is None or rule.base != CFA or rule.expression:
        return None
    place = frame.moved(rule.offset)
    return Value(place) if rule.deref else place


def _read(image: ElfImage, vaddr: int) -> bytes:
    """Return the code at a vaddr, enough for one instruction; b"" if the file has no code there."""
    end = next((end for start, end in image.executable if start <= vaddr < end), vaddr)
    return bytes(image.loaded(vaddr, min(LONGEST, end - vaddr)) or b"")
