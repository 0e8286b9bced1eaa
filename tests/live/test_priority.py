"""A sampler by stops has the lowest real-time priority, as long as it uses little CPU time.

Where the kernel does not permit this, nothing changes.
"""

import contextlib
import os
import sys
import time

import pytest

import sfsample
from sfsample import api
from sfsample.cli import main
from sfsample.process.had_cpu import OwnRun
from sfsample.process.priority import RealTimePriority, avoid_preempting
from sfsample.process.proc_text import parse_last_run
from sfsample.process.process import LiveProcess
from sfsample.process.stop_request import Tracer
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from tests.live.targets import HANG_S, fixture, running

pytestmark = pytest.mark.live

_BUSY = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    file.write(str(os.sched_getscheduler(0)))
while time.process_time() < 0.5:
    pass
"""


def may_have_real_time_priority() -> bool:
    """Whether the kernel permits real-time priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


def test_profile_is_written_at_real_time_priority(monkeypatch, tmp_path):
    """The program that sfsample starts, and sfsample after the recording, have the usual priority."""
    policies, render = set(), api.render

    def rendering(*arguments, **options):
        until = time.process_time() + 0.1
        while time.process_time() < until:
            policies.add(os.sched_getscheduler(0))
        return render(*arguments, **options)

    monkeypatch.setattr(api, "render", rendering)
    program = [sys.executable, "-c", _BUSY, str(tmp_path / "policy")]
    assert main(["record", "-q", "-o", str(tmp_path / "out.html"), "--", *program]) == 0
    assert policies == {os.SCHED_OTHER, *[os.SCHED_RR] * may_have_real_time_priority()}
    assert [os.sched_getscheduler(0), (tmp_path / "policy").read_text()] == [os.SCHED_OTHER, "0"]


@pytest.mark.parametrize("pids", [1, 2])
def test_sampler_has_real_time_priority(monkeypatch, pids):
    held, between, release = [], set(), Tracer.release

    def releasing(self: Tracer) -> int:
        held.append(os.sched_getscheduler(0))
        return release(self)

    def enough() -> bool:
        if held:
            between.add(os.sched_getscheduler(0))
        return len(held) >= 20

    monkeypatch.setattr(Tracer, "release", releasing)
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(running(fixture("v3"), "leaf")) for _ in range(pids)]
        options = sfsample.RecordOptions(rate=99, perf_events=False)  # below the share of a CPU
        sfsample.record([target.pid for target in targets], HANG_S, options, should_stop=enough)
    policy = os.SCHED_RR if may_have_real_time_priority() else os.SCHED_OTHER
    assert {*held} == {policy}
    assert policy in between
    assert {os.sched_getscheduler(int(tid)) for tid in os.listdir("/proc/self/task")} == {os.SCHED_OTHER}


def test_sampler_on_the_calling_thread_ends_with_its_priority():
    with running(fixture("v3"), "leaf") as target, contextlib.closing(LiveProcess(target.pid)) as process:
        options = sfsample.RecordOptions(rate=500)
        PtraceSampler(Recording(Processes([process]), options, Profile(500), 0.05)).run()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_own_run_has_no_load_average_at_real_time_priority():
    """The load average would be that of the time before the real-time priority."""
    priority, own_run = RealTimePriority(), OwnRun()
    if (before := parse_last_run(own_run.read())) is not None and may_have_real_time_priority():
        priority.begin()
        during = parse_last_run(own_run.read())
        priority.end()
        assert (bool(before.renewed_ns), during.renewed_ns) == (True, 0)
        assert during.at
    own_run.close()


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


def test_ticks_begin_and_end_once(monkeypatch):
    policies = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _tid: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", lambda _tid, policy, _param: policies.append(policy))
    priority = RealTimePriority()
    for _ in range(2):
        priority.during_ticks(is_wanted=True)
    priority.begin()
    priority.during_ticks(is_wanted=False)
    assert policies == [os.SCHED_RR]
    priority.end()
    used_s = priority.used_s()
    priority.during_ticks(is_wanted=False)
    assert policies == [os.SCHED_RR, os.SCHED_OTHER]
    assert priority.used_s() == used_s > 0


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
