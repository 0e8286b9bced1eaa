"""One look at one thread: captured in the gentlest way that tells its stack, unwound, and believed.

Law: a thread that sleeps is read, not stopped, also if it went to sleep just before it was to be stopped.  It
is stopped only when its stack hangs on a register that was not read and the kernel carries on with its system
call afterwards as if nothing had happened; and once for each place where it sleeps, since what calls preserve
is remembered and tried first the next time.  Where it may not be stopped, its frame is searched for on the
stack (`found: scan`, unwind/frame_search.py).  That libraries are what we take them for is checked before and
after: they can be replaced meanwhile.
"""

import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from sfsample.core.snapshot import Capture, Registers, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason, common_tail
from sfsample.modules.location import Located
from sfsample.modules.module import Module
from sfsample.process.kernel_stack import REFUSED, kernel_stack
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import Asleep
from sfsample.process.sleeping_thread import SleepingThread
from sfsample.process.stop_request import PATIENCE_NS, NotCaptured
from sfsample.process.stop_window import ANY, AWAKE, Only

_LOOKS = 8
_DOUBTED = 3  # so many times a stack that ends too early is not believed in a process whose libraries change
_REST_S = 0.000_05  # between two questions whether a thread sleeps
_SELDOM = 100
_WORTH_WAITING_NS = 1_000_000  # for a thread that sleeps to stop: it will not be stopped there again

# The kernel's own threads in a process (io_uring, vhost) run no code of it; where they are is not known while
# they run, or without --kernel.
_KERNEL_WORKER = ("kernel_worker",)

_Taken = tuple[ThreadSnapshot, Stack, SleepingThread | None]


class Walker(Protocol):
    """The unwinder, as far as a capture asks it."""

    @property
    def doubts(self) -> Counter[str]:
        """Answers of steppers that were not believed, and how often."""
        ...

    def walk(self, snapshot: ThreadSnapshot) -> Stack:
        """Return the stack of a thread."""
        ...

    def search(self, snapshot: ThreadSnapshot, stack: Stack) -> Stack:
        """Return the stack, continued where its last frame's CFA depends on a register that is unknown."""
        ...


class _Told(NamedTuple):
    """What a stop has told of a thread that slept: the registers that calls preserve, and its callers.

    `returns` is the register that a call leaves the return address in.
    """

    asleep: Asleep
    preserved: Registers
    returns: Registers
    callers: tuple[tuple[int, int], ...]
    counters: bytes | None


class SampledThread(NamedTuple):
    """A thread's stack, and how it was had.

    `stops` are the snapshots for which the thread was stopped (one that has taught us something is taken
    again).  `reading` is there when the last one was not.
    """

    snapshot: ThreadSnapshot
    stack: Stack
    generation: int  # of the modules
    modules: tuple[Module | None, ...]  # of each frame
    stops: tuple[ThreadSnapshot, ...]
    reading: SleepingThread | None
    kernel: tuple[str, ...] = ()  # functions in which it sleeps, innermost first
    again: int = 0  # so many of the outermost frames are those of the last look, in the same modules


