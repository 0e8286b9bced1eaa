"""Captures a running thread: stops it, copies registers and a piece of stack, and lets it run again.

While the thread is stopped (`_stop_and_copy`), sfsample only makes system calls.  It does all parsing,
look-ups of modules and allocations before the stop or after the release.  It always releases the thread.
"""

import gc
import time
from typing import Final, NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.snapshot import SchedulerEvidence, ThreadSnapshot
from sfsample.process.had_cpu import BeforeStop, RunState, WakeUp, balance_of, classify, times_run
from sfsample.process.not_captured import OTHER_PROCESS, NotCaptured, Reason
from sfsample.process.priority import REAL_TIME_PRIORITY
from sfsample.process.stack_copy import NO_LIMIT_NS, StackCopy
from sfsample.process.stop_request import PATIENCE_NS, Tracer
from sfsample.process.syscall_mending import mend
from sfsample.process.thread import Thread

_MAX_READINGS = 3  # attempts to read the scheduler's figures at one instant
_NO_CPU = "it has no CPU"


class StopFilter(NamedTuple):
    """The rule that says which threads may be stopped.

    With `wake_up`, sfsample stops a thread that waits for a CPU only if sfsample itself took the CPU from
    this thread.  If the kernel does not show which thread has a CPU, `wake_up` has no effect.
    """

    awake: bool  # True: sleeping threads must not be stopped
    wake_up: WakeUp = WakeUp(0)  # times when sfsample woke up and got a CPU


ANY_THREAD: Final = StopFilter(awake=False)
AWAKE_THREADS: Final = StopFilter(awake=True)


class CopiedThread(NamedTuple):
    """The values that sfsample read while a thread was stopped."""

    sp: int
    counters: bytes | None  # None: another process has the thread id
    mended: bool  # True: `mend` made the interrupted system call restart


def copy_stopped(
    tracer: Tracer, copy: StackCopy, thread: Thread, until_ns: int = NO_LIMIT_NS
) -> CopiedThread | None:
    """Read a stopped thread; copy its stack only until `until_ns` (perf_counter_ns); None: it was killed."""
    sp = tracer.reader.read(thread.tid)
    if sp is None:
        return None
    copy.fill(thread, sp, until_ns)
    return CopiedThread(sp, thread.files.counters(), mend(thread.tid, tracer.reader))


def snapshot_of(
    tracer: Tracer, copy: StackCopy, thread: Thread, copied: CopiedThread | None, stop_ns: int
) -> ThreadSnapshot | NotCaptured:
    """Return the snapshot of the thread that `tracer` and `copy` have read last."""
    if copied is None:
        return NotCaptured(Reason.GONE, "killed while it was stopped")
    if copied.counters is None:
        return NotCaptured(Reason.GONE, OTHER_PROCESS)
    registers = tracer.reader.by_dwarf_number()
    memory, bounded = copy.result(thread, copied.sp)
    eintr = not copied.mended and tracer.eintr(thread.tid, registers)
    return ThreadSnapshot(thread.tid, registers, memory, bounded, stop_ns, eintr, tracer.reader.arch)


