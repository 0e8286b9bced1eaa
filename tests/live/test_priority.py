"""sfsample has the highest priority while it holds a thread of the target, and its own at all other times.

Where the kernel does not permit this, nothing changes.
"""

import contextlib
import os

import pytest

import sfsample
from sfsample.process.priority import RealTimePriority, avoid_preempting
from sfsample.process.stop_request import Tracer
from sfsample.process.tracer_thread import TracerThread
from tests.live.targets import HANG_S, fixture, running

pytestmark = pytest.mark.live


def may_have_real_time_priority() -> bool:
    """Whether the kernel permits real-time priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


@pytest.mark.parametrize("pids", [1, 2])
def test_priority_is_real_time_while_a_thread_is_held(monkeypatch, pids):
    held, between, release = [], set(), Tracer.release

    def releasing(self: Tracer) -> int:
        held.append(os.sched_getscheduler(0))
        return release(self)

    def enough() -> bool:
        if held:
            between.add(os.sched_getscheduler(0))
        return len(held) >= 20 and os.SCHED_OTHER in between  # without a pending stop

    monkeypatch.setattr(Tracer, "release", releasing)
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(running(fixture("v3"), "leaf")) for _ in range(pids)]
        options = sfsample.RecordOptions(rate=500, perf_events=False)
        sfsample.record([target.pid for target in targets], HANG_S, options, should_stop=enough)
    assert {*held} == {os.SCHED_RR if may_have_real_time_priority() else os.SCHED_OTHER}
    assert os.SCHED_OTHER in between


def test_real_time_priority_ends_with_the_last_end(monkeypatch):
    policies = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", lambda _tid, policy, _param: policies.append(policy))
    priority = RealTimePriority()
    priority.begin()
    priority.begin()
    priority.end()
    assert policies == [os.SCHED_RR]
    priority.end()
    assert policies == [os.SCHED_RR, os.SCHED_OTHER]


def test_without_permission_nothing_is_changed(monkeypatch):
    calls = []

    def refuse(*_: object) -> None:
        calls.append(None)
        raise PermissionError

    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    priority = RealTimePriority()
    for _ in range(3):
        priority.begin()
        priority.end()
    assert len(calls) == 1


def test_priority_that_the_user_chose_is_kept(monkeypatch):
    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("it was changed"))
    priority = RealTimePriority()
    priority.begin()
    priority.end()


def test_avoid_preempting_keeps_the_share():
    def scheduled():
        slice_ns = []  # older kernels do not report it
        with contextlib.suppress(OSError), open("/proc/thread-self/sched", encoding="ascii") as file:
            slice_ns = [line.split()[-1] for line in file if line.startswith("se.slice")]
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), slice_ns

    def work(_stop):
        avoid_preempting()
        return scheduled()

    before = scheduled()
    assert TracerThread(work, lambda: False).run() == (os.SCHED_BATCH, *before[1:])
    assert scheduled() == before