class ThreadCapturer:
    """Looks at the threads of one process; with `stop` False it never stops one."""

    def __init__(
        self, target: LiveProcess, unwinder: Walker, *, stop: bool = True, kernel: bool = False
    ) -> None:
        self._target = target
        self._unwinder = unwinder
        self._stop = stop
        self._with_kernel = kernel
        self.kernel_refused = False
        self._expected: dict[int, frozenset[Module]] = {}  # on the last stack of each thread
        self._asked: dict[int, Asleep] = {}  # threads that were asked to stop where they slept
        self._waits: dict[int, int] = {}  # threads that will stop, and the generation when they were asked
        self._told: dict[int, _Told] = {}  # by the last stop of each thread that slept
        self._slept: dict[int, Asleep] = {}  # where each thread slept when it was read
        self._modules: dict[int, Module | None] = {}
        self._generation = -1

    def look(
        self,
        tid: int,
        state: str,
        patience_ns: int = PATIENCE_NS,
        only: Only = AWAKE,
        last: Located | None = None,
    ) -> SampledThread | NotCaptured:
        """Capture and unwind; once more when the first attempt has taught us something that it lacked.

        `state` is the thread's (proc(5)); one in state R is not read, one in state D never stopped.
        `patience_ns`: how long to wait for it to stop.  `only`: which threads are stopped; of others,
        those that sleep are read if it is `AWAKE`, or if this one was stopped already.  `last`: where its
        frames were before.  Raises as `LiveProcess.capture`.
        """
        target = self._target
        stops: list[ThreadSnapshot] = []
        for attempt in range(_LOOKS):
            checked_ns, checked = time.perf_counter_ns(), self._check_libraries(tid)
            only = AWAKE if stops else only
            generation, asked = target.index.generation, self._waits.pop(tid, None)
            taken = self._take(tid, state, patience_ns, only)
            if isinstance(taken, NotCaptured):
                if taken.waiting:
                    self._waits[tid] = generation
                if only is AWAKE and taken.off is not None and attempt < _LOOKS - 1:
                    state = "S"  # it has gone to sleep meanwhile
                    continue
                return taken._replace(stops=(*stops, *taken.stops))
            snapshot, stack, reading = taken
            if snapshot.capture is Capture.STOPPED:
                stops.append(snapshot)
                if snapshot.scheduled and snapshot.scheduled.stopped_ns < checked_ns and asked != generation:
                    checked = frozenset()  # it was captured before they were looked at, and after a change
            if attempt < _LOOKS - 1 and target.learn(tid, stack):
                continue
            generation, modules, again = self._modules_of(stack, last)
            # where libraries come and go, what cuts a stack short may be one that was not there for a moment
            cut_short = stack.stop_reason is not StopReason.OUTERMOST and target.index.has_changed
            settled = self._is_settled(tid, stack, modules, checked)
            if settled and not (cut_short and attempt < _DOUBTED):
                kernel = self._kernel(tid, reading) or (() if stack.frames else _KERNEL_WORKER)
                return SampledThread(
                    snapshot, stack, generation, modules, tuple(stops), reading, kernel, again
                )
            target.index.expire()  # so that it is seen next time
        why = "libraries were replaced by others while they were looked at"
        return NotCaptured(gone=False, why=why, stops=tuple(stops))

    def walk(self, snapshot: ThreadSnapshot, last: Located | None = None) -> SampledThread:
        """Walk what was captured already; nothing is checked, asked or done again."""
        stack = self._unwinder.walk(snapshot)
        generation, modules, again = self._modules_of(stack, last)
        return SampledThread(
            snapshot, stack, generation, modules, (), None, () if stack.frames else _KERNEL_WORKER, again
        )

    def breaks(self, tid: int) -> bool:
        """Whether the call in which a thread slept when it was last read fails when it is stopped there."""
        slept = self._slept.get(tid)
        return slept is not None and not self._target.restarts(slept)

    def let_rest(self, tid: int, until_ns: int) -> bool:
        """Give a thread time to go back to sleep, as a stop just then could make its call fail.

        Return whether that took any time.
        """
        waited = False
        while self._stop and self._target.proc.asleep(tid) is None and time.perf_counter_ns() < until_ns:
            time.sleep(_REST_S)
            waited = True
        return waited

    def _take(self, tid: int, state: str, patience_ns: int, only: Only) -> _Taken | NotCaptured:
        """Read a thread if it sleeps, stop it if it runs; the state may have changed by now."""
        reading = None if state == "R" else self._target.read(tid)
        if reading is None:
            return self._walked(tid, self._capture(tid, state, patience_ns, only))
        return self._from(reading, tid, state, patience_ns)

    def _from(self, reading: SleepingThread, tid: int, state: str, patience_ns: int) -> _Taken | NotCaptured:
        """Walk a thread that was read; where that is not enough, do what may be done about it."""
        self._slept[tid] = reading.asleep
        read = (reading.snapshot, self._unwinder.walk(reading.snapshot), reading)
        if not self._needs_stop(reading, read[1], state):
            return self._searched(*read)
        return (
            self._by_what_was_told(tid, reading)
            or self._by_stopping(tid, state, reading, patience_ns)
            or self._searched(*read)
        )

    def _searched(self, snapshot: ThreadSnapshot, stack: Stack, reading: SleepingThread) -> _Taken:
        """Search for the frame that hangs on a register which nobody may ask for."""
        if stack.stop_reason is StopReason.REGISTER_UNKNOWN:
            stack = self._unwinder.search(snapshot, stack)
        return snapshot, stack, reading

    def _by_what_was_told(self, tid: int, reading: SleepingThread) -> _Taken | None:
        """Walk with the registers of the last stop; believed if the callers are those of then.

        Of a leaf nothing on the stack says who has called it.  So that is what it was only if the thread has
        run but once since the stop: to go back to sleep.
        """
        told = self._told.get(tid)
        if told is None or told.asleep != reading.asleep:
            return None
        returns = told.returns if reading.has_run_once_since(told.counters) else {}
        registers = {**told.preserved, **returns, **reading.snapshot.registers}
        snapshot = reading.snapshot._replace(registers=registers, supposed=True)
        stack = self._unwinder.walk(snapshot)
        return (snapshot, stack, reading) if _callers(stack) == told.callers else None

    def _by_stopping(
        self, tid: int, state: str, reading: SleepingThread, patience_ns: int
    ) -> _Taken | NotCaptured | None:
        """Stop it, and remember what that tells; None: it cannot be stopped."""
        taken = self._capture(tid, state, max(patience_ns, _WORTH_WAITING_NS))
        self._asked[tid] = reading.asleep
        if isinstance(taken, NotCaptured) and not taken.waiting:
            return None
        return self._walked(tid, taken)

    def _walked(self, tid: int, taken: ThreadSnapshot | NotCaptured) -> _Taken | NotCaptured:
        """Walk a stopped thread; remember what calls preserve, if it was asked to stop where it slept."""
        if isinstance(taken, NotCaptured):
            return taken
        stack, asleep = self._unwinder.walk(taken), self._asked.pop(tid, None)
        if asleep is not None and asleep.sp == taken.registers[taken.arch.sp]:
            self._told[tid] = _told(asleep, taken, stack)
        return taken, stack, None

    def _capture(
        self, tid: int, state: str, patience_ns: int, only: Only = ANY
    ) -> ThreadSnapshot | NotCaptured:
        if state == "D":
            return NotCaptured(
                gone=False, why="in uninterruptible sleep (state D), where it cannot be stopped"
            )
        if not self._stop:
            return NotCaptured(gone=False, why="it runs, and nothing may be stopped (--no-stop)")
        return self._target.capture(tid, patience_ns, only)

    def _needs_stop(self, reading: SleepingThread, stack: Stack, state: str) -> bool:
        """Whether the stack hangs on a register that only a stop tells, and a stop is harmless.

        A thread that is stopped already (as a shell does it) has left its system call.
        """
        return (
            self._stop
            and state != "D"
            and stack.stop_reason is StopReason.REGISTER_UNKNOWN
            and (state == "T" or self._target.restarts(reading.asleep))
        )

    def _kernel(self, tid: int, reading: SleepingThread | None) -> tuple[str, ...]:
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

    def _check_libraries(self, tid: int) -> frozenset[Module]:
        """Return the modules, of those that a stack may show, that are in their places now."""
        expected = self._expected.get(tid, frozenset()) | self._target.index.changing
        for _ in range(_LOOKS):
            if not self._target.replaced(tid, expected):
                return expected
            expected = self._target.index.reload(expected)
            self._target.index.expire()  # the thread may run in what comes next
        return frozenset()

    def _is_settled(
        self, tid: int, stack: Stack, modules: tuple[Module | None, ...], checked: frozenset[Module]
    ) -> bool:
        """Whether what a stack lies in was there before it was captured, and is there still."""
        index = self._target.index
        opened = [*filter(None, modules)]
        mapped = self._expected[tid] = frozenset(opened)
        if self._target.replaced(tid, mapped):
            index.reload(mapped)
            return False
        if not mapped & index.changing <= checked:
            return False
        if len(opened) == len(modules):
            return True
        unopened = (frame for frame, module in zip(stack.frames, modules, strict=True) if module is None)
        return not any(index.is_unsettled(frame.lookup_pc) for frame in unopened)

    def _modules_of(self, stack: Stack, last: Located | None) -> tuple[int, tuple[Module | None, ...], int]:
        """Return the generation of the modules, those of the frames, and how many frames are as in `last`."""
        index, known = self._target.index, self._modules
        if index.generation != self._generation:
            self._generation = index.generation
            known.clear()
        frames, modules = (last.frames, last.modules) if last else ((), ())
        if last and last.generation != self._generation:
            frames = ()
        again = common_tail(stack.frames, frames)
        inner = [frame.lookup_pc for frame in stack.frames[: len(stack.frames) - again]]
        for pc in inner:
            if pc not in known:
                known[pc] = index.find(pc)
        return self._generation, (*[known[pc] for pc in inner], *modules[len(modules) - again :]), again

    def keep_only(self, tids: Iterable[int]) -> None:
        """Drop what is kept for threads that have ended."""
        alive = set(tids)
        self._expected = {tid: modules for tid, modules in self._expected.items() if tid in alive}
        self._asked = {tid: asleep for tid, asleep in self._asked.items() if tid in alive}
        self._waits = {tid: generation for tid, generation in self._waits.items() if tid in alive}
        self._told = {tid: told for tid, told in self._told.items() if tid in alive}
        self._slept = {tid: asleep for tid, asleep in self._slept.items() if tid in alive}


def is_seldom(ran_ns: int, of_ns: int) -> bool:
    """Whether a thread that ran for part of a time did so for less than one percent of it."""
    return ran_ns * _SELDOM <= of_ns


def _told(asleep: Asleep, taken: ThreadSnapshot, stack: Stack) -> _Told:
    arch, registers = taken.arch, taken.registers
    preserved = {n: value for n, value in registers.items() if n in arch.callee_saved}
    returns = {arch.ra: registers[arch.ra]} if arch.pushed_ra is None and arch.ra in registers else {}
    return _Told(asleep, preserved, returns, _callers(stack), taken.scheduled and taken.scheduled.after)


def _callers(stack: Stack) -> tuple[tuple[int, int], ...]:
    return tuple((frame.pc, frame.sp) for frame in stack.frames[1:])