class RunningCapture:
    """Captures threads of one process by stopping them, one at a time."""

    def __init__(self, pid: int, arch: Arch, copy: StackCopy, *, child: bool = False) -> None:
        self.pid = pid
        self._copy = copy
        self.tracer = Tracer(pid, arch, child=child)
        # captures that checkpoints have made; the next `capture` of the thread returns them
        self._collected: dict[Thread, ThreadSnapshot | NotCaptured] = {}
        self._is_holding = False  # True: PENDING_STOPS has `collect_stopped`
        self._busy = False
        self.max_held_ns = NO_LIMIT_NS

    @property
    def is_active(self) -> bool:
        """True if a stop is pending, or if the caller has not yet fetched a capture made by a checkpoint."""
        return bool(self.tracer.pending or self._collected)

    def capture(
        self, thread: Thread, patience_ns: int = PATIENCE_NS, stop_filter: StopFilter = ANY_THREAD
    ) -> ThreadSnapshot | NotCaptured:
        """Stop a thread, copy registers and stack, and release it; do all other work after the release.

        The check with `stop_filter` comes just before the stop, so that its result is still true at the stop.
        """
        if thread in self._collected:
            return self._collected.pop(thread)
        request, tracer = thread.stop, self.tracer
        was_pending = request.is_pending  # the thread may have stopped already
        if not was_pending:
            tracer.rehearse(thread.tid)
            self._copy.rehearse(thread)
        collecting, self._busy = gc.isenabled(), True
        gc.disable()  # no garbage collection during the pause
        if not self._is_holding:
            PENDING_STOPS.add(self.collect_stopped)
            self._is_holding = True
            REAL_TIME_PRIORITY.begin()
        try:
            if not was_pending:
                refusal = self._look_before(thread, stop_filter)
                if refusal is not None:
                    return refusal
                if request.before.preempted_by_us:
                    patience_ns = 0  # the thread waits for the CPU on which sfsample runs
            return self._stop_and_copy(thread, patience_ns)
        finally:
            if collecting:
                gc.enable()
            self._busy = False
            if not tracer.pending:
                self.close()

    def _stop_and_copy(self, thread: Thread, patience_ns: int) -> ThreadSnapshot | NotCaptured:
        request, tracer, copied, stopped_ns = thread.stop, self.tracer, None, 0
        try:
            missed = tracer.stop(request, patience_ns)
            if missed is None:
                stopped_ns = time.perf_counter_ns()
                copied = copy_stopped(tracer, self._copy, thread, stopped_ns + self.max_held_ns)
        finally:
            stop_ns = tracer.release()
            now = time.perf_counter_ns()
        if missed is not None:
            return missed
        snapshot = snapshot_of(tracer, self._copy, thread, copied, stop_ns)
        if copied is None or isinstance(snapshot, NotCaptured):
            return snapshot
        before, after = request.before, copied.counters
        thread.balance.learn(before.balance, on_cpu=times_run(after) == times_run(before.counters))
        interrupted = tracer.interrupted_sleep(snapshot.registers)
        evidence = SchedulerEvidence(
            before.counters, after, stopped_ns, interrupted, before.preempted_by_us,
            held_ns=(now - stopped_ns, now - request.last_running_ns),
            call=None if interrupted else tracer.reader.call,
        )  # fmt: skip
        return snapshot._replace(scheduler=evidence)

    # -- before the stop

    def _look_before(self, thread: Thread, stop_filter: StopFilter) -> NotCaptured | None:
        """Store the scheduler's figures; return the reason why the thread must not be stopped, or None."""
        before = thread.stop.before = self._observe(thread, stop_filter)
        if before.on_cpu or not stop_filter.awake:
            return None
        wake_up = stop_filter.wake_up
        state = classify(before, None, wake_up)
        if before.last_run is not None and state not in (RunState.ASLEEP, RunState.PREEMPTED_BY_US):
            state = classify(before, None, wake_up._replace(own_run=wake_up.read_again()))
        if state is RunState.ASLEEP:
            thread.balance.learn(before.balance, on_cpu=False)
        if state in (RunState.ASLEEP, RunState.WAITING):
            if before.counters is None:
                return NotCaptured(Reason.GONE, "exited")
            return NotCaptured(Reason.OFF_CPU, _NO_CPU, before.counters, state)
        if times_run(thread.files.counters()) == times_run(before.counters):  # got no CPU since `_observe`
            preempted = None if before.last_run is None else state is RunState.PREEMPTED_BY_US
            thread.stop.before = before._replace(preempted_by_us=preempted)
        return None

    def _observe(self, thread: Thread, stop_filter: StopFilter) -> BeforeStop:
        """Read the scheduler's figures of a thread, all at one instant if possible.

        `asleep` is read first: a thread that waits for a CPU cannot fall asleep before it gets a CPU.
        """
        files = thread.files
        counters = files.counters()
        for _ in range(_MAX_READINGS if stop_filter.wake_up.own_run else 0):
            earlier, asleep = counters, files.asleep() is not None
            run, counters = files.last_run(), files.counters()
            balance = balance_of(earlier, run, counters)
            if balance is not None:
                return BeforeStop(
                    counters, asleep, balance, thread.balance.on_cpu(balance), run, preempted_by_us=False
                )
        return BeforeStop(counters, files.asleep() is not None)

    # -- threads that have not stopped in time

    def collect_stopped(self) -> None:
        """Capture and release the threads that have stopped by now; `capture` returns the results later."""
        for request in () if self._busy else tuple(self.tracer.pending.values()):
            thread = request.thread
            if thread is not None and self.tracer.has_stopped(request):
                captured = self.capture(thread, 0)
                if not request.is_pending:
                    self._collected[thread] = captured

    def release_pending(self) -> bool:
        """Release threads that stopped late, without a capture; return True if no stop is pending."""
        self._collected.clear()  # captures that the caller has not fetched
        if not self._is_holding:
            return True  # no thread is held, and no stop is pending
        released = self.tracer.release_pending()
        if released:
            self.close()
        return released

    def close(self) -> None:
        """Leave PENDING_STOPS.  The kernel releases late threads when the tracing OS thread ends."""
        if self._is_holding:
            self._is_holding = False
            REAL_TIME_PRIORITY.end()
            PENDING_STOPS.remove(self.collect_stopped)
