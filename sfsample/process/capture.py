"""Captures one thread in the gentlest way that gives its whole stack, unwinds it, and checks the result.

A thread that sleeps is read, not stopped, also if it fell asleep just before it was to be stopped.  It is
stopped only where its stack depends on a register that /proc does not give, and where the kernel carries on
with its system call afterwards as if nothing had happened; and once for each place where it sleeps, since the
registers that calls preserve are remembered and tried first the next time.  Where it may not be stopped, its
frame is searched for on the stack (`found: scan`, unwind/frame_search.py).

Libraries can be replaced by others at the same addresses: that they are in their places is checked before and
after.
"""

import logging
import time
from collections import Counter
from typing import NamedTuple, Protocol

from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason, common_tail
from sfsample.modules.location import Located
from sfsample.modules.module import Module
from sfsample.process.capture_running import ANY_THREAD, AWAKE_THREADS, StopFilter
from sfsample.process.capture_sleeping import SleepingThread
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.process import LiveProcess
from sfsample.process.python_capture import PythonCapture
from sfsample.process.stop_request import PATIENCE_NS
from sfsample.process.thread import LastStop, Thread
from sfsample.process.thread_files import KERNEL_STACK_REFUSED
from sfsample.runtimes.cpython.gil import Gil
from sfsample.runtimes.cpython.python_stack import PythonStack

_MAX_ATTEMPTS = 8
_MAX_DOUBTS = 3  # attempts in which a stack that ends too early is not believed while libraries come and go
_POLL_SLEEP_S = 0.000_05  # between two questions whether a thread sleeps
_SELDOM = 100  # a thread runs seldom that runs for less than 1/100 of the time
_MIN_PATIENCE_NS = 1_000_000  # for a thread that sleeps to stop: it will not be stopped there again

# The kernel's own threads in a process (io_uring, vhost) run no code of it; where they are is unknown while
# they run, or without --kernel.
_KERNEL_WORKER = ("kernel_worker",)

_CUT_SHORT = "only the innermost part of a stack was copied, as that took longer than --max-pause"
_log = logging.getLogger("sfsample.process")

_Walked = tuple[ThreadSnapshot, Stack, SleepingThread | None]


class Walker(Protocol):
    """The unwinder, as far as a capture needs it."""

    @property
    def rejected_rows(self) -> Counter[str]:
        """Answers of steppers that were not believed, and how often."""
        ...

    def walk(self, snapshot: ThreadSnapshot) -> Stack:
        """Return the stack of a thread."""
        ...

    def search(self, snapshot: ThreadSnapshot, stack: Stack) -> Stack:
        """Return the stack, continued where its last frame's CFA depends on a register that is unknown."""
        ...

    def resume(self, snapshot: ThreadSnapshot, stack: Stack, cfa: int) -> Stack:
        """Return the stack, continued behind its last frame, which ends at `cfa`; else the stack itself."""
        ...


class ThreadSource(Protocol):
    """Gives registers and stacks of threads: a live process, or all of its threads at one instant."""

    def read(self, thread: Thread) -> SleepingThread | None:
        """Return what a thread that sleeps shows without a stop; None: it does not sleep."""
        ...

    def capture(
        self, thread: Thread, patience_ns: int, stop_filter: StopFilter
    ) -> ThreadSnapshot | NotCaptured:
        """Return what a stop of a thread shows."""
        ...

    def restarts(self, asleep: SyscallInfo) -> bool:
        """Return whether a thread that sleeps in this call can be stopped without an effect on the call."""
        ...


class CapturedStack(NamedTuple):
    """A thread's stack, and how it was captured.

    `generation` is that of the module map, `modules` has one for each frame.  `stops` are the snapshots for
    which the thread was stopped (a capture that taught something is repeated), `reading` is there when the
    last one was not a stop.  `kernel` are the functions in which the thread sleeps, innermost first.  The
    outermost `again` frames are those of the last capture, in the same modules.  `python`: the Python frames.
    """

    snapshot: ThreadSnapshot
    stack: Stack
    generation: int
    modules: tuple[Module | None, ...]
    kernel: tuple[str, ...] = ()
    again: int = 0
    stops: tuple[ThreadSnapshot, ...] = ()
    reading: SleepingThread | None = None
    python: PythonStack | None = None


