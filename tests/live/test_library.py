"""The public API on a live process: what is returned, of which type, and what is raised.

Law: samples by the names that `import sfsample` promises, nothing deeper.  Whether stacks are right is
said elsewhere; here every field is looked at.
"""

import os
import signal
import threading
import time

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.process.syscall_names import syscall_name
from tests.live.targets import ARCH, GENERATIONS, HANG_S, fixture, running, status, tids, wait_until

pytestmark = pytest.mark.live


def recorded(*pids: int, **options: object) -> sfsample.Profile:
    """Record until there are some samples of each process, however long that takes."""
    profile = sfsample.Profile(100)

    def enough() -> bool:
        return profile.stats.samples >= 5 and {key.pid for key in profile.counts} == {*pids}

    return sfsample.record(pids, HANG_S, rate=100, profile=profile, should_stop=enough, **options)


def test_everything_that_is_promised_is_there():
    for name in sfsample.__all__:
        promised = getattr(sfsample, name)
        assert name.isupper() or promised.__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sfsample.nonsense


def test_record():
    with running(fixture("v3"), "leaf") as target:
        for duration in (2.0, 8.0, 32.0):  # a busy machine may give no sample
            profile = sfsample.record(target.pid, duration, rate=100, max_pause=HANG_S, perf_events=False)
            if profile.stats.samples:
                break
        stats = profile.stats
        assert isinstance(profile, sfsample.Profile)
        assert stats.ended_by == "duration"
        assert duration <= stats.duration_s < duration + HANG_S
        assert (stats.rate_hz, stats.ticks) == (100, 100 * duration)
        assert 1 <= stats.samples <= stats.ticks - stats.late_ticks
        assert stats.samples == sum(profile.counts.values()) <= stats.pauses.count
        assert profile.processes == {target.pid: "target"}
        assert {(key.pid, key.tid): name for key, name in profile.threads.items()} == {
            (target.pid, target.pid): "target"
        }
        assert stats.threads == 1
        assert 0 < stats.pauses.percentile(50) <= stats.pauses.percentile(99) <= stats.pauses.max
        assert stats.stacks == {sfsample.StopReason.OUTERMOST: stats.samples}
        assert stats.frames[sfsample.Found.CONTEXT] == stats.samples
        assert stats.sampler_cpu_s > 0
        assert stats.sampler_max_rss_bytes > 1 << 20
        assert (str(fixture("v3")), True) in stats.module_paths
        assert not stats.problems
        for key in profile.counts:
            assert (key.pid, key.tid) == (target.pid, target.pid)
            assert key.stop_reason is sfsample.StopReason.OUTERMOST
            for module, address, lookup, *_ in key.locations:
                assert module.path.startswith("/")
                assert isinstance(module.build_id, str)
                assert address - lookup in (0, 1)
        told = stats.as_json()
        assert told["samples"] == stats.samples
        assert told["threads"] == 1
        assert told["modules_with_sframe"] == 1


def test_folded():
    with running(fixture("v3"), "leaf") as target:
        profile = recorded(target.pid)
        (line,) = sfsample.folded(profile).splitlines()
        stack, _, count = line.rpartition(" ")
        assert int(count) == profile.stats.samples
        assert stack.startswith("target;_start;__libc_start_main;")
        assert stack.endswith(";main;outer;middle;leaf_spin")
        assert (
            sfsample.folded(profile, threads=True) == line.replace("target", f"target/{target.pid}", 1) + "\n"
        )


def test_several_processes():
    with running(fixture("v3"), "leaf") as one, running(fixture(GENERATIONS[0]), "recursion") as other:
        profile = recorded(one.pid, other.pid, mode="wall")
        assert set(profile.processes) == {one.pid, other.pid}
        assert {key.pid for key in profile.counts} == {one.pid, other.pid}
        text = sfsample.folded(profile)
        assert ";leaf_spin " in text
        assert ";spin_innermost " in text


def test_one_of_several_ends():
    with running(fixture("v3"), "leaf") as one, running(fixture("v3"), "exit", 0, ends=True) as other:
        other.process.wait(HANG_S)
        with pytest.raises(sfsample.NoSuchProcess) as refusal:
            sfsample.record([one.pid, other.pid], 0.5)
        assert refusal.value.pid == other.pid
    with running(fixture("v3"), "leaf") as one, running(fixture("v3"), "leaf", ends=True) as other:
        profile = sfsample.Profile(100)

        def seen() -> set[int]:
            return {key.pid for key in profile.counts}

        def ended() -> bool:
            if seen() == {one.pid, other.pid}:
                other.signal(signal.SIGKILL)
            return other.has_ended()

        pids = [one.pid, other.pid]
        sfsample.record(pids, HANG_S, rate=100, mode="wall", profile=profile, should_stop=ended)
        assert seen() == {*pids}


def test_cpu_mode_leaves_sleepers_alone():
    with running(fixture("v3"), "epoll") as target:
        wait_until(lambda: status(target.pid)["State"][0] == "S", "asleep")
        profile = sfsample.record(target.pid, 0.3, rate=100)
        assert profile.stats.samples == 0
        assert profile.stats.pauses.count == 0
        assert sfsample.folded(profile) == ""
        assert target.reader.available() == []  # its call was not broken


