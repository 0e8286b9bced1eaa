"""One look at one thread: captured in the gentlest way that tells its stack, unwound, and believed.

Law: a thread that sleeps is read, not stopped.  It is stopped only when its stack hangs on a register that
was not read and the kernel carries on with its system call afterwards as if nothing had happened.  That
libraries are what we take them for is checked before and after: they can be replaced meanwhile.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.model import Capture, Stack, StopReason, ThreadSnapshot
from sfsample.modules.module import Module
from sfsample.target.kernel_stack import REFUSED, kernel_stack
from sfsample.target.live import LiveProcess
from sfsample.target.reading import Reading
from sfsample.target.tracer import PATIENCE_NS, Missed
from sfsample.unwind.unwinder import Unwinder

_LOOKS = 8


_Taken = tuple[ThreadSnapshot, Stack, Reading | None]


class Look(NamedTuple):
    """A thread's stack, and how it was had.

    `stops` are the snapshots for which the thread was stopped (one that has taught us something is taken
    again).  `reading` is there when the last one was not.
    """

    snapshot: ThreadSnapshot
    stack: Stack
    modules: tuple[Module | None, ...]  # of each frame
    stops: tuple[ThreadSnapshot, ...]
    reading: Reading | None
    kernel: tuple[str, ...] = ()  # functions in which it sleeps, innermost first


class Looker:
    """Looks at the threads of one process; with `stop` False it never stops one."""

    def __init__(
        self, target: LiveProcess, unwinder: Unwinder, *, stop: bool = True, kernel: bool = False
    ) -> None:
        self._target = target
        self._unwinder = unwinder
        self._stop = stop
        self._with_kernel = kernel
        self.kernel_refused = False
        self._expected: dict[int, frozenset[Module]] = {}  # on the last stack of each thread
        self._modules: dict[int, Module | None] = {}
        self._generation = -1

    def look(self, tid: int, state: str, patience_ns: int = PATIENCE_NS) -> Look | Missed:
        """Capture and unwind; once more when the first attempt has taught us something that it lacked.

        `state` is the thread's (proc(5)); one in state R is not read, one in state D never stopped.
        `patience_ns`: how long to wait for it to stop.  Raises as `LiveProcess.capture`.
        """
        target = self._target
        stops: list[ThreadSnapshot] = []
        for _ in range(_LOOKS):
            self._check_libraries(tid)
            taken = self._take(tid, state, patience_ns)
            if isinstance(taken, Missed):
                return taken
            snapshot, stack, reading = taken
            if snapshot.capture is Capture.STOPPED:
                stops.append(snapshot)
            if target.learn_trampolines(stack):
                continue
            modules = self._modules_of(stack)
            self._expected[tid] = mapped = frozenset(module for module in modules if module is not None)
            if not target.replaced(tid, mapped):
                return Look(snapshot, stack, modules, tuple(stops), reading, self._kernel(tid, reading))
            target.index.reload(mapped)
        return Missed(gone=False, why="libraries were replaced by others while they were looked at")

    def _take(self, tid: int, state: str, patience_ns: int) -> _Taken | Missed:
        reading = None if state == "R" else self._target.read(tid)
        stack = None if reading is None else self._unwinder.walk(reading.snapshot)
        if reading is None or stack is None or self._needs_stop(reading, stack, state):
            taken = self._capture(tid, state, patience_ns)
            if isinstance(taken, ThreadSnapshot):
                return taken, self._unwinder.walk(taken), None
            if reading is None or stack is None:
                return taken
        return reading.snapshot, stack, reading

    def _capture(self, tid: int, state: str, patience_ns: int) -> ThreadSnapshot | Missed:
        if state == "D":
            return Missed(gone=False, why="in uninterruptible sleep (state D), where it cannot be stopped")
        if not self._stop:
            return Missed(gone=False, why="it runs, and nothing may be stopped (--no-stop)")
        return self._target.capture(tid, patience_ns)

    def _needs_stop(self, reading: Reading, stack: Stack, state: str) -> bool:
        """Whether the stack hangs on a register that only a stop tells, and a stop is harmless."""
        return (
            self._stop
            and state != "D"
            and stack.stop_reason is StopReason.REGISTER_UNKNOWN
            and self._target.restarts(reading.asleep)
        )

    def _kernel(self, tid: int, reading: Reading | None) -> tuple[str, ...]:
        """Return in which functions of the kernel a thread that was read sleeps, if it still does."""
        if reading is None or not self._with_kernel:
            return ()
        functions, counters = kernel_stack(self._target.proc, tid), self._target.proc.counters(tid)
        self.kernel_refused |= functions is None and counters is not None
        return functions or () if counters == reading.counters else ()

    @property
    def problems(self) -> list[str]:
        """What could not be had."""
        return [REFUSED] if self.kernel_refused else []

    @property
    def doubts(self) -> Counter[str]:
        """Answers of steppers that were not believed, and how often."""
        return self._unwinder.doubts

    def _check_libraries(self, tid: int) -> None:
        expected = self._expected.get(tid, frozenset())
        for _ in range(_LOOKS):
            if not self._target.replaced(tid, expected):
                return
            expected = self._target.index.reload(expected)

    def _modules_of(self, stack: Stack) -> tuple[Module | None, ...]:
        index, known = self._target.index, self._modules
        if index.generation != self._generation:
            self._generation = index.generation
            known.clear()
        for frame in stack.frames:
            if frame.lookup_pc not in known:
                known[frame.lookup_pc] = index.find(frame.lookup_pc)
        return tuple(known[frame.lookup_pc] for frame in stack.frames)

    def keep_only(self, tids: Iterable[int]) -> None:
        """Drop what is kept for threads that have ended."""
        self._expected = {tid: self._expected[tid] for tid in tids if tid in self._expected}
