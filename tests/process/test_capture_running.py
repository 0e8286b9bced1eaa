"""Captures of running threads: which are asked to stop, and what becomes of those that stop late.

The facts of the kernel are invented, and the tracer only notes what it is asked.
"""

import threading
from types import SimpleNamespace

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.checkpoint import checkpoint
from sfsample.core.snapshot import LastRun
from sfsample.process.capture_running import RunningCapture, StopFilter
from sfsample.process.had_cpu import RunState, WakeUp
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.stack_copy import StackCopy
from sfsample.process.stop_request import StopState
from tests.builders.threads import thread as new_thread

PID = 100
CODE, STACK = 0x40_1000, 0x7000_0000
PENDING = NotCaptured(Reason.PENDING, "not yet")
ENDED = NotCaptured(Reason.GONE, "ended")


def new_capture():
    return RunningCapture(PID, AMD64, StackCopy(PID, AMD64, lambda _: None, 1024))


def test_balance_learned_wrongly_by_a_stop_is_corrected_when_the_thread_sleeps():
    """A thread that had a CPU may have lost it, and been given it again, before it stopped."""
    thread = new_thread(
        PID, counters=b"100 0 5", asleep=SyscallInfo(232, (), STACK, CODE), last_run=LastRun(b"7.1", 9000, 5)
    )
    thread.balance.learn(1, on_cpu=False)
    assert thread.balance.on_cpu(1) is False

    wake_up = WakeUp(0, b"se.exec_start : 9.9\n")
    missed = new_capture().capture(thread, stop_filter=StopFilter(awake=True, wake_up=wake_up))

    assert (missed.reason, missed.counters, missed.state) == (Reason.OFF_CPU, b"100 0 5", RunState.ASLEEP)
    assert thread.balance.on_cpu(1) is True


class LateTracer:
    """Asks threads to stop, and none of them does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stopped: set[int] = set()
        self.pending = {}

    def rehearse(self, tid):
        self.calls.append(("rehearse", tid))

    def stop(self, request, patience_ns):
        self.calls.append(("stop", patience_ns))
        request.state = StopState.REQUESTED
        self.pending[request.tid] = request
        return PENDING

    def end(self, request, _patience_ns):
        """Find that the thread has ended: another `stop`."""
        self.calls.append(("stop", request.tid))
        request.state = StopState.LOST
        self.pending.pop(request.tid, None)
        return ENDED

    def release(self):
        return 0

    def has_stopped(self, request):
        return request.tid in self.stopped

    def release_pending(self):
        return not self.pending


@pytest.fixture
def threads():
    return [new_thread(tid, counters=b"100 0 5") for tid in (1, 2, 3)]


@pytest.fixture
def late_capture(threads):
    """Threads 1, 2 and 3 were asked to stop, and have not yet."""
    capture = new_capture()
    capture.tracer = LateTracer()
    for thread in threads:
        assert capture.capture(thread, 0).reason is Reason.PENDING
    yield capture
    capture.close()


def test_checkpoint_captures_stopped_threads_before_they_are_asked_for(late_capture, threads, monkeypatch):
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    tracer = late_capture.tracer
    tracer.calls.clear()
    tracer.stop = tracer.end
    tracer.stopped = {1, 3}

    checkpoint()
    checkpoint()

    assert tracer.calls == [("stop", 1), ("stop", 3)]
    assert [thread.stop.is_pending for thread in threads] == [False, True, False]
    assert late_capture.capture(threads[0]) is ENDED
    assert tracer.calls == [("stop", 1), ("stop", 3)], "it was captured already"
    assert late_capture.capture(threads[0]) is ENDED
    assert tracer.calls[2:] == [("rehearse", 1), ("stop", 1)]


def test_no_thread_is_captured_during_the_capture_of_another(late_capture, threads, monkeypatch):
    """Both would be copied to one buffer."""
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    tracer, asked = late_capture.tracer, []
    tracer.stopped = {2}

    def stop(request, _patience_ns):
        asked.append(request.tid)
        checkpoint()
        return tracer.end(request, 0)

    tracer.stop = stop
    late_capture.capture(threads[0])
    assert asked == [1]
    checkpoint()
    assert asked == [1, 2]


def test_capture_that_was_not_asked_for_is_dropped_by_release_pending(late_capture, threads):
    late_capture.tracer.stopped = {2}
    late_capture.tracer.stop = late_capture.tracer.end
    late_capture.collect_stopped()
    late_capture.tracer.stop = lambda *_: None
    late_capture.tracer.reader = SimpleNamespace(read=lambda _tid: None)

    late_capture.release_pending()

    assert late_capture.capture(threads[1]) == NotCaptured(Reason.GONE, "killed while it was stopped")


def test_released_thread_is_not_stopped_again_by_a_checkpoint(late_capture, threads):
    """A dump releases threads that stop too late; they may sleep by now, and a stop make their calls fail."""
    for thread in threads[:2]:
        thread.stop.state = StopState.RELEASED
        del late_capture.tracer.pending[thread.tid]
    late_capture.release_pending()
    late_capture.tracer.stopped = {1, 2}
    late_capture.tracer.stop = None  # would fail

    late_capture.collect_stopped()

    assert [thread.stop.is_pending for thread in threads] == [False, False, True]


@pytest.mark.usefixtures("late_capture")
def test_checkpoint_on_another_os_thread_releases_nothing(late_capture, monkeypatch):
    """ptrace(2) binds a tracee to the OS thread that traces it."""
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    late_capture.tracer.has_stopped = late_capture.tracer.stop = None  # would fail
    other = threading.Thread(target=checkpoint)
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    other.start()
    other.join()
    assert not failed


@pytest.mark.parametrize(("left_at", "first"), [(b"9.9", 0), (b"9.8", 50)])
def test_preempted_thread_is_not_waited_for_and_a_pending_one_not_rehearsed(left_at, first):
    capture = new_capture()
    thread = new_thread(PID, counters=b"100 0 5", last_run=LastRun(left_at, 9000, 4))
    capture.tracer = tracer = LateTracer()
    stop_filter = StopFilter(
        awake=True, wake_up=WakeUp(0, b"se.exec_start : 9.9\nse.avg.last_update_time : 9000\n")
    )

    assert capture.capture(thread, 50, stop_filter).reason is Reason.PENDING
    assert capture.capture(thread, 50, stop_filter).reason is Reason.PENDING
    assert tracer.calls == [("rehearse", PID), ("stop", first), ("stop", 50)]
    capture.close()
