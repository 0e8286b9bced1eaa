"""A sampler that runs for months: nothing grows with the time, everything is given back.

Law: growth is measured after a warm-up, between two like moments; the limits are far above noise and far
below what one leaked object per sample, tick or recording would cost.
"""

import gc
import os
import sys
import tracemalloc

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.process.process import LiveProcess
from sfsample.recording.options import RecordOptions
from sfsample.recording.ptrace_sampler import PtraceSampler
from tests.live.chains import Checker, listed_chains
from tests.live.recording import fewer, record_samples
from tests.live.targets import fixture, running, started, states, tids, wait_until

pytestmark = pytest.mark.live


def open_files() -> list[str]:
    """What our descriptors refer to (the one that lists them has gone when it is asked)."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sorted(found)


def mapped_files() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("/fixtures/" in line or "/libc" in line for line in maps)


@pytest.mark.parametrize("scenario", ["leaf", "threads", "churn"])
def test_recordings_give_back_their_files(scenario):
    with running(fixture("v3"), scenario) as target:

        def one() -> None:
            sfsample.folded(sfsample.record(target.pid, 0.05, sfsample.RecordOptions(rate=200, mode="wall")))
            sfsample.dump(target.pid)

        one()
        gc.collect()
        files, maps = open_files(), mapped_files()
        for _ in range(20):
            one()
        gc.collect()
        assert open_files() == files
        assert mapped_files() == maps


def test_a_refused_recording_gives_back_its_files():
    with running(fixture("v3"), "leaf") as target:
        gc.collect()  # what other tests have left
        files = open_files()
        for _ in range(5):
            with pytest.raises(sfsample.NoSuchProcess):
                sfsample.record([target.pid, 2**22 + 1], 1)
        gc.collect()
        assert open_files() == files


@pytest.mark.parametrize("scenario", ["leaf", "threads", "signal"])
def test_ticks_cost_no_memory(scenario):
    """The same stacks again and again: counting them takes no room."""
    with running(fixture("v3"), scenario) as target:
        live = LiveProcess(target.pid)
        sampler = PtraceSampler([live], RecordOptions(rate=2000, mode="wall"))
        stats, sizes = sampler.profile.stats, []
        tracemalloc.start()
        try:

            def measure() -> bool:
                if stats.samples >= 300 * (len(sizes) + 1):
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
                return len(sizes) == 5

            sampler.run(measure)
        finally:
            tracemalloc.stop()
            live.close()
        assert sizes[-1] - sizes[1] < 64 << 10, sizes


def test_threads_that_have_gone_cost_no_files():
    """Hundreds of threads pass by; the stat files of those that ended are closed."""
    with running(fixture("v3"), "churn") as target:
        live = LiveProcess(target.pid)
        sampler = PtraceSampler([live], RecordOptions(rate=1000, mode="wall"))
        most = []

        def enough() -> bool:
            most.append(len(os.listdir("/proc/self/fd")))
            return sampler.profile.stats.threads >= fewer(150)

        before = len(os.listdir("/proc/self/fd"))
        sampler.run(enough)
        live.close()
        assert max(most) <= before + 40  # at most 6 threads live at a time, and a file for each module


def test_two_hundred_threads():
    """Asleep, as most threads of a large server are: every one of them in every tick."""
    code = """
import os, sys, threading
begun, never = threading.Barrier(200), threading.Event()
def sleep():
    begun.wait()
    never.wait()
for _ in range(199): threading.Thread(target=sleep).start()
begun.wait()
os.write(int(sys.argv[1]), f"ready {os.getpid()}\\n".encode())
never.wait()
"""
    with started([sys.executable, "-c", code, "{fd}"]) as target:
        target.await_ready()
        everyone = set(tids(target.pid))
        assert len(everyone) == 200
        wait_until(lambda: states(target.pid) == {"S"}, "all asleep")
        profile = record_samples(target.pid, 1000, rate=5, mode="wall")
        stats = profile.stats
        assert {key.tid for key in profile.counts} == everyone
        assert stats.stacks == {StopReason.OUTERMOST: stats.samples}
        assert stats.captures[Capture.FAILED] == 0
        each = {tid: sum(n for key, n in profile.counts.items() if key.tid == tid) for tid in everyone}
        assert set(each.values()) == {stats.samples // 200}
        target.assert_unharmed()

        dump = sfsample.dump(target.pid)
        assert {thread.tid for thread in dump.threads} == everyone
        assert {thread.stack.stop_reason for thread in dump.threads} == {StopReason.OUTERMOST}


def test_more_running_threads_than_processors():
    """A thread that waits for a processor can stop only when it gets one.

    With many of them that can take longer than from one tick to the next.  Such a capture is a failure with
    a reason, never a wrong stack, and the thread is let go as soon as it does stop.
    """
    program = str(fixture("v3"))
    with running(program, "threads", 32) as target:
        main, *workers = listed_chains(program)["threads"]
        everyone = tids(target.pid)
        chains = {tid: [main] if tid == target.pid else workers for tid in everyone}
        profile = record_samples(target.pid, 20, rate=1, mode="wall")
        Checker(program).check(profile, chains)
        stats = profile.stats
        taken = stats.ticks - stats.late_ticks
        assert stats.samples + stats.captures[Capture.FAILED] == len(everyone) * taken
        reasons = ("not captured: did not stop in time", "not captured: the recording ended before its turn")
        assert all(text.startswith(reasons) for text in stats.problems)
