"""Since when a thread has not run, and what it has used, against what this test knows.

Law: the truth is enclosed by instants that the test takes before and after; the clocks agree to a tick.
"""

import os
import subprocess
import time

import pytest

from sfsample.process.facts.thread_facts import FactReader, exec_start_s
from sfsample.process.procfs import ProcFs
from sfsample.process.scheduler import balance_of
from tests.live.hanging import hung
from tests.live.targets import fixture, running, states, wait_until

pytestmark = pytest.mark.live
TICK_S = 0.02  # the scheduler's clock is that of its last tick, and leaves out what interrupts took


def test_since_when_a_thread_sleeps() -> None:
    began = time.monotonic()
    with hung(fixture("v3"), "sleep", read=1) as target:
        asleep = time.monotonic()
        time.sleep(0.3)
        proc = ProcFs(target.pid)
        facts = FactReader(proc)
        before = time.monotonic()
        last = facts.facts(target.pid).last_ran
        after = time.monotonic()
        assert last is not None
        idle = facts.idle(last)
        assert idle is not None
        assert before - asleep - TICK_S <= idle <= after - began + TICK_S
        assert facts.usage(target.pid) == facts.usage(target.pid), "it does not run"
        proc.close()


def test_the_kernel_may_have_forgotten() -> None:
    """A thread that was moved to another processor when it slept already did not sleep since the start."""
    line = b"se.exec_start                                :      %s\n"
    assert exec_start_s(line % b"41765.939200") == pytest.approx(41.7659392)
    assert exec_start_s(line % b"0.000000") is None
    assert exec_start_s(None) is None


def test_every_processor_s_clock() -> None:
    for processor in os.sched_getaffinity(0):
        with subprocess.Popen(["taskset", "-c", str(processor), "sleep", "100"]) as child:
            try:
                wait_until(lambda: states(child.pid) == {"S"}, "asleep")
                proc = ProcFs(child.pid)
                last = FactReader(proc).facts(child.pid).last_ran
                assert last is not None
                assert last.processor == processor
                idle = FactReader(proc).idle(last)
                assert idle is not None
                assert idle < 60
                proc.close()
            finally:
                child.kill()
    assert processor in os.sched_getaffinity(0), "where we may run is as before"


def test_a_busy_thread_uses_its_processor() -> None:
    with running(fixture("v3"), "leaf") as target:
        proc = ProcFs(target.pid)
        facts = FactReader(proc)
        first = facts.usage(target.pid)
        wait_until(
            lambda: (facts.usage(target.pid).cpu_ns or 0) > (first.cpu_ns or 0) + 10**7, "10 ms of work"
        )
        assert facts.facts(target.pid).syscall is None
        proc.close()


def balance(proc: ProcFs, tid: int) -> int | None:
    return balance_of(proc.counters(tid), proc.last_run(tid), proc.counters(tid))


def test_who_has_a_processor() -> None:
    """We have one as long as we ask; a busy thread that may only use the same one waits meanwhile."""
    allowed = os.sched_getaffinity(0)
    [here, *others] = sorted(allowed)
    with running(fixture("v3"), "leaf") as target:
        busy, tid = ProcFs(target.pid), target.pid
        try:
            os.sched_setaffinity(0, {here})
            os.sched_setaffinity(tid, {here})
            waits = [found for _ in range(200) if (found := balance(busy, tid)) is not None]
            assert len(set(waits)) == 1
            for other in others[:1]:
                os.sched_setaffinity(tid, {other})
                wait_until(lambda: balance(busy, tid) == waits[0] + 1, "runs on another processor")
        finally:
            os.sched_setaffinity(0, allowed)
        busy.close()
