"""Our own priority: the highest while a thread of the target is held, and what it was at all other times.

Law: where the kernel does not permit it, nothing is different.
"""

import contextlib
import os

import pytest

import sfsample
from sfsample.process.priority import RealTimePriority, give_way
from sfsample.process.stop_request import Tracer
from sfsample.process.tracer_thread import TracerThread
from tests.live.targets import HANG_S, fixture, running

pytestmark = pytest.mark.live


def may_be_urgent() -> bool:
    """Whether we may have real-time priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


@pytest.mark.parametrize("pids", [1, 2])
def test_nobody_s_turn_comes_before_ours_while_a_thread_is_held(monkeypatch, pids):
    held, between, release = [], set(), Tracer.release

    def releasing(self: Tracer) -> int:
        held.append(os.sched_getscheduler(0))
        return release(self)

    def enough() -> bool:
        if held:
            between.add(os.sched_getscheduler(0))
        return len(held) >= 20 and os.SCHED_OTHER in between  # not while one is still to stop

    monkeypatch.setattr(Tracer, "release", releasing)
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(running(fixture("v3"), "leaf")) for _ in range(pids)]
        sfsample.record(
            [target.pid for target in targets], HANG_S, rate=500, should_stop=enough, perf_events=False
        )
    assert {*held} == {os.SCHED_RR if may_be_urgent() else os.SCHED_OTHER}
    assert os.SCHED_OTHER in between


def test_urgency_is_over_when_the_last_one_says_so(monkeypatch):
    said = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", lambda _tid, policy, _param: said.append(policy))
    urgency = RealTimePriority()
    urgency.begin()
    urgency.begin()
    urgency.end()
    assert said == [os.SCHED_RR]
    urgency.end()
    assert said == [os.SCHED_RR, os.SCHED_OTHER]


def test_without_permission_nothing_is_changed(monkeypatch):
    asked = []

    def refuse(*_: object) -> None:
        asked.append(None)
        raise PermissionError

    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    urgency = RealTimePriority()
    for _ in range(3):
        urgency.begin()
        urgency.end()
    assert len(asked) == 1


def test_a_priority_that_was_chosen_is_kept(monkeypatch):
    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("it was changed"))
    urgency = RealTimePriority()
    urgency.begin()
    urgency.end()


def test_who_gives_way_does_not_take_the_processor_when_it_wakes_and_keeps_its_share():
    def scheduled():
        slice_ns = []  # an older kernel does not tell
        with contextlib.suppress(OSError), open("/proc/thread-self/sched", encoding="ascii") as file:
            slice_ns = [line.split()[-1] for line in file if line.startswith("se.slice")]
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), slice_ns

    def work(_stop):
        give_way()
        return scheduled()

    ours = scheduled()
    assert TracerThread(work, lambda: False).run() == (os.SCHED_BATCH, *ours[1:])
    assert scheduled() == ours
