"""Captures the Python frames of one process.

Before a pause, `plan` lists the memory to copy.  After the pause, `stack` places and names the frames, and
the plan learns from these frames.

Invariant: whatever the target's memory holds, a capture reads no more than its budget, and a thread whose
memory makes no sense has no Python frames (tests/runtimes/cpython/test_runtime.py).
"""

from collections.abc import Sequence

from sfsample.core.budget import READ_NS, Budget, CountedMemory
from sfsample.core.memory import Memory, ReadMany, ReadMemory, Span, word_in
from sfsample.core.stack import Frame
from sfsample.runtimes.cpython import threads
from sfsample.runtimes.cpython.chain import runs
from sfsample.runtimes.cpython.find import Interpreter
from sfsample.runtimes.cpython.place import Placer
from sfsample.runtimes.cpython.plan import Plan
from sfsample.runtimes.cpython.python_stack import Names, PythonStack

_MAX_STATES = 8  # thread states of a thread; one system call can read the pieces of all states
_MAX_LISTS = 3  # attempts to list the threads while they come and go
_REHEARSED_NS = 1000 * READ_NS  # CPU time in ns to read frames before the pause; the pause copies the rest
_MAX_REHEARSED = 300  # code objects that are read before the pause; later pauses copy the others


class PythonRuntime:
    """The Python interpreter of a process; reads stay within `budget`.  `directories`: see `import_path`."""

    def __init__(
        self, interpreter: Interpreter, read: ReadMemory, read_many: ReadMany, budget: Budget,
        directories: Sequence[str] = (), *, with_gil: bool = False,
    ) -> None:  # fmt: skip
        """`with_gil`: copy in each pause the words that `has_gil` needs."""
        self._layout = interpreter.layout
        self._interpreter, self._read, self._budget = interpreter, read, budget
        self._with_gil = with_gil
        self._names = Names(interpreter.layout, read_many, directories)
        self._placer = Placer(interpreter.layout, interpreter.code)
        self._states: dict[int, list[int]] = {}  # thread id -> thread states, at the time of `_created`
        self._counters: tuple[Span, ...] = ()
        self._created: tuple[bytes | None, ...] = ()  # values of `_counters`; (): list the threads again
        self._plans: dict[int, Plan] = {}

    def plan(self, tid: int) -> Plan | None:
        """Return the plan of a thread; None: no Python.  `tid`: id in the target's pid namespace.

        A plan for an unknown thread has the thread states of all threads that have not begun: the unknown
        thread may be one of these, and begin before the pause.
        """
        if tid not in self._plans or tid not in self._states:
            at = self._layout.native_thread_id
            begun = any(word_in(self._read(state + at, 8)) == tid for state in self.listed(threads.UNBORN))
            if self.is_torn or self._created != self._read_counters() or begun:
                self._list()
            states = self.listed(tid if tid in self._states else threads.UNBORN)
            if not states:
                return None
            gils = threads.gil_words(self._interpreter, states, self._read) if self._with_gil else ()
            trusted = self._names.codes.trusted
            plan = self._plans[tid] = Plan(self._layout, states, self._counters, trusted, gils)
            if tid in self._states:
                self._rehearse(plan)
        return self._plans[tid]

    def listed(self, tid: int) -> tuple[int, ...]:
        """Return the thread states that a thread may run, its own state first; (): no Python."""
        own, shared = self._states.get(tid), self._states.get(threads.SHARED, ())
        return tuple(dict.fromkeys([*own, *shared]))[:_MAX_STATES] if own else ()

    def _rehearse(self, plan: Plan) -> None:
        """Let a plan learn from the current frames of its thread, although the thread may run."""
        part = CountedMemory(self._read, Budget(_REHEARSED_NS), READ_NS)
        chains = (runs(part, self._layout, state) for state in plan.states)
        frames = [frame for chain in chains for run in chain for frame in run.frames]
        self._names.codes.look_up([*dict.fromkeys(frame.code for frame in frames)][:_MAX_REHEARSED])
        plan.learn(CountedMemory(self._read, self._budget), frames, is_whole=False)

    @property
    def is_torn(self) -> bool:
        """Return True if the list of threads changed while sfsample read it."""
        return threads.TORN in self._states

    def _read_counters(self) -> tuple[bytes | None, ...]:
        self._counters = threads.counters(self._interpreter, self._read)
        return tuple(self._read(*span) for span in self._counters)

    def _list(self) -> None:
        """List the threads; drop the plan of each thread that has entered another interpreter."""
        for _ in range(_MAX_LISTS):
            before, self._created = self._states, self._read_counters()
            self._states = threads.thread_states(self._interpreter, self._read)
            if not self.is_torn:
                break
            self._states = before | self._states  # threads may be missing in the new list
        self._plans = {
            tid: plan
            for tid, plan in self._plans.items()
            if self.listed(tid) == plan.states and plan.counters == self._counters
        }

    def stack(self, tid: int, memory: Memory, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread from the copies of its pause; None: no Python frames."""
        plan, memory = self._plans.get(tid), CountedMemory(memory.read, self._budget)
        if plan is None:
            return None
        states = self._own(tid, plan, memory)
        if tid not in self._states:  # a thread that had not begun, or has no Python
            del self._plans[tid]
            if not states or memory.word(states[0]) is None:  # nothing was copied
                return PythonStack((), False) if states else None
        elif not self._is_current(tid, plan, states, memory):
            return None if self.plan(tid) is None else PythonStack((), False)
        placed = self._placer.place(memory, frames, states)
        named = self._names.named(placed, memory)
        found = [frame for _, run in placed.activations for frame in run]
        plan.learn(memory, found, is_whole=placed.is_whole)
        return named if placed.activations or not placed.is_whole else None

    def loop_marks(self, tid: int, memory: Memory, sp: int) -> tuple[list[int], int | None]:
        """Return the marks of the activations above `sp`, and the distance from mark to CFA, if known."""
        plan, memory = self._plans.get(tid), CountedMemory(memory.read, self._budget)
        states = () if plan is None else plan.states
        marks = [run.mark for state in states for run in runs(memory, self._layout, state) if run.mark > sp]
        return marks, self._placer.distance

    def gil(self, tid: int) -> threads.Gil | None:
        """Return the current state of the GIL of a thread; None: unknown, or no GIL."""
        plan = self._plans.get(tid)
        return None if plan is None else threads.read_gil(self._interpreter, plan.states[0], self._read)

    def has_gil(self, tid: int, memory: Memory, stack: Span) -> bool | None:
        """Return True if a thread held its GIL in its pause, by the copies; None: no copy of the GIL.

        `stack`: lowest and highest address of the thread's stack.  If the thread runs a shared thread state,
        the `_PyCFrame` of this state lies on that stack.
        """
        plan = self._plans.get(tid)
        if plan is None:
            return None if self.is_torn else False
        words = [data for span in plan.gils if (data := memory.read(*span)) is not None]
        at, (low, high), shared = self._layout.thread_frame, stack, self._states.get(threads.SHARED, ())
        own = (state for state in self._own(tid, plan, memory)
               if state not in shared or low <= (memory.word(state + at) or 0) < high)  # fmt: skip
        has_gil = not {*map(threads.holder_in, words)}.isdisjoint(own)
        return has_gil if len(words) == len(plan.gils) else None

    def _is_current(self, tid: int, plan: Plan, states: list[int], memory: Memory) -> bool:
        """Return True if the plan fitted the thread in its pause; otherwise drop the plan."""
        if len(states) < len(plan.states) or memory.word(states[0]) is None:
            self._created = ()  # a state of the plan has another thread id, or was not copied
            del self._plans[tid]
        elif self._created != tuple(memory.read(*span) for span in plan.counters):
            self._list()  # the thread may have entered another interpreter
        return tid in self._plans

    def _own(self, tid: int, plan: Plan, memory: Memory) -> list[int]:
        """Return a plan's thread states, except those that only another thread could run in the pause."""
        at = self._layout.native_thread_id
        shared = self._states.get(threads.SHARED, ())
        return [state for state in plan.states if memory.word(state + at) in (tid, None) or state in shared]
