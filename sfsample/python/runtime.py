"""Python in one process: what is copied in the pause of a thread, and what its frames are called.

Before a pause, `plan` says what the chain of frames will need: the thread states, the chunks of the data
stack, and the frames of generators, which lie anywhere, as the last sample had them.  In the pause, `wanted`
follows what was not foreseen.  After it, `stack` places and names the frames.

Invariant: whatever the target's memory holds, each step is bounded, and what does not fit has no Python
frames (tests/python/test_runtime.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.core.stack import Frame
from sfsample.python.code_objects import ReadMany
from sfsample.python.find import Interpreter, ReadMemory
from sfsample.python.layout import GIL_BYTES, GIL_HOLDER, GIL_LOCKED, word_in
from sfsample.python.names import Names, PythonStack
from sfsample.python.place import Placed, Placer
from sfsample.python.threads import created, thread_states

_MAX_CHUNKS = 64  # of a data stack
_CHUNK_HEADER = 24  # bytes: previous, size, top
_MAX_CHUNK_BYTES = 1 << 20
_MAX_LOOSE = 64  # frames of generators that are foreseen
_MAX_FOLLOWED = 64  # steps of the chain in one pause
_MAX_LISTS = 3  # of threads, where they come and go meanwhile


class Plan(NamedTuple):
    """What to copy of a thread: (address, size) of each piece.

    `links` has the caller of each frame of the last sample, `loose` those of its generators.
    """

    states: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    links: Mapping[int, int]
    loose: Mapping[int, int]


class Gil(NamedTuple):
    """The global interpreter lock of a thread: where it lies, and the thread that holds it (0: none does)."""

    begin: int
    end: int
    holder: int


class PythonRuntime:
    """The interpreter of a process.  `read` and `read_many` read its memory now."""

    def __init__(self, interpreter: Interpreter, read: ReadMemory, read_many: ReadMany) -> None:
        self._layout = interpreter.layout
        self._interpreter, self._read = interpreter, read
        self._names = Names(interpreter.layout, read_many)
        self._placer = Placer(interpreter.layout)
        self._states: dict[int, list[int]] = {}  # by thread id, as of `_created`
        self._created: tuple[bytes | None, ...] = ()
        self._plans: dict[int, Plan] = {}

    # -- before and in the pause

    def plan(self, tid: int) -> Plan | None:
        """Return what to copy of a thread (its id in the target's pid namespace); None: it has no Python."""
        number = created(self._interpreter, self._read)
        # a thread has come, or has entered another interpreter; 0: one has not begun yet, or the list is torn
        if number != self._created or 0 in self._states:
            for _ in range(_MAX_LISTS):
                self._created, self._states = number, thread_states(self._interpreter, self._read)
                if 0 not in self._states:
                    break
            self._plans = {tid: plan for tid, plan in self._plans.items()
                           if self._states.get(tid) == [*plan.states]}  # fmt: skip
        if tid not in self._plans:
            if not (states := self._states.get(tid)):
                return None
            self._plans[tid] = self._planned(tuple(states), (), {}, {})
        return self._plans[tid]

    def _planned(
        self, states: tuple[int, ...], kept: Sequence[int], links: Mapping[int, int], loose: Mapping[int, int]
    ) -> Plan:
        layout = self._layout
        pieces = [(state, layout.thread_bytes) for state in states]
        for state in states:
            pieces += self._chunks(word_in(self._read(state + layout.chunk, 8)))
        pieces += [(frame, layout.frame_bytes) for frame in kept]
        return Plan(states, tuple(pieces), links, loose)

    def _chunks(self, at: int) -> list[tuple[int, int]]:
        """Return the chunks of a data stack, the newest first."""
        found: list[tuple[int, int]] = []
        while at and len(found) < _MAX_CHUNKS:
            header = self._read(at, _CHUNK_HEADER)
            size = word_in(header, 8)
            if not _CHUNK_HEADER < size <= _MAX_CHUNK_BYTES:
                break
            found.append((at, size))
            at = word_in(header)
        return found

    def wanted(self, plan: Plan, memory: Memory) -> Iterator[tuple[int, int]]:
        """Yield the frames that are to be copied too (address, size), each before the next one is looked for.

        The chain is followed to the first frame that has the same caller as in the last sample, if the
        generators have: what lies behind it is the same then.
        """
        layout, links = self._layout, plan.links
        loose = ((memory.read(at, layout.frame_bytes), caller) for at, caller in plan.loose.items())
        if any(word_in(frame, layout.previous) != caller for frame, caller in loose):
            links = {}
        for state in plan.states:
            at = memory.word(state + layout.thread_frame) or 0
            if layout.cframe_frame is not None:
                at = memory.word(at + layout.cframe_frame) or 0
            for _ in range(_MAX_FOLLOWED if at else 0):
                frame = memory.read(at, layout.frame_bytes)  # a piece may have a part of it
                if frame is None:
                    yield at, layout.frame_bytes
                    frame = memory.read(at, layout.frame_bytes)
                previous = word_in(frame, layout.previous)
                if not previous or links.get(at) == previous:
                    break
                at = previous

    # -- after the pause

    def stack(self, tid: int, memory: Memory, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread, by what was copied of it; None: it has none."""
        plan = self._plans.get(tid)
        if plan is None or not self._is_of(tid, plan, memory):
            self.forget(tid)
            return None
        if memory.word(plan.states[0]) is None:  # nothing of it was copied: a chunk has gone meanwhile
            del self._plans[tid]
            return PythonStack((), False)
        placed = self._placer.place(memory, frames, plan.states)
        self._learn(tid, plan, placed, memory)
        is_there = placed.activations or not placed.is_whole
        return self._names.named(placed) if is_there else None

    def gil(self, tid: int) -> Gil | None:
        """Return the GIL of a thread as it is now; None: it is unknown, or there is none."""
        plan, layout = self._plans.get(tid), self._layout
        if plan is None:
            return None
        at = self._interpreter.runtime + layout.gil if layout.gil is not None else 0
        if layout.gil_pointer is not None:
            owner = word_in(self._read(plan.states[0] + layout.thread_interpreter, 8))
            at = word_in(self._read(owner + layout.gil_pointer, 8))
        data = self._read(at, GIL_BYTES) if at else None
        if data is None:
            return None
        is_locked = int.from_bytes(data[GIL_LOCKED : GIL_LOCKED + 4], "little") == 1
        holder = word_in(data, GIL_HOLDER) if is_locked else 0
        return Gil(
            at, at + GIL_BYTES, word_in(self._read(holder + layout.native_thread_id, 8)) if holder else 0
        )

    def forget(self, tid: int) -> None:
        """Look for a thread anew, as it has ended or was not there."""
        self._plans.pop(tid, None)
        self._states.pop(tid, None)

    def _is_of(self, tid: int, plan: Plan, memory: Memory) -> bool:
        """Whether the thread states that were copied are still those of the thread."""
        at = self._layout.native_thread_id
        return all(memory.word(state + at) in (tid, None) for state in plan.states)

    def _learn(self, tid: int, plan: Plan, placed: Placed, memory: Memory) -> None:
        """Foresee for the next sample what this one has needed."""
        layout = self._layout
        chunks = [piece for piece in plan.ranges if piece[1] > layout.thread_bytes]
        frames = [frame.address for _, run in placed.activations for frame in run]
        links = {at: memory.word(at + layout.previous) or 0 for at in frames}
        loose = {at: links[at] for at in frames
                 if not any(start <= at < start + size for start, size in chunks)}  # fmt: skip
        known = {start for start, _ in chunks}
        same = all(memory.word(state + layout.chunk) in {*known, 0} for state in plan.states)
        before = {start for start, size in plan.ranges if size == layout.frame_bytes}
        if not same or not before.issuperset(loose):
            kept = [*dict.fromkeys([*loose, *before])][:_MAX_LOOSE]
            self._plans[tid] = self._planned(plan.states, kept, links, loose)
        else:
            self._plans[tid] = plan._replace(links=links, loose=loose)
