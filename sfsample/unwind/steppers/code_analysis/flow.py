"""Follows x86-64 code from an instruction on, and computes what it does to registers and the stack.

Values are symbolic: a register or a word on the stack in terms of the registers where the search began; None
if unknown.  Writes through other pointers are assumed not to change what the code has saved on its stack.
Code is read only through the function `read`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sfsample.core.checkpoint import checkpoint
from sfsample.formats.machine_code.decode_x86 import (
    SP,
    Instruction,
    Load,
    Set,
    Step,
    Store,
    decode_instruction,
)

ReadBytes = Callable[[int], bytes]  # the code from an address on, as much as an instruction may need
TestAddress = Callable[[int], bool]
_MAX_CALLEE_INSTRUCTIONS = 300  # that are followed in a function that is called
_MAX_CALL_DEPTH = 8
_MAX_INSTRUCTIONS = 5000  # for one answer, those of called functions included
_MAX_CACHED_INSTRUCTIONS, _MAX_CACHED_FUNCTIONS = 20_000, 20_000


class Value(NamedTuple):
    """`base` + `offset`; the base is a register as it was at the start, or the word at another value."""

    base: "int | Value"
    offset: int = 0

    def moved(self, by: int) -> "Value":
        """Return the value plus `by`."""
        return Value(self.base, self.offset + by) if by else self

    @property
    def place(self) -> "Value | None":
        """Return where the word is that is the base of this value; None: the base is a register."""
        return self.base if isinstance(self.base, Value) else None


_AT_START = tuple(map(Value, range(16)))


class State:
    """The registers and the words in memory that have changed since the start of the search.

    A state does not change once others refer to it; states share their dictionaries.
    """

    __slots__ = ("_registers", "_words")

    def __init__(
        self, registers: dict[int, Value | None] | None = None, words: dict[Value, Value | None] | None = None
    ) -> None:
        self._registers = registers or {}
        self._words = words or {}

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
        """Return a place in memory, not below `lowest`, that has the register's value at the start."""
        own = _AT_START[register]
        for place, value in self._words.items():
            if value == own and (lowest is None or place.offset >= lowest):
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
        return None if value is None else value.moved(offset)

    def _word(self, register: int, place: Value | None) -> Value | None:
        if place is None or (place.place is not None and place.place.place is not None):
            return None  # a pointer in memory to a pointer in memory: no frame looks like that
        saved = self.saved(register)
        if saved is not None and saved.base != place.base:
            return None  # saved by another base, perhaps at this place: how the bases differ is unknown
        return self._words[place] if place in self._words else Value(place)


class Visit(NamedTuple):
    """An instruction, and the state before it."""

    address: int
    instruction: Instruction
    state: State


class Flow:
    """The code of one module, or of one process's generated code.

    `is_start`: whether a function is known to begin at an address.
    `never_returns`: whether a function is known not to return.  `max_instructions`: followed for one answer.
    """

    def __init__(
        self,
        read: ReadBytes,
        never_returns: TestAddress = lambda _: False,
        is_start: TestAddress = lambda _: False,
        max_instructions: int = _MAX_INSTRUCTIONS,
    ) -> None:
        self._max_instructions = max_instructions
        self._read = read
        self._is_start = is_start
        self._instructions: dict[int, Instruction | None] = {}
        self._never_returns = never_returns
        self._known_returns: dict[int, bool] = {}
        self._left = 0

    def instruction(self, address: int) -> Instruction | None:
        """Return the instruction at an address."""
        if address not in self._instructions:
            if len(self._instructions) >= _MAX_CACHED_INSTRUCTIONS:
                self._instructions.clear()
            self._instructions[address] = decode_instruction(self._read(address), address)
        return self._instructions[address]

    def visits(self, start: int) -> Iterator[Visit]:
        """Yield the instructions that code may reach from `start`, those behind the fewest calls first.

        Each is yielded once for each stack pointer with which it is reached.
        """
        self._left = self._max_instructions
        return self._visits(start, 0)

    def _visits(self, start: int, depth: int) -> Iterator[Visit]:
        seen: set[tuple[int, Value | None]] = set()
        near, behind_calls = deque([(start, State())]), deque[tuple[int | None, int, State]]()
        called = False
        while near or behind_calls:
            checkpoint()
            if not near:
                called = True
                callee, address, state = behind_calls.popleft()
                if callee is not None and not self._may_return(callee, depth + 1):
                    continue
            else:
                address, state = near.popleft()
            place = address, state.value(SP)
            found = None if place in seen else self.instruction(address)
            if found is None:
                continue
            if not self._left or (depth and len(seen) >= _MAX_CALLEE_INSTRUCTIONS):
                return
            seen.add(place)
            self._left -= 1
            yield Visit(address, found, state)
            state = state.after(found.steps)
            if found.jump is not None:
                near.append((found.jump, state))
            if found.falls_through and (called or found.calls) and self._is_start(found.end):
                continue  # the next function begins here: the call before does not return
            if found.calls:
                behind_calls.append((found.target, found.end, state))
            elif found.falls_through:
                near.append((found.end, state))

    def may_return(self, function: int) -> bool:
        """Return whether a call of a function may return; `abort` does not, nor what ends in it."""
        self._left = self._max_instructions
        return self._may_return(function, 1)

    def _may_return(self, function: int, depth: int) -> bool:
        if self._never_returns(function):
            return False
        if depth > _MAX_CALL_DEPTH:
            return True
        if function not in self._known_returns:
            if len(self._known_returns) >= _MAX_CACHED_FUNCTIONS:
                self._known_returns.clear()
            self._known_returns[function] = True  # the answer for its recursive calls
            count = 0
            for visit in self._visits(function, depth):
                count += 1
                if _may_return(visit):
                    return True
            if not self._left:  # unknown: then the code behind the call is not followed
                self._known_returns.pop(function, None)
                return False
            self._known_returns[function] = count >= _MAX_CALLEE_INSTRUCTIONS
        return self._known_returns[function]


def _may_return(visit: Visit) -> bool:
    """Return whether a function may return by this instruction; `longjmp` jumps with another sp."""
    sp = visit.state.value(SP)
    sp_was_loaded = sp is not None and sp.place is not None
    return visit.instruction.returns or (visit.instruction.jumps_away and not sp_was_loaded)
