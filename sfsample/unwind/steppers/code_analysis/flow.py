"""Where x86-64 code goes from an instruction on, and what it does to registers and stack on the way.

Law: pure; knows code only through `read`.  Values are symbolic: what a register or a word on the stack is, in
terms of the registers where the search began; None where that is not known.  What code writes through
pointers is taken not to change what it has saved on its stack.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from sfsample.core.checkpoint import checkpoint
from sfsample.formats.machine_code.decode_x86 import SP, Instruction, Load, Set, Step, Store, instruction

ReadBytes = Callable[[int], bytes]  # code from an address on, as much as an instruction may need
Begins = Callable[[int], bool]  # whether a function is known to begin at an address
_LONGEST_SEARCH = 300  # instructions of a function that is called
_DEEPEST = 8  # calls in calls
_MOST_EFFORT = 5000  # instructions for one answer, those of called functions included
_MOST_KEPT = 20_000  # instructions


class Value(NamedTuple):
    """`base` + `offset`; the base is a register, as it was in the beginning, or the word at another value."""

    base: "int | Value"
    offset: int = 0

    def moved(self, by: int) -> "Value":
        """Return the value plus a number."""
        return self._replace(offset=self.offset + by)

    @property
    def place(self) -> "Value | None":
        """Return where the word is that the value is, or is counted from."""
        return self.base if isinstance(self.base, Value) else None


class State:
    """Registers, and words in memory, that are not what they were."""

    __slots__ = ("_registers", "_words")

    def __init__(
        self, registers: dict[int, Value | None] | None = None, words: dict[Value, Value | None] | None = None
    ) -> None:
        self._registers = registers or {}
        self._words = words or {}

    def after(self, steps: tuple[Step, ...]) -> "State":
        """Return the state after an instruction."""
        state = State({**self._registers}, {**self._words})
        for step in steps:
            state._take(step)
        return state

    def value(self, register: int) -> Value | None:
        """Return what a register is."""
        return self._registers.get(register, Value(register))

    def saved(self, register: int, lowest: int | None = None) -> Value | None:
        """Return a place in memory that has what the register was; none below `lowest`."""
        places = (place for place, value in self._words.items() if value == Value(register))
        return next((place for place in places if lowest is None or place.offset >= lowest), None)

    def _take(self, step: Step) -> None:
        match step:
            case Set(register, source, offset):
                self._registers[register] = None if source is None else self._at(source, offset)
            case Load(register, base, offset):
                self._registers[register] = self._word(register, self._at(base, offset))
            case Store(source, base, offset):
                place = self._at(base, offset)
                if place is not None:
                    self._words[place] = None if source is None else self.value(source)

    def _at(self, base: int, offset: int) -> Value | None:
        value = self.value(base)
        return None if value is None else value.moved(offset)

    def _word(self, register: int, place: Value | None) -> Value | None:
        if place is None or (place.place is not None and place.place.place is not None):
            return None  # words behind words behind words are no frame
        saved = self.saved(register)
        if saved is not None and saved.base != place.base:
            return None  # saved a moment ago, perhaps there: how the two bases differ is not known
        return self._words[place] if place in self._words else Value(place)


class Visit(NamedTuple):
    """An instruction, and the state before it."""

    address: int
    instruction: Instruction
    state: State


def _unknown(_: int) -> bool:
    return False


class Flow:
    """The code of one module, or of one process's generated code.

    `ends`: functions that do not return.  `effort`: for one answer, in instructions.
    """

    def __init__(
        self,
        read: ReadBytes,
        ends: Container[object] = (),
        begins: Begins = _unknown,
        effort: int = _MOST_EFFORT,
    ) -> None:
        self._effort = effort
        self._read = read
        self._begins = begins
        self._instructions: dict[int, Instruction | None] = {}
        self._ends = ends
        self._returns: dict[int, bool] = {}
        self._left = 0

    def instruction(self, address: int) -> Instruction | None:
        """Return the instruction at an address."""
        if address not in self._instructions:
            if len(self._instructions) >= _MOST_KEPT:
                self._instructions.clear()
            self._instructions[address] = instruction(self._read(address), address)
        return self._instructions[address]

    def visits(self, start: int) -> Iterator[Visit]:
        """Yield the instructions to which code may come from `start`, fewest calls first.

        Each comes once, or once for each stack pointer with which it is reached.
        """
        self._left = self._effort
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
                if callee is not None and not self._comes_back(callee, depth + 1):
                    continue
            else:
                address, state = near.popleft()
            place = address, state.value(SP)
            found = None if place in seen else self.instruction(address)
            if found is None:
                continue
            if not self._left or (depth and len(seen) >= _LONGEST_SEARCH):
                return
            seen.add(place)
            self._left -= 1
            yield Visit(address, found, state)
            state = state.after(found.steps)
            if found.jump is not None:
                near.append((found.jump, state))
            if found.falls and (called or found.calls) and self._begins(found.end):
                continue  # code does not go on into the next function: the call did not return
            if found.calls:
                behind_calls.append((found.target, found.end, state))
            elif found.falls:
                near.append((found.end, state))

    def comes_back(self, function: int) -> bool:
        """Whether a call of a function may return; of `abort`, and what ends in it, it does not."""
        self._left = self._effort
        return self._comes_back(function, 1)

    def _comes_back(self, function: int, depth: int) -> bool:
        if function in self._ends:
            return False
        if depth > _DEEPEST:
            return True
        if function not in self._returns:
            self._returns[function] = True  # for one that calls itself
            count = 0
            for visit in self._visits(function, depth):
                count += 1
                if _comes_back(visit):
                    return True
            if not self._left:  # not known: then the way behind the call is not gone
                del self._returns[function]
                return False
            self._returns[function] = count >= _LONGEST_SEARCH
        return self._returns[function]


def _comes_back(visit: Visit) -> bool:
    """Whether a function may return with this instruction; `longjmp` jumps with another stack pointer."""
    sp = visit.state.value(SP)
    elsewhere = sp is not None and sp.place is not None
    return visit.instruction.returns or (visit.instruction.leaves and not elsewhere)
