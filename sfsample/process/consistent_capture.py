"""Captures every thread of a process at one instant.

sfsample stops one running thread after another, and releases them only after it has captured all of them,
whatever happens.  Meanwhile sfsample reads the sleeping threads.
"""

import gc
import time
from typing import NamedTuple

from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.process.capture_running import StopFilter, copy_stopped, snapshot_of
from sfsample.process.capture_sleeping import SleepingThread, read_sleeping_thread
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.priority import REAL_TIME_PRIORITY
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.process import LiveProcess
from sfsample.process.stop_request import StopRequest, Tracer
from sfsample.process.thread import Thread

_MAX_ROUNDS = 4  # listings of the threads: new threads may start while sfsample stops the listed threads
_LATE_STOP_S = 1.0  # wait in seconds for threads that did not stop in time
_POLL_SLEEP_S = 0.001

_NOT_AT_THAT_INSTANT = NotCaptured(Reason.NOT_STOPPABLE, "ran, but not at the instant of the capture")
_TRACED_THEN = NotCaptured(Reason.REFUSED, "another process traced it during the capture")

Captures = dict[int, ThreadSnapshot | NotCaptured]


class ConsistentCapture(NamedTuple):
    """The captured threads, by thread id.  For `ThreadCapturer`, this object replaces a `LiveProcess`."""

    stopped: Captures
    asleep: dict[int, SleepingThread]
    ran: tuple[int, ...]  # sleeping threads that ran meanwhile: their stacks are from another instant

    def read(self, thread: Thread) -> SleepingThread | None:
        """Return the reading of a sleeping thread; None: the thread did not sleep, or was unreadable."""
        return self.asleep.get(thread.tid)

    def capture(
        self, thread: Thread, _patience_ns: int, _stop_filter: StopFilter
    ) -> ThreadSnapshot | NotCaptured:
        """Return the snapshot of a thread that was stopped, or the reason why the snapshot is missing."""
        return self.stopped.get(thread.tid, _NOT_AT_THAT_INSTANT)

    def restarts(self, _asleep: SyscallInfo) -> bool:
        """Return False: sfsample stops no more threads."""
        return False


def capture_consistently(process: LiveProcess) -> ConsistentCapture:
    """Capture every thread of a process, and read its memory map at that instant."""
    tracers: dict[int, Tracer] = {}
    stopped: Captures = {}
    proc, copy, arch = process.proc, process.copy, process.running_capture.tracer.reader.arch
    gc_was_enabled = gc.isenabled()
    with PENDING_STOPS.calling(lambda: None):  # Ctrl-Z cannot suspend sfsample meanwhile
        gc.disable()
        REAL_TIME_PRIORITY.begin()
        try:
            asleep = _stop_running(process, tracers, stopped)
            readings = {tid: read_sleeping_thread(arch, copy, process.thread(tid)) for tid in asleep}
            held = {tid: tracer for tid, tracer in tracers.items() if tid not in stopped}
            for tid, tracer in held.items():
                thread = process.thread(tid)
                stopped[tid] = snapshot_of(tracer, copy, thread, copy_stopped(tracer, copy, thread), 0)
            process.modules.refresh()
            ran = tuple(tid for tid, counters in asleep.items() if proc.thread(tid).counters() != counters)
        finally:
            for tracer in tracers.values():
                tracer.release()
            REAL_TIME_PRIORITY.end()
            if gc_was_enabled:
                gc.enable()
        _release_late(tracers)
    for tid, taken in stopped.items():
        if isinstance(taken, NotCaptured) and taken.reason is Reason.REFUSED:
            stopped[tid] = process.refusal(tid) or _TRACED_THEN
    return ConsistentCapture(stopped, {tid: read for tid, read in readings.items() if read}, ran)


def _stop_running(
    process: LiveProcess, tracers: dict[int, Tracer], failed: Captures
) -> dict[int, bytes | None]:
    """Stop threads until no thread runs; return the scheduler's counters of the sleeping threads."""
    asleep: dict[int, bytes | None] = {}
    proc, arch = process.proc, process.running_capture.tracer.reader.arch
    for _ in range(_MAX_ROUNDS):
        before = len(tracers)
        for tid, stat in proc.thread_stats():
            if tid in tracers or stat.state in "ZX":
                continue
            if stat.state != "R":
                asleep[tid] = proc.thread(tid).counters()
                continue
            asleep.pop(tid, None)
            tracers[tid] = tracer = Tracer(process.pid, arch, child=process.is_child)
            failure = tracer.stop(StopRequest(tid))
            if failure is not None:
                failed[tid] = failure
        if len(tracers) == before:
            break
    return asleep


def _release_late(tracers: dict[int, Tracer]) -> None:
    """Release threads that stop within `_LATE_STOP_S`; the end of the tracing OS thread releases the rest."""
    deadline = time.monotonic() + _LATE_STOP_S
    late = list(tracers.values())
    while (late := [each for each in late if not each.release_pending()]) and time.monotonic() < deadline:
        time.sleep(_POLL_SLEEP_S)
