"""Follows x86-64 code from an instruction on, and computes the effects on registers and the stack.

A value is a symbolic expression of the registers at the start of the search, or None (unknown).  The analysis
assumes that writes through other pointers do not change saved words on the stack.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from sfsample.core.budget import INSTRUCTIONS
from sfsample.formats.machine_code.decode_x86 import SP, Instruction, Load, Set, Step, Store, decode

ReadBytes = Callable[[int], bytes]  # function: address -> bytes from there on, enough for an instruction
TestAddress = Callable[[int], bool]
_MAX_CALLEE_INSTRUCTIONS = 300  # instructions followed in a called function
_MAX_CALL_DEPTH = 8  # nested calls
_MAX_INSTRUCTIONS = 5000  # instructions followed for one answer, in called functions too
_MAX_REACHED = 2000  # instructions of one function, and of the functions to which it jumps
_MAX_CACHED_INSTRUCTIONS, _MAX_CACHED_FUNCTIONS = 20_000, 20_000


class Value(NamedTuple):
    """value = base + offset."""

    base: "int | Value"  # int: register at the start of the search; Value: the word at this address
    offset: int = 0  # bytes

    def moved(self, by: int) -> "Value":
        """Return the value plus `by`."""
        return Value(self.base, self.offset + by) if by else self

    @property
    def place(self) -> "Value | None":
        """The address of the word that is the base of this value; None: the base is a register."""
        return self.base if isinstance(self.base, Value) else None


_AT_START = tuple(map(Value, range(16)))


class State:
    """Changed registers and words in memory.  States share dictionaries: a finished state never changes."""

    __slots__ = ("_registers", "_words")

    def __init__(self, registers: dict[int, Value | None], words: dict[Value, Value | None]) -> None:
        self._registers, self._words = registers, words

    def after(self, steps: tuple[Step, ...]) -> "State":
        """Return the state after an instruction."""
        if not steps:
            return self
        state = State({**self._registers}, self._words)
        for step in steps:
            state._apply(step)
        return state

    def value(self, register: int) -> Value | None:
        """Return the value of a register; None: unknown."""
        return self._registers.get(register, _AT_START[register])

    def saved(self, register: int, lowest: int | None = None) -> Value | None:
        """Return where the register's initial value is saved, at offset `lowest` or above; None: nowhere."""
        initial = _AT_START[register]
        for place, value in self._words.items():
            if value == initial and (lowest is None or place.offset >= lowest):
                return place
        return None

    def _apply(self, step: Step) -> None:
        match step:
            case Set(register, source, offset):
                self._registers[register] = None if source is None else self._place(source, offset)
            case Load(register, base, offset):
                self._registers[register] = self._word(register, self._place(base, offset))
            case Store(source, base, offset):
                place = self._place(base, offset)
                if place is not None:
                    self._words = {**self._words, place: None if source is None else self.value(source)}

    def _place(self, base: int, offset: int) -> Value | None:
        value = self.value(base)
        return value and value.moved(offset)

    def _word(self, register: int, place: Value | None) -> Value | None:
        if place is None or (place.place is not None and place.place.place is not None):
            return None  # value behind two pointers in memory, which no frame needs
        saved = self.saved(register)
        if saved is not None and saved.base != place.base:
            return None  # `place` may be the word where the register was saved: the bases differ
        return self._words[place] if place in self._words else Value(place)


class Visit(NamedTuple):
    """An instruction, and the state before it."""

    address: int
    instruction: Instruction
    state: State


class Flow:
    """The code of one module, or generated code; `max_instructions` limits the search for one answer."""

    def __init__(
        self, read: ReadBytes, never_returns: TestAddress = lambda _: False,
        is_start: TestAddress = lambda _: False, max_instructions: int = _MAX_INSTRUCTIONS,
    ) -> None:  # fmt: skip
        self._never_returns, self._is_start = never_returns, is_start
        # the instruction at an address; None: no valid instruction
        self.instruction = lru_cache(_MAX_CACHED_INSTRUCTIONS)(lambda at: decode(read(at), at))
        self._max_instructions = self._left = max_instructions
        self._returning: dict[int, bool] = {}

    def visits(self, start: int) -> Iterator[Visit]:
        """Yield the instructions that code may reach from `start`; instructions after fewer calls come first.

        An instruction is yielded once for each value that sp has there.
        """
        self._left = self._max_instructions
        return self._visits(start, 0)

    def reached_from(self, start: int) -> tuple[frozenset[int], bool]:
        """Return (instructions that may run from `start` on, and ends of calls; True if all are known).

        Instructions of called functions do not count; instructions after jumps (tail calls) count.
        """
        seen, ends, todo, is_all = set[int](), set[int](), [start], True
        while todo and len(seen) < _MAX_REACHED:
            INSTRUCTIONS.take()
            address = todo.pop()
            instruction = None if address in seen else self.instruction(address)
            if instruction is None:
                is_all = is_all and address in seen
                continue
            seen.add(address)
            is_all = is_all and not instruction.jumps_away
            if instruction.jump is not None:
                todo.append(instruction.jump)
            if instruction.calls:
                ends.add(instruction.end)
            if instruction.falls_through and not (instruction.calls and self._is_start(instruction.end)):
                todo.append(instruction.end)
        return frozenset(seen | ends), is_all and not todo

    def _visits(self, start: int, depth: int) -> Iterator[Visit]:
        seen: set[tuple[int, Value | None]] = set()
        near, after_calls = deque([(start, State({}, {}))]), deque[tuple[int | None, int, State]]()
        called = False
        while near or after_calls:
            INSTRUCTIONS.take()
            if not near:
                called = True
                callee, address, state = after_calls.popleft()
                if callee is not None and not self._may_return(callee, depth + 1):
                    continue
            else:
                address, state = near.popleft()
            place = address, state.value(SP)
            instruction = None if place in seen else self.instruction(address)
            if instruction is None:
                continue
            if not self._left or (depth and len(seen) >= _MAX_CALLEE_INSTRUCTIONS):
                return
            seen.add(place)
            self._left -= 1
            yield Visit(address, instruction, state)
            state, end = state.after(instruction.steps), instruction.end
            if instruction.jump is not None:
                near.append((instruction.jump, state))
            if instruction.falls_through and (called or instruction.calls) and self._is_start(end):
                continue  # start of the next function: the call before it does not return
            if instruction.calls:
                after_calls.append((instruction.target, end, state))
            elif instruction.falls_through:
                near.append((end, state))

    def may_return(self, function: int) -> bool:
        """Return False if a function never returns: `abort`, and functions that always call `abort`."""
        self._left = self._max_instructions
        return self._may_return(function, 1)

    def _may_return(self, function: int, depth: int) -> bool:
        if self._never_returns(function):
            return False
        if depth > _MAX_CALL_DEPTH:
            return True
        if function not in self._returning:
            if len(self._returning) >= _MAX_CACHED_FUNCTIONS:
                self._returning.clear()
            self._returning[function] = True  # answer for recursive calls
            count = 0
            for visit in self._visits(function, depth):
                count += 1
                # `longjmp`, and code that begins a coroutine, change to another stack before the jump
                instruction, sp = visit.instruction, visit.state.value(SP)
                jumps_in_place = instruction.jumps_away and (sp is None or sp.base == SP)
                if instruction.returns or jumps_in_place:
                    return True
            if not self._left:  # answer unknown, so the code after the call is not followed
                self._returning.pop(function, None)
                return False
            self._returning[function] = count >= _MAX_CALLEE_INSTRUCTIONS
        return self._returning[function]
