"""A recording of months keeps its memory and descriptors constant, and returns all of them at its end.

Growth is measured after a warm-up, between two equal states.  The limits are far above noise, and far below
the cost of one leaked object per sample, tick or recording.
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
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from sfsample.recording.stats import Pauses
from tests.live.chains import Checker, listed_chains
from tests.live.recording import fewer, record_samples
from tests.live.targets import extended, fixture, running, started, states, tids, wait_until

pytestmark = pytest.mark.live


def open_files() -> list[str]:
    """Return the files of the open descriptors of this process."""
    files = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # the descriptor of listdir itself
            continue
    return sorted(files)


def mapped_files() -> int:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("/fixtures/" in line or "/libc" in line for line in maps)


@pytest.mark.parametrize("scenario", [extended("leaf"), extended("threads"), "churn"])
def test_recordings_close_their_files(scenario):
    with running(fixture("v3"), scenario) as target:

        def use() -> None:
            sfsample.folded(sfsample.record(target.pid, 0.05, sfsample.RecordOptions(rate=200, mode="wall")))
            sfsample.dump(target.pid)

        use()
        gc.collect()
        files, maps = open_files(), mapped_files()
        for _ in range(5):
            use()
        gc.collect()
        assert open_files() == files
        assert mapped_files() == maps


def test_refused_recording_closes_its_files():
    with running(fixture("v3"), "leaf") as target:
        gc.collect()  # objects of other tests
        files = open_files()
        for _ in range(5):
            with pytest.raises(sfsample.NoSuchProcess):
                sfsample.record([target.pid, 2**22 + 1], 1)
        gc.collect()
        assert open_files() == files


def fill(pauses: Pauses) -> None:
    """Count a pause in each class of lengths, so that further pauses take no memory."""
    for exponent in range(8):
        for digits in range(100, 1000):
            pauses.add(digits * 10**exponent)


@pytest.mark.parametrize(
    "scenario",
    [extended("leaf"), "threads", extended("signal")],
)
def test_ticks_cost_no_memory(scenario):
    """Counting equal stacks takes no memory."""
    with running(fixture("v3"), scenario) as target:
        live = LiveProcess(target.pid)
        sampler = PtraceSampler(
            Recording(Processes([live]), RecordOptions(rate=2000, mode="wall"), Profile(1))
        )
        stats, sizes = sampler.profile.stats, []
        fill(stats.pauses)
        fill(stats.held)
        tracemalloc.start()
        try:

            def measure() -> bool:
                if stats.samples >= 150 * (len(sizes) + 1):
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
                return len(sizes) == 5

            sampler.run(measure)
        finally:
            tracemalloc.stop()
            live.close()
        assert sizes[-1] - sizes[1] < 32 << 10, sizes


def test_files_of_ended_threads_are_closed():
    with running(fixture("v3"), "churn") as target:
        live = LiveProcess(target.pid)
        sampler = PtraceSampler(
            Recording(Processes([live]), RecordOptions(rate=1000, mode="wall"), Profile(1))
        )
        counts = []

        def enough() -> bool:
            counts.append(len(os.listdir("/proc/self/fd")))
            return sampler.profile.stats.threads >= fewer(150)

        before = len(os.listdir("/proc/self/fd"))
        sampler.run(enough)
        live.close()
        assert max(counts) <= before + 40  # at most 6 threads live at a time, and a file for each module


def test_two_hundred_threads():
    """They sleep, as most threads of a large server do; each tick samples all of them."""
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
        all_tids = set(tids(target.pid))
        assert len(all_tids) == 200
        wait_until(lambda: states(target.pid) == {"S"}, "all asleep")
        profile = record_samples(target.pid, 1000, rate=5, mode="wall")
        stats = profile.stats
        assert {key.tid for key in profile.counts} == all_tids
        assert stats.stacks == {StopReason.OUTERMOST: stats.samples}
        assert stats.captures[Capture.FAILED] == 0
        each = {tid: sum(n for key, n in profile.counts.items() if key.tid == tid) for tid in all_tids}
        assert set(each.values()) == {stats.samples // 200}
        target.assert_unharmed()

        dump = sfsample.dump(target.pid)
        assert {thread.tid for thread in dump.threads} == all_tids
        assert {thread.stack.stop_reason for thread in dump.threads} == {StopReason.OUTERMOST}


def test_more_running_threads_than_cpus():
    """A thread that waits for a CPU can stop only when it gets one, which may be after the next tick.

    Such a capture is a failure with a reason, never a wrong stack; the thread is released when it stops.
    """
    program = str(fixture("v3"))
    with running(program, "threads", 32) as target:
        main, *workers = listed_chains(program)["threads"]
        all_tids = tids(target.pid)
        chains = {tid: [main] if tid == target.pid else workers for tid in all_tids}
        profile = record_samples(target.pid, 20, rate=1, mode="wall")
        Checker(program).check(profile, chains)
        stats = profile.stats
        ticks = stats.ticks - stats.late_ticks
        assert stats.samples + stats.captures[Capture.FAILED] == len(all_tids) * ticks
        reasons = ("not captured: did not stop in time", "not captured: the recording ended before its turn")
        assert all(text.startswith(reasons) for text in stats.problems)
