"""Captures and unwinds one thread, in the gentlest way that gives the complete stack, and checks the result.

sfsample reads a sleeping thread instead of stopping it.  Sometimes the stack depends on a register that /proc
does not give.  Then sfsample stops the thread, if the kernel can restart its system call so that the program
does not notice the stop.  sfsample tries the callee-saved registers of this stop at later captures, so a
thread that sleeps again in the same function needs no second stop.  If a stop would make the system call
fail, sfsample searches the stack for the frame (`found: scan`, unwind/frame_search.py).

The target can replace a library by another library at the same addresses.  So sfsample checks the libraries
before and after each capture.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sfsample.core.memory import BytesMemory
from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason, common_tail
from sfsample.modules.location import Located
from sfsample.modules.module import Module
from sfsample.process.capture_running import ANY_THREAD, AWAKE_THREADS, StopFilter
from sfsample.process.capture_sleeping import SleepingThread
from sfsample.process.consistent_capture import ConsistentCapture
from sfsample.process.go_capture import FoundGoroutine, GoCapture
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.process import LiveProcess
from sfsample.process.python_capture import PythonCapture
from sfsample.process.stop_request import PATIENCE_NS
from sfsample.process.syscall_names import syscall_name
from sfsample.process.thread import LastStop, Thread
from sfsample.process.thread_files import KERNEL_STACK_REFUSED
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.threads import Gil
from sfsample.runtimes.go.layout import Goroutine
from sfsample.unwind.unwinder import Unwinder

_MAX_ATTEMPTS = 8
_MAX_DOUBTS = 3  # repeated captures of a stack that may be incomplete only for a moment
_POLL_SLEEP_S = 0.000_05  # pause in seconds between two checks whether a thread sleeps
_MIN_PATIENCE_NS = 1_000_000  # least `patience_ns` for the stop of a sleeping thread

# A kernel worker (io_uring, vhost) is a thread of the process, but runs no code of the program.  sfsample
# can read the kernel functions of a worker only while the worker sleeps, and only with --kernel.
_KERNEL_WORKER = ("kernel_worker",)

_CUT_SHORT = "only the innermost part of a stack was copied, as copying took longer than --max-pause"
_log = logging.getLogger("sfsample.process")

_Walked = tuple[ThreadSnapshot, Stack, SleepingThread | None]


class CapturedStack(NamedTuple):
    """A thread's stack, and how it was captured."""

    snapshot: ThreadSnapshot
    stack: Stack
    generation: int  # version of the module map
    modules: tuple[Module | None, ...]  # module of each frame
    kernel: tuple[str, ...] = ()  # kernel functions in which the thread was, innermost first
    again: int = 0  # number of outermost frames that, with their modules, equal the last capture
    stops: tuple[ThreadSnapshot, ...] = ()  # snapshots for which sfsample stopped the thread
    reading: SleepingThread | None = None  # the last snapshot, if sfsample took it without a stop
    python: PythonStack | None = None  # the Python frames
    has_gil: bool | None = True  # True: the thread held its GIL, or --gil is off; None: unknown


