"""How long a thread has not run, and its CPU time, compared with what the test knows.

The true time lies between instants that the test takes before and after.  The clocks agree to a tick.
"""

import os
import subprocess
import time

import pytest

from sfsample.process.facts.thread_facts import FactReader, exec_start_s
from sfsample.process.had_cpu import balance_of
from sfsample.process.procfs import ProcFs
from tests.live.hanging import hung
from tests.live.targets import fixture, running, states, wait_until

pytestmark = pytest.mark.live
TICK_S = 0.02  # the scheduler's clock is that of its last tick, and leaves out the time of interrupts


def test_idle_time_of_a_sleeping_thread() -> None:
    began = time.monotonic()
    with hung(fixture("v3"), "sleep", read=1) as target:
        asleep = time.monotonic()
        time.sleep(0.3)
        proc = ProcFs(target.pid)
        facts = FactReader(proc)
        before = time.monotonic()
        last = facts.last_ran(target.pid)
        after = time.monotonic()
        assert last is not None
        idle = facts.idle(last)
        assert idle is not None
        assert before - asleep - TICK_S <= idle <= after - began + TICK_S
        assert facts.usage(target.pid) == facts.usage(target.pid), "it does not run"
        proc.close()


def test_last_run_of_zero_is_unknown() -> None:
    """The kernel writes 0 for a sleeping thread that it moved to another CPU."""
    line = b"se.exec_start                                :      %s\n"
    assert exec_start_s(line % b"41765.939200") == pytest.approx(41.7659392)
    assert exec_start_s(line % b"0.000000") is None
    assert exec_start_s(None) is None


def test_idle_time_is_measured_on_each_cpus_clock() -> None:
    for cpu in os.sched_getaffinity(0):
        with subprocess.Popen(["taskset", "-c", str(cpu), "sleep", "100"]) as child:
            try:
                wait_until(lambda: states(child.pid) == {"S"}, "asleep")
                proc = ProcFs(child.pid)
                last = FactReader(proc).last_ran(child.pid)
                assert last is not None
                assert last.cpu == cpu
                idle = FactReader(proc).idle(last)
                assert idle is not None
                assert idle < 60
                proc.close()
            finally:
                child.kill()
    assert cpu in os.sched_getaffinity(0), "the affinity is restored"


def test_busy_thread_uses_cpu_time() -> None:
    with running(fixture("v3"), "leaf") as target:
        proc = ProcFs(target.pid)
        facts = FactReader(proc)
        first = facts.usage(target.pid)
        wait_until(lambda: facts.usage(target.pid).ran_ns > first.ran_ns + 10**7, "10 ms of work")
        assert facts.syscall(target.pid, None) is None
        proc.close()


def balance(proc: ProcFs, tid: int) -> int | None:
    return balance_of(proc.thread(tid).counters(), proc.thread(tid).last_run(), proc.thread(tid).counters())


def test_balance_shows_whether_a_thread_is_on_a_cpu() -> None:
    """sfsample is on the CPU while it asks, so a busy thread that may only use that CPU waits."""
    allowed = os.sched_getaffinity(0)
    [own_cpu, *other_cpus] = sorted(allowed)
    with running(fixture("v3"), "leaf") as target:
        busy, tid = ProcFs(target.pid), target.pid
        try:
            os.sched_setaffinity(0, {own_cpu})
            os.sched_setaffinity(tid, {own_cpu})
            waiting = [value for _ in range(200) if (value := balance(busy, tid)) is not None]
            assert len(set(waiting)) == 1
            for cpu in other_cpus[:1]:
                os.sched_setaffinity(tid, {cpu})
                wait_until(lambda: balance(busy, tid) == waiting[0] + 1, "runs on another CPU")
        finally:
            os.sched_setaffinity(0, allowed)
        busy.close()