class ThreadCapturer:
    """Captures threads of one process, from `source`; with `stop` False it never stops a thread."""

    def __init__(
        self, process: LiveProcess, unwinder: Walker, *, stop: bool = True, kernel: bool = False,
        python: bool = False,
    ) -> None:  # fmt: skip
        self.python = PythonCapture(process) if python else None
        self._process = process
        self.source: ThreadSource = process
        self._unwinder = unwinder
        self._stop = stop
        self._with_kernel = kernel
        self.kernel_refused = False
        self._modules: dict[int, Module | None] = {}  # by address, as of `_generation`
        self._generation = -1

    def capture(
        self,
        thread: Thread,
        state: str,
        patience_ns: int = PATIENCE_NS,
        stop_filter: StopFilter = AWAKE_THREADS,
        last: Located | None = None,
    ) -> CapturedStack | NotCaptured:
        """Capture and unwind; again while an attempt has taught what it lacked.

        `state` is the thread's letter (proc(5)): R is not read, D never stopped.  `patience_ns`: how long to
        wait for the thread to stop.  `stop_filter`: which threads are stopped; of others, those that sleep
        are read if it is `AWAKE_THREADS`, or if this thread was stopped already.  `last`: where its frames
        were the last time. Raises as `LiveProcess.capture`.
        """
        process = self._process
        stops: list[ThreadSnapshot] = []
        for attempt in range(_MAX_ATTEMPTS):
            is_last = attempt == _MAX_ATTEMPTS - 1
            checked_ns, checked = time.perf_counter_ns(), self._check_libraries(thread)
            stop_filter = AWAKE_THREADS if stops else stop_filter
            generation, asked = process.modules.generation, thread.asked_generation
            thread.asked_generation = None
            self.prepare(thread)
            taken = self._take(thread, state, patience_ns, stop_filter)
            if isinstance(taken, NotCaptured):
                if taken.pending:
                    thread.asked_generation = generation
                if stop_filter is AWAKE_THREADS and taken.reason is Reason.OFF_CPU and not is_last:
                    state = "S"  # it has gone to sleep meanwhile
                    continue
                _log.debug("thread %d not captured (%s): %s", thread.tid, taken.reason.name, taken.detail)
                return taken._replace(stops=(*stops, *taken.stops))
            snapshot, stack, reading = taken
            if snapshot.capture is Capture.STOPPED:
                stops.append(snapshot)
                evidence = snapshot.scheduler
                # captured at a checkpoint, before the libraries were checked and after they had changed
                if evidence and evidence.stopped_ns < checked_ns and asked != generation:
                    checked = frozenset()
            if not is_last and process.copy.learn(thread, stack):
                _log.debug("thread %d is captured again: another stack of it was found", thread.tid)
                continue
            if self.python is not None and stack.stop_reason is not StopReason.OUTERMOST:
                stack = self.python.over_breaks(thread, snapshot, stack, self._unwinder.resume)
            captured = self._captured(snapshot, stack, last)
            if self.python is not None:
                python = self.python.stack(thread, snapshot.memory, stack.frames)
                captured = captured._replace(python=python)
                # a reading disturbs no thread, and counts for as long as the thread sleeps
                if reading is not None and attempt < _MAX_DOUBTS and self.python.is_doubtful(python):
                    continue
            # where libraries come and go, a missing one that was not there for a moment may cut a stack short
            cut_short = stack.stop_reason is not StopReason.OUTERMOST and process.modules.has_unmapped_files
            if self._is_certain(thread, stack, captured.modules, checked) and not (
                cut_short and attempt < _MAX_DOUBTS
            ):
                kernel = self._kernel(thread, reading) or captured.kernel
                return captured._replace(stops=tuple(stops), reading=reading, kernel=kernel)
            _log.debug("thread %d is captured again: libraries may have changed meanwhile", thread.tid)
            process.modules.allow_refresh()  # so that the change is seen the next time
        return NotCaptured(
            Reason.UNSTABLE, "libraries were replaced by others while it was captured", stops=tuple(stops)
        )

    def prepare(self, thread: Thread) -> None:
        """Have the next copy of a thread include what its Python frames need."""
        if self.python is not None:
            self.python.prepare(thread)

    def walk(self, snapshot: ThreadSnapshot, last: Located | None = None) -> CapturedStack:
        """Unwind a snapshot that exists already; nothing is checked or captured again."""
        return self._captured(snapshot, self._unwinder.walk(snapshot), last)

    def stop_breaks_call(self, thread: Thread) -> bool:
        """Return whether the system call in which a thread slept when it was last read fails by a stop."""
        return thread.asleep is not None and not self.source.restarts(thread.asleep)

    def wait_until_asleep(self, thread: Thread, until_ns: int) -> bool:
        """Give a thread time to go back to sleep, as a stop just then could make its call fail.

        Return whether that took any time.
        """
        waited, asleep = False, thread.files.asleep
        while self._stop and asleep() is None and time.perf_counter_ns() < until_ns:
            time.sleep(_POLL_SLEEP_S)
            waited = True
        return waited

    # -- read it, or stop it

    def _take(
        self, thread: Thread, state: str, patience_ns: int, stop_filter: StopFilter
    ) -> _Walked | NotCaptured:
        """Read a thread if it sleeps, stop it if it runs; the state may have changed by now."""
        reading = None if state == "R" else self.source.read(thread)
        if reading is None:
            return self._walk_stopped(thread, self._capture_running(thread, state, patience_ns, stop_filter))
        thread.asleep = reading.asleep
        stack = self._unwinder.walk(reading.snapshot)
        if not self._needs_stop(reading, stack, state):
            return self._search(reading, stack)
        return (
            self._walk_by_last_stop(thread, reading)
            or self._stop_asleep(thread, state, reading, patience_ns)
            or self._search(reading, stack)
        )

    def _needs_stop(self, reading: SleepingThread, stack: Stack, state: str) -> bool:
        """Return whether the stack depends on a register that only a stop gives, and a stop is harmless.

        A thread that is stopped already (as a shell does it) has left its system call.
        """
        return (
            self._stop
            and state != "D"
            and stack.stop_reason is StopReason.REGISTER_UNKNOWN
            and (state == "T" or self.source.restarts(reading.asleep))
        )

    def _search(self, reading: SleepingThread, stack: Stack) -> _Walked:
        """Search the stack for a frame whose CFA register is unknown."""
        if stack.stop_reason is StopReason.REGISTER_UNKNOWN:
            _log.debug("thread %d must not be stopped: its frame is searched for", reading.snapshot.tid)
            stack = self._unwinder.search(reading.snapshot, stack)
        return reading.snapshot, stack, reading

    def _walk_by_last_stop(self, thread: Thread, reading: SleepingThread) -> _Walked | None:
        """Walk with the registers of the last stop; believed if the callers are those of then.

        The stack does not hold the caller of a leaf function.  So its return register is used only if the
        thread has run just once since the stop: to go back to sleep.
        """
        last = thread.last_stop
        if last is None or last.asleep != reading.asleep:
            return None
        returns = last.return_register if reading.has_run_once_since(last.counters) else {}
        registers = {**last.preserved, **returns, **reading.snapshot.registers}
        snapshot = reading.snapshot._replace(registers=registers, assumed=True)
        stack = self._unwinder.walk(snapshot)
        return (snapshot, stack, reading) if _callers(stack) == last.callers else None

    def _stop_asleep(
        self, thread: Thread, state: str, reading: SleepingThread, patience_ns: int
    ) -> _Walked | NotCaptured | None:
        """Stop a thread that sleeps, and remember what that tells; None: it cannot be stopped."""
        _log.debug("thread %d sleeps, and is stopped: its stack depends on a register", thread.tid)
        taken = self._capture_running(thread, state, max(patience_ns, _MIN_PATIENCE_NS), ANY_THREAD)
        thread.asked_asleep = reading.asleep
        if isinstance(taken, NotCaptured) and not taken.pending:
            return None
        return self._walk_stopped(thread, taken)

    def _walk_stopped(self, thread: Thread, taken: ThreadSnapshot | NotCaptured) -> _Walked | NotCaptured:
        """Walk a stopped thread; remember what calls preserve, if it was asked to stop where it slept."""
        if isinstance(taken, NotCaptured):
            return taken
        stack, asleep = self._unwinder.walk(taken), thread.asked_asleep
        thread.asked_asleep = None
        if asleep is not None and asleep.sp == taken.registers[taken.arch.sp]:
            thread.last_stop = _last_stop(asleep, taken, stack)
        return taken, stack, None

    def _capture_running(
        self, thread: Thread, state: str, patience_ns: int, stop_filter: StopFilter
    ) -> ThreadSnapshot | NotCaptured:
        if state == "D":
            return NotCaptured(
                Reason.NOT_STOPPABLE, "in uninterruptible sleep (state D), where it cannot be stopped"
            )
        if not self._stop:
            return NotCaptured(Reason.NOT_STOPPABLE, "it runs, and nothing may be stopped (--no-stop)")
        return self.source.capture(thread, patience_ns, stop_filter)

    def _kernel(self, thread: Thread, reading: SleepingThread | None) -> tuple[str, ...]:
        """Return in which functions of the kernel a thread that was read sleeps, if it still does."""
        if reading is None or not self._with_kernel:
            return ()
        functions, counters = thread.files.kernel_stack(), thread.files.counters()
        self.kernel_refused |= functions is None and counters is not None
        return functions or () if counters == reading.counters else ()

    def gil(self, thread: Thread) -> Gil | None:
        """Return the GIL that a thread needs to run Python; None: it is unknown, or there is none."""
        return None if self.python is None else self.python.gil(thread)

    @property
    def python_problems(self) -> tuple[str, ...]:
        """Why Python frames are not shown; empty where they are, or the process has none."""
        return (self.python.problem,) if self.python is not None and self.python.problem else ()

    @property
    def problems(self) -> Counter[str]:
        """What could not be had, and answers of steppers that were not believed: how often."""
        found = {KERNEL_STACK_REFUSED: int(self.kernel_refused), _CUT_SHORT: self._process.copy.cut_short}
        return self._unwinder.rejected_rows + Counter(found) + Counter(self.python_problems)

    # -- the libraries in which a stack lies

    def _check_libraries(self, thread: Thread) -> frozenset[Module]:
        """Return the modules, of those that a stack may show, that are in their places now."""
        process = self._process
        expected = thread.modules | process.modules.unstable_modules
        for _ in range(_MAX_ATTEMPTS):
            if not process.identities.replaced(thread.tid, expected):
                return expected
            expected = process.modules.reload(expected)
            process.modules.allow_refresh()  # the thread may run in what comes next
        return frozenset()

    def _is_certain(
        self, thread: Thread, stack: Stack, modules: tuple[Module | None, ...], checked: frozenset[Module]
    ) -> bool:
        """Return whether what a stack lies in was there before the capture, and is there still."""
        module_map = self._process.modules
        opened = [*filter(None, modules)]
        mapped = thread.modules = frozenset(opened)
        if self._process.identities.replaced(thread.tid, mapped):
            module_map.reload(mapped)
            return False
        if not mapped & module_map.unstable_modules <= checked:
            return False
        if len(opened) == len(modules):
            return True
        unopened = (frame for frame, module in zip(stack.frames, modules, strict=True) if module is None)
        return not any(module_map.will_retry_open(frame.lookup_pc) for frame in unopened)

    def _captured(self, snapshot: ThreadSnapshot, stack: Stack, last: Located | None) -> CapturedStack:
        """Return a stack with the modules of its frames."""
        module_map, known = self._process.modules, self._modules
        if module_map.generation != self._generation:
            self._generation = module_map.generation
            known.clear()
        frames, modules = (last.frames, last.modules) if last else ((), ())
        if last and last.generation != self._generation:
            frames = ()
        again = common_tail(stack.frames, frames)
        inner = [frame.lookup_pc for frame in stack.frames[: len(stack.frames) - again]]
        for pc in inner:
            if pc not in known:
                known[pc] = module_map.find(pc)
        all_modules = (*[known[pc] for pc in inner], *modules[len(modules) - again :])
        kernel = () if stack.frames else _KERNEL_WORKER
        return CapturedStack(snapshot, stack, self._generation, all_modules, kernel, again)


def is_seldom(ran_ns: int, of_ns: int) -> bool:
    """Return whether a thread that ran for part of a time did so for less than one percent of it."""
    return ran_ns * _SELDOM <= of_ns


def _last_stop(asleep: SyscallInfo, taken: ThreadSnapshot, stack: Stack) -> LastStop:
    arch, registers = taken.arch, taken.registers
    preserved = {n: value for n, value in registers.items() if n in arch.callee_saved}
    returns = {arch.ra: registers[arch.ra]} if arch.pushed_ra is None and arch.ra in registers else {}
    return LastStop(asleep, preserved, returns, _callers(stack), taken.scheduler and taken.scheduler.after)


def _callers(stack: Stack) -> tuple[tuple[int, int], ...]:
    return tuple((frame.pc, frame.sp) for frame in stack.frames[1:])