class ThreadCapturer:
    """Captures threads of one process; `stop` False: never stops a thread.

    `kernel`: None: add the system call of a running thread; True: also kernel functions of a sleeping thread.
    """

    def __init__(
        self, process: LiveProcess, unwinder: Unwinder, *, stop: bool = True, kernel: bool | None = False,
        python: bool = False, gil: bool = False,
    ) -> None:  # fmt: skip
        self.python = PythonCapture(process, with_gil=gil) if python or gil else None
        self.go = GoCapture(process)
        self._process = process
        self.source: LiveProcess | ConsistentCapture = process
        self._unwinder = unwinder
        self._stop = stop
        self._with_kernel = kernel
        self.kernel_refused = False
        self._modules: dict[int, Module | None] = {}  # address -> module, at `_generation`
        self._generation = -1

    def capture(
        self, thread: Thread, state: str, patience_ns: int = PATIENCE_NS,
        stop_filter: StopFilter = AWAKE_THREADS, last: Located | None = None,
    ) -> CapturedStack | NotCaptured:  # fmt: skip
        """Capture and unwind a thread; capture it again if the walk needed memory that was not copied.

        `state`: letter of the thread's state (proc(5)).  In R, the thread is stopped; in D, it is only read.
        `patience_ns`: the longest wait until the thread stops.  `stop_filter`: the threads that may be
        stopped; with `AWAKE_THREADS`, a thread that has fallen asleep is read.  `last`: the frames of the
        last capture.  Raises the errors of `LiveProcess.capture`.
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
                if taken.reason is Reason.PENDING:
                    thread.asked_generation = generation
                if stop_filter is AWAKE_THREADS and taken.reason is Reason.OFF_CPU and not is_last:
                    state = "S"  # the new state: the thread has fallen asleep
                    continue
                _log.debug("thread %d not captured (%s): %s", thread.tid, taken.reason.name, taken.detail)
                return taken._replace(stops=(*stops, *taken.stops))
            snapshot, stack, reading = taken
            if snapshot.capture is Capture.STOPPED:
                stops.append(snapshot)
                evidence = snapshot.scheduler
                # a checkpoint captured the thread before `_check_libraries`, perhaps with other libraries
                if evidence and evidence.stopped_ns < checked_ns and asked != generation:
                    checked = frozenset()
            if not is_last and (process.copy.learn(thread, stack) or self.go.learn(thread, snapshot, stack)):
                _log.debug("thread %d is captured again: the walk leads to another stack", thread.tid)
                continue
            captured = self._with_python(thread, snapshot, stack, last)
            stack = captured.stack
            # another capture may show more Python frames; a sleeping thread can be read again without a stop
            is_doubtful = self.python is not None and self.python.is_doubtful(captured.python)
            if reading is not None and attempt < _MAX_DOUBTS and is_doubtful:
                continue
            # a stack may end early because a library is unmapped for a moment
            cut_short = stack.stop_reason is not StopReason.OUTERMOST and process.modules.has_unmapped_files
            # if the walk has read the maps again, the maps may be newer than the copied stack
            is_behind = generation and process.modules.generation != generation and not attempt
            if self._is_certain(thread, stack, captured.modules, checked) and not (
                is_behind or (cut_short and attempt < _MAX_DOUBTS)
            ):
                kernel = self._kernel(thread, captured, reading)
                return captured._replace(stops=tuple(stops), reading=reading, kernel=kernel)
            _log.debug("thread %d is captured again: libraries may have changed meanwhile", thread.tid)
            process.modules.allow_refresh()  # the next capture sees the change
        return NotCaptured(
            Reason.UNSTABLE, "its libraries were replaced during each capture", stops=tuple(stops)
        )

    def prepare(self, thread: Thread) -> None:
        """Let the next copy of a thread include the memory that its Python and Go frames need."""
        thread.beside = None if self.python is None else thread.beside
        if self.python is not None:
            self.python.prepare(thread)
        self.go.prepare(thread)

    def walk(self, snapshot: ThreadSnapshot, last: Located | None = None) -> CapturedStack:
        """Unwind an existing snapshot, without any check and without another capture."""
        return self._captured(snapshot, self._unwinder.walk(snapshot), last)

    def goroutines(self, should_stop: Callable[[], bool]) -> Iterator[FoundGoroutine]:
        """Yield all goroutines of a Go program.  The stack of a goroutine is None while a thread runs it."""
        for goroutine in self.go.goroutines(should_stop):
            stack = self.parked_stack(goroutine) if goroutine.stack else None
            unlocks = self.go.unlocks(goroutine, stack) if stack is not None else ()
            yield FoundGoroutine(goroutine, stack, unlocks)

    def parked_stack(self, goroutine: Goroutine) -> Stack:
        """Return the stack of a goroutine that no thread runs."""
        arch = self._process.arch
        registers = {arch.ra: goroutine.ra}  # on AMD64 not a register, but the key of the pc
        registers |= {arch.pc: goroutine.pc, arch.sp: goroutine.sp, arch.fp: goroutine.fp}
        memory = BytesMemory(goroutine.sp, goroutine.stack, arch.byteorder)
        is_cut = goroutine.sp + len(goroutine.stack) < goroutine.high
        snapshot = ThreadSnapshot(0, registers, memory, is_cut, 0, False, arch)
        return self._unwinder.walk_parked(snapshot, exact=bool(goroutine.ra))

    def stop_breaks_call(self, thread: Thread) -> bool:
        """Return True if a stop would break the system call in which sfsample last saw the thread asleep."""
        return thread.asleep is not None and not self.source.restarts(thread.asleep)

    def wait_until_asleep(self, thread: Thread, until_ns: int) -> bool:
        """Wait until a thread sleeps, or until `until_ns` (perf_counter_ns).

        Return True if the thread was awake.  A stop just before a sleep could make a system call fail.
        """
        waited, asleep = False, thread.files.asleep
        while self._stop and asleep() is None and time.perf_counter_ns() < until_ns:
            time.sleep(_POLL_SLEEP_S)
            waited = True
        return waited

    # -- reading or stopping a thread

    def _take(
        self, thread: Thread, state: str, patience_ns: int, stop_filter: StopFilter
    ) -> _Walked | NotCaptured:
        """Read a thread if it sleeps now, stop it if it runs; `state` may be out of date."""
        reading = None if state == "R" else self.source.read(thread)
        if reading is None:
            return self._walk_stopped(thread, self._capture_running(thread, state, patience_ns, stop_filter))
        thread.asleep = reading.asleep
        reading = reading._replace(snapshot=self.go.complete(thread, reading.snapshot))
        stack = self._unwinder.walk(reading.snapshot)
        if not self._needs_stop(reading, stack, state):
            return self._search(reading, stack)
        return (
            self._walk_by_last_stop(thread, reading)
            or self._stop_asleep(thread, state, reading, patience_ns)
            or self._search(reading, stack)
        )

    def _needs_stop(self, reading: SleepingThread, stack: Stack, state: str) -> bool:
        """Return True if the stack depends on a register that only a stop gives, and a stop is harmless.

        A thread that is already stopped (by a shell, for example) has left its system call.
        """
        return (
            self._stop
            and state != "D"
            and stack.stop_reason is StopReason.REGISTER_UNKNOWN
            and (state == "T" or self.source.restarts(reading.asleep))
        )

    def _search(self, reading: SleepingThread, stack: Stack) -> _Walked:
        if stack.stop_reason is StopReason.REGISTER_UNKNOWN:
            _log.debug("thread %d must not be stopped: its frame is searched for", reading.snapshot.tid)
            stack = self._unwinder.search(reading.snapshot, stack)
        return reading.snapshot, stack, reading

    def _walk_by_last_stop(self, thread: Thread, reading: SleepingThread) -> _Walked | None:
        """Walk with the registers of the last stop; trust the walk if it finds the same callers as then.

        A leaf function may have its return address only in a register.  The walk uses the old value of this
        register only if the thread has run exactly once since the stop: to fall asleep again.
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
        """Stop a sleeping thread, and keep its registers for later captures; None: it cannot be stopped."""
        _log.debug("thread %d sleeps, and is stopped: its stack depends on a register", thread.tid)
        taken = self._capture_running(thread, state, max(patience_ns, _MIN_PATIENCE_NS), ANY_THREAD)
        thread.asked_asleep = reading.asleep
        if isinstance(taken, NotCaptured) and taken.reason is not Reason.PENDING:
            return None
        return self._walk_stopped(thread, taken)

    def _walk_stopped(self, thread: Thread, taken: ThreadSnapshot | NotCaptured) -> _Walked | NotCaptured:
        """Walk a stopped thread; if the thread was asleep, keep its callee-saved registers."""
        if isinstance(taken, NotCaptured):
            return taken
        taken = self.go.complete(thread, taken)
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

    def _with_python(
        self, thread: Thread, snapshot: ThreadSnapshot, stack: Stack, last: Located | None
    ) -> CapturedStack:
        if self.python is None:
            return self._captured(snapshot, stack, last)
        if stack.stop_reason is not StopReason.OUTERMOST:
            stack = self.python.over_breaks(thread, snapshot, stack, self._unwinder.resume)
        has_gil = self.python.has_gil(thread, snapshot.memory, stack.frames)
        python = self.python.stack(thread, snapshot.memory, stack.frames)
        return self._captured(snapshot, stack, last)._replace(python=python, has_gil=has_gil)

    def _kernel(
        self, thread: Thread, captured: CapturedStack, reading: SleepingThread | None
    ) -> tuple[str, ...]:
        """Return the kernel functions of a thread, as far as the flags ask for them; empty if unknown."""
        evidence = captured.snapshot.scheduler
        if reading is not None and self._with_kernel:
            functions, counters = thread.files.kernel_stack(), thread.files.counters()
            self.kernel_refused |= functions is None and counters is not None
            if functions and counters == reading.counters:  # the thread has not run meanwhile
                return functions
        elif evidence is not None and self._with_kernel is not False:
            call = None if evidence.call is None else syscall_name(evidence.call)
            return captured.kernel or (() if call is None else (f"sys_{call}",))
        return captured.kernel

    def gil(self, thread: Thread) -> Gil | None:
        """Return the GIL that a thread needs to run Python; None: unknown, or there is none."""
        return None if self.python is None else self.python.gil(thread)

    @property
    def language_problems(self) -> tuple[str, ...]:
        """Reasons why Python frames are missing, or why Go stacks end early."""
        python = "" if self.python is None else self.python.problem
        return tuple(filter(None, (python, self.go.problem, self.go.lost)))

    @property
    def problems(self) -> Counter[str]:
        """Problems of the captures, and rejected results of steppers, each with its count."""
        found = {KERNEL_STACK_REFUSED: int(self.kernel_refused), _CUT_SHORT: self._process.copy.cut_short}
        return self._unwinder.rejected_rows + Counter(found) + Counter(self.language_problems)

    # -- the libraries in which a stack lies

    def _check_libraries(self, thread: Thread) -> frozenset[Module]:
        """Return the modules of the last stack and the unstable modules, after a check of their mappings."""
        process = self._process
        self._have_moved(thread.modules | process.modules.unstable_modules)
        expected = thread.modules | process.modules.unstable_modules
        for _ in range(_MAX_ATTEMPTS):
            if not process.identities.replaced(thread.tid, expected):
                return expected
            expected = process.modules.reload(expected)
            process.modules.allow_refresh()  # the thread may enter a library that is mapped later
        return frozenset()

    def _is_certain(
        self, thread: Thread, stack: Stack, modules: tuple[Module | None, ...], checked: frozenset[Module]
    ) -> bool:
        """Return True if the modules of a stack were in place before the capture, and still are."""
        module_map = self._process.modules
        opened = [*filter(None, modules)]
        mapped = thread.modules = frozenset(opened)
        if self._process.identities.replaced(thread.tid, mapped):
            module_map.reload(mapped)
            return False
        if not mapped & module_map.unstable_modules <= checked:
            return False
        without_module: frozenset[int] = frozenset()
        if len(opened) != len(modules):  # usually each frame has a module
            frames = zip(stack.frames, modules, strict=True)
            without_module = frozenset(frame.lookup_pc for frame, module in frames if module is None)
        if self._have_moved(mapped, without_module):
            return False
        return not any(map(module_map.will_retry_open, without_module))

    def _have_moved(self, modules: frozenset[Module], without_module: frozenset[int] = frozenset()) -> bool:
        """Return True if pages of `modules` were replaced since the maps were read.

        False for a `ConsistentCapture`, which has read the maps while all threads were stopped.
        """
        identities = self._process.identities
        return self.source is self._process and identities.moved(modules, without_module)

    def _captured(self, snapshot: ThreadSnapshot, stack: Stack, last: Located | None) -> CapturedStack:
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


def _last_stop(asleep: SyscallInfo, taken: ThreadSnapshot, stack: Stack) -> LastStop:
    arch, registers = taken.arch, taken.registers
    preserved = {n: value for n, value in registers.items() if n in arch.callee_saved}
    returns = {arch.ra: registers[arch.ra]} if arch.pushed_ra is None and arch.ra in registers else {}
    return LastStop(asleep, preserved, returns, _callers(stack), taken.scheduler and taken.scheduler.after)


def _callers(stack: Stack) -> tuple[tuple[int, int], ...]:
    return tuple((frame.pc, frame.sp) for frame in stack.frames[1:])
