"""Every transition of a stop request, with a kernel that the test invents.

What the real kernel does is in tests/live/test_pause_ends.py and tests/live/test_signals.py.
"""

import os
import signal
from errno import EPERM, ESRCH
from types import SimpleNamespace

import pytest

from sfsample.core.arch import AMD64
from sfsample.process import stop_request as module
from sfsample.process.exec_guard import TOO_YOUNG
from sfsample.process.had_cpu import BeforeStop
from sfsample.process.not_captured import Reason
from sfsample.process.ptrace import PTRACE_EVENT_STOP, PtraceError
from sfsample.process.stop_request import StopRequest, StopState, Tracer

PID, TID = 100, 101
EVENT_STOP = PTRACE_EVENT_STOP << 16 | signal.SIGTRAP << 8 | 0x7F
SIGNAL_STOP = signal.SIGUSR1 << 8 | 0x7F
EXITED = 0


class FakeKernel:
    """Answers the calls that a tracer makes.  `statuses` has the wait status of each thread that has one."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.children = {PID, TID}  # that wait(2) knows
        self.refuses = 0  # errno of PTRACE_SEIZE
        self.ends = False  # between PTRACE_SEIZE and PTRACE_INTERRUPT
        self.detaches = True  # PTRACE_DETACH succeeds
        self.calls: list[tuple[object, ...]] = []

    def seize(self, tid):
        self.calls.append(("seize", tid))
        if self.refuses:
            raise PtraceError("refused", self.refuses, tid)

    def interrupt(self, tid):
        self.calls.append(("interrupt", tid))
        return not self.ends

    def detach(self, tid, number):
        self.calls.append(("detach", tid, number))
        return self.detaches

    def waitpid(self, tid, _flags):
        if tid not in self.children:
            raise ChildProcessError
        return (tid, self.statuses.pop(tid)) if tid in self.statuses else (0, 0)

    def waitid(self, _kind, tid, _flags):
        if tid not in self.children:
            raise ChildProcessError
        return SimpleNamespace(si_code=os.CLD_TRAPPED) if tid in self.statuses else None


@pytest.fixture
def kernel(monkeypatch):
    made = FakeKernel()
    for name in ("seize", "interrupt", "detach"):
        monkeypatch.setattr(module, name, getattr(made, name))
    monkeypatch.setattr(module, "signal_of", lambda _: 0)
    monkeypatch.setattr(module, "mend", lambda *_: False)
    monkeypatch.setattr(module.os, "waitpid", made.waitpid)
    monkeypatch.setattr(module.os, "waitid", made.waitid)
    return made


@pytest.fixture
def tracer():
    made = Tracer(PID, AMD64)
    made.reader = SimpleNamespace(read=lambda _: 0x7000)
    return made


def requested(tracer, kernel, tid=TID):
    """A request for a thread that has not stopped."""
    request = StopRequest(tid)
    assert tracer.stop(request, 0).reason is Reason.PENDING
    assert (request.state, tracer.pending) == (StopState.REQUESTED, {tid: request})
    kernel.calls.clear()
    return request


def test_idle_to_stopped_to_released(tracer, kernel):
    request = StopRequest(TID)
    assert request.state is StopState.IDLE
    kernel.statuses[TID] = EVENT_STOP
    assert tracer.stop(request) is None
    assert request.state is StopState.STOPPED
    assert tracer.release() > 0
    assert request.state is StopState.RELEASED
    assert kernel.calls == [("seize", TID), ("interrupt", TID), ("detach", TID, 0)]
    assert tracer.pending == {}


def test_released_to_stopped_again(tracer, kernel):
    request = StopRequest(TID)
    for _ in range(2):
        kernel.statuses[TID] = EVENT_STOP
        assert tracer.stop(request) is None
        tracer.release()
    assert request.state is StopState.RELEASED
    assert kernel.calls.count(("seize", TID)) == 2


def test_signal_that_stopped_the_thread_is_delivered_once(tracer, kernel):
    request = StopRequest(TID)
    for status in (SIGNAL_STOP, EVENT_STOP):
        kernel.statuses[TID] = status
        assert tracer.stop(request) is None
        tracer.release()
    assert [call for call in kernel.calls if call[0] == "detach"] == [
        ("detach", TID, signal.SIGUSR1), ("detach", TID, 0)]  # fmt: skip


def test_a_running_thread_of_a_young_process_is_not_traced_until_it_is_older(tracer, kernel, monkeypatch):
    request, answers = StopRequest(TID), [True, True, False]
    monkeypatch.setattr(module, "stops_cost_privileges", lambda _: answers.pop(0))
    for _ in range(2):
        refusal = tracer.stop(request)
        assert (refusal.reason, refusal.detail) == (Reason.NOT_STOPPABLE, TOO_YOUNG)
        tracer.release()
        assert (request.state, tracer.pending, kernel.calls) == (StopState.IDLE, {}, [])
    for _ in range(2):  # the second time without another look
        kernel.statuses[TID] = EVENT_STOP
        assert tracer.stop(request) is None
        tracer.release()


def test_a_thread_that_sleeps_is_not_within_execve(tracer, kernel, monkeypatch):
    request = StopRequest(TID)
    request.before = BeforeStop(asleep=True)
    monkeypatch.setattr(module, "stops_cost_privileges", lambda _: True)
    kernel.statuses[TID] = EVENT_STOP
    assert tracer.stop(request) is None


@pytest.mark.parametrize(
    ("errno", "reason"), [(EPERM, Reason.REFUSED), (ESRCH, Reason.GONE), (5, Reason.NOT_STOPPABLE)]
)
def test_refusal_leaves_the_request_idle(tracer, kernel, errno, reason):
    request = StopRequest(TID)
    kernel.refuses = errno
    assert tracer.stop(request).reason is reason
    tracer.release()
    assert (request.state, tracer.pending) == (StopState.IDLE, {})
    assert kernel.calls == [("seize", TID)]


def test_idle_to_lost_when_the_thread_ends_while_it_is_asked(tracer, kernel):
    request = StopRequest(TID)
    kernel.ends = True
    kernel.statuses[TID] = EXITED
    assert tracer.stop(request).reason is Reason.GONE
    tracer.release()
    assert (request.state, tracer.pending) == (StopState.LOST, {})


def test_requested_to_lost_when_the_thread_exits(tracer, kernel):
    request = StopRequest(TID)
    kernel.statuses[TID] = EXITED
    assert tracer.stop(request).reason is Reason.GONE
    tracer.release()
    assert (request.state, tracer.pending) == (StopState.LOST, {})


def test_requested_stays_requested_until_the_thread_stops(tracer, kernel):
    request = requested(tracer, kernel)
    assert not tracer.has_stopped(request)
    assert tracer.stop(request, 0).reason is Reason.PENDING
    kernel.statuses[TID] = EVENT_STOP
    assert tracer.has_stopped(request)
    assert tracer.stop(request, 0) is None
    tracer.release()
    assert request.state is StopState.RELEASED
    assert ("seize", TID) not in kernel.calls, "it is traced already"


def test_requested_to_released_by_release_pending(tracer, kernel):
    request = requested(tracer, kernel)
    kernel.detaches = False
    assert not tracer.release_pending(), "it still runs"
    assert request.state is StopState.REQUESTED
    kernel.detaches = True
    kernel.statuses[TID] = SIGNAL_STOP
    assert tracer.release_pending()
    assert request.state is StopState.RELEASED
    assert kernel.calls[-1] == ("detach", TID, signal.SIGUSR1)


def test_requested_to_lost_by_release_pending(tracer, kernel):
    request = requested(tracer, kernel)
    kernel.statuses[TID] = EXITED
    assert tracer.release_pending()
    assert (request.state, tracer.pending) == (StopState.LOST, {})


def test_stopped_to_requested_when_the_thread_is_killed_while_it_is_held(tracer, kernel):
    request = StopRequest(TID)
    kernel.statuses[TID] = EVENT_STOP
    assert tracer.stop(request) is None
    kernel.detaches = False
    tracer.release()
    assert (request.state, tracer.pending) == (StopState.REQUESTED, {TID: request}), (
        "its end must be waited for"
    )
    kernel.statuses[TID] = EXITED
    assert tracer.release_pending()
    assert request.state is StopState.LOST


def test_stopped_is_released_after_an_exception(tracer, kernel):
    def interrupted(*_):
        raise KeyboardInterrupt

    request = StopRequest(TID)
    kernel.statuses[TID] = EVENT_STOP
    tracer._note = interrupted  # the wait status is lost
    with pytest.raises(KeyboardInterrupt):
        tracer.stop(request)
    tracer.release()
    assert request.state is StopState.RELEASED


def test_thread_is_released_by_release_pending_where_release_was_not_reached(tracer, kernel):
    request = StopRequest(TID)
    kernel.statuses[TID] = EVENT_STOP
    assert tracer.stop(request) is None
    assert tracer.release_pending()
    assert request.state is StopState.RELEASED


def test_execve_of_another_thread_moves_the_tracee_to_the_process_id(tracer, kernel):
    request = StopRequest(TID)
    kernel.children.discard(TID)
    kernel.detaches = False  # it runs
    assert tracer.stop(request).reason is Reason.GONE
    tracer.release()
    assert request.state is StopState.LOST
    assert [*tracer.pending] == [PID]

    leader = StopRequest(PID)
    kernel.detaches = True
    kernel.statuses[PID] = EVENT_STOP
    assert tracer.stop(leader) is None, "its request goes on"
    tracer.release()
    assert (leader.state, tracer.pending) == (StopState.RELEASED, {})
    assert ("seize", PID) not in kernel.calls


def test_request_is_repeated_as_an_execve_can_make_the_kernel_forget_it(tracer, kernel, monkeypatch):
    request = requested(tracer, kernel)
    now = request.requested_ns
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: now)
    for elapsed_ms, repeats in ((1, 0), (11, 1), (15, 1), (22, 2)):
        now = request.requested_ns + elapsed_ms * 1_000_000
        assert not tracer.has_stopped(request)
        assert kernel.calls.count(("interrupt", TID)) == repeats