def test_options_are_passed_on():
    with running(fixture("v3"), "deep") as target:
        profile = recorded(target.pid, max_frames=5)
        assert {len(key.locations) for key in profile.counts} == {5}
        assert set(profile.stats.stacks) == {sfsample.StopReason.MAX_FRAMES}
        profile = recorded(target.pid, stack_bytes=1024)
        assert set(profile.stats.stacks) == {sfsample.StopReason.STACK_COPY_ENDED}
        assert "[truncated: stack_copy_ended]" in sfsample.folded(profile)
        assert len(sfsample.dump(target.pid, max_frames=7).threads[0].stack.frames) == 7
        assert sfsample.dump(target.pid, stack_bytes=1024).threads[0].stack.stop_reason == "stack_copy_ended"


def test_steppers_are_passed_on():
    with running(fixture("v3"), "leaf") as target:
        thread = sfsample.dump(target.pid, steppers=()).threads[0]
        assert [frame.found for frame in thread.stack.frames] == [sfsample.Found.CONTEXT]
        assert thread.stack.stop_reason is sfsample.StopReason.NO_ROW
        assert str(fixture("v3")) in thread.stack.stopped_at


def test_should_stop():
    with running(fixture("v3"), "leaf") as target:
        profile = recorded(target.pid)
        assert profile.stats.ended_by == "signal"
        assert 5 <= profile.stats.samples < 10  # it was asked at each tick


def test_the_clock_is_the_callers():
    """Two hours of ticks in no time at all: the schedule is the clock's, and nothing else's."""

    class Clock:
        time = 1000.0

        def now(self) -> float:
            return self.time

        def sleep(self, seconds: float) -> None:
            self.time += seconds

    with running(fixture("v3"), "leaf") as target:
        begun = time.monotonic()
        stats = sfsample.record(target.pid, 7200, rate=0.01, clock=Clock()).stats
        assert time.monotonic() - begun < 60
        assert (stats.ticks, stats.late_ticks) == (72, 0)
        assert stats.duration_s == pytest.approx(7200)


def test_in_a_thread_of_ours():
    """ptrace belongs to a thread: a recording may run in any one, several at once on several targets."""
    with running(fixture("v3"), "leaf") as one, running(fixture(GENERATIONS[0]), "leaf") as other:
        profiles = {}

        def work(pid: int) -> None:
            profiles[pid] = recorded(pid)

        threads = [threading.Thread(target=work, args=(t.pid,)) for t in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        for target in (one, other):
            assert sfsample.folded(profiles[target.pid]).count(";leaf_spin ") == 1


def test_dump():
    before = time.time()
    with running(fixture("v3"), "threads") as target:
        wait_until(lambda: status(target.pid, target.pid)["State"][0] == "S", "the first one waits")
        dump = sfsample.dump(target.pid)
        assert isinstance(dump, sfsample.ProcessDump)
        assert (dump.pid, dump.name, dump.exe) == (target.pid, "target", str(fixture("v3")))
        assert dump.cmdline[:2] == [str(fixture("v3")), "threads"]
        assert before <= dump.time <= time.time()
        assert dump.problems == ()
        assert [thread.tid for thread in dump.threads] == tids(target.pid)
        for thread in dump.threads:
            assert isinstance(thread, sfsample.ThreadDump)
            assert isinstance(thread.stack, sfsample.Stack)
            asleep = thread.tid == target.pid  # it waits for the others
            if (
                not asleep or ARCH is AMD64
            ):  # elsewhere its caller may be in a register, which only a stop tells
                assert thread.capture == ("read" if asleep else "stopped")
            assert thread.stop_ns is None if thread.capture == "read" else thread.stop_ns > 0
            assert thread.error is None
            assert len(thread.modules) == len(thread.stack.frames)
            assert thread.stack.stopped_at is None
            for frame, module in zip(thread.stack.frames, thread.modules, strict=True):
                assert isinstance(frame, sfsample.Frame)
                assert frame.cfa is None or frame.cfa >= frame.sp
                assert module.image.executable[0][0] <= module.vaddr(frame.lookup_pc)
            assert [frame.exact for frame in thread.stack.frames].index(False) == 1
        main, *workers = dump.threads
        assert (main.name, main.state) == ("target", "S")
        assert syscall_name(main.syscall.number) == "futex"  # in pthread_join
        assert len(main.syscall.args) == 6
        assert {worker.name for worker in workers} == {f"worker-{n}" for n in range(4)}
        assert {worker.syscall for worker in workers} == {None}


@pytest.mark.parametrize("look", [sfsample.record, sfsample.dump])
def test_what_cannot_be_looked_at(look):
    with pytest.raises(sfsample.NoSuchProcess) as refusal:
        look(2**22 + 1)
    assert (refusal.value.exit_code, refusal.value.pid) == (3, 2**22 + 1)
    with pytest.raises(sfsample.SfsampleError, match="cannot sample itself"):
        look(os.getpid())
    with running(fixture("v3"), "threads") as target:
        thread = tids(target.pid)[1]
        with pytest.raises(sfsample.SfsampleError, match="is a thread") as refusal:
            look(thread)
        assert refusal.value.help == (f"use -p {target.pid}",)


def test_a_kernel_thread():
    if not os.path.exists("/proc/2/stat") or "kthreadd" not in status(2).get("Name", ""):
        pytest.skip("no kernel threads in this pid namespace")
    with pytest.raises(sfsample.UnsupportedTarget, match="kernel thread"):
        sfsample.record(2, 1)
