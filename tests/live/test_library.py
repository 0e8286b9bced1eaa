"""The public API on a live process: types and values of all fields, and errors.

Tests use only names of `sfsample.__all__`.  Other tests assert that the stacks are right.
"""

import inspect
import os
import signal
import threading
import time

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.process.syscall_names import syscall_name
from tests.live.targets import ARCH, GENERATIONS, HANG_S, fixture, running, status, tids, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load]


def recorded(*pids: int, **options: object) -> sfsample.Profile:
    """Record until each process has samples, and there are five in all."""
    profile = sfsample.Profile(100)

    def enough() -> bool:
        return profile.stats.samples >= 5 and {key.process_key for key in profile.counts} == {*pids}

    record_options = sfsample.RecordOptions(rate=100, perf_events=False, **options)
    return sfsample.record(pids, HANG_S, record_options, profile=profile, should_stop=enough)


def test_every_public_name_exists():
    for name in sfsample.__all__:
        value = getattr(sfsample, name)
        assert name.isupper() or value.__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sfsample.nonsense


def test_record():
    with running(fixture("v3"), "leaf") as target:
        for duration in (2.0, 8.0, 32.0):  # a busy machine may give no sample
            options = sfsample.RecordOptions(rate=100, max_pause=HANG_S, perf_events=False)
            profile = sfsample.record(target.pid, duration, options)
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
        assert {(key.process_key, key.tid): name for key, name in profile.threads.items()} == {
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
            assert (key.process_key, key.tid) == (target.pid, target.pid)
            assert key.stop_reason is sfsample.StopReason.OUTERMOST
            for module, address, lookup, *_ in key.locations:
                assert module.path.startswith("/")
                assert isinstance(module.build_id, str)
                assert address - lookup in (0, 1)
        document = stats.as_json()
        assert document["samples"] == stats.samples
        assert document["threads"] == 1
        assert document["modules_with_sframe"] == 1


def test_named_says_where_how_and_by_what_it_was_recorded():
    with running(fixture("v3"), "leaf") as target:
        report = sfsample.named(recorded(target.pid, mode="wall"))
    assert report.host == os.uname().nodename
    assert report.stats.text("recorder") == f"sfsample {sfsample.__version__}"
    assert report.stats.text("mode") == "wall"


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
    with running(fixture("v3"), "leaf") as first, running(fixture(GENERATIONS[0]), "recursion") as second:
        pids = {first.pid, second.pid}
        profile = recorded(*pids, mode="wall")
        assert set(profile.processes) == pids
        assert {key.process_key for key in profile.counts} == pids
        text = sfsample.folded(profile)
        assert ";leaf_spin" in text
        assert ";spin_innermost" in text


def test_one_of_several_targets_ends():
    with running(fixture("v3"), "leaf") as first, running(fixture("v3"), "exit", 0, ends=True) as other:
        other.process.wait(HANG_S)
        with pytest.raises(sfsample.NoSuchProcess) as refusal:
            sfsample.record([first.pid, other.pid], 0.5)
        assert refusal.value.pid == other.pid
    with running(fixture("v3"), "leaf") as first, running(fixture("v3"), "leaf", ends=True) as other:
        profile = sfsample.Profile(100)

        def sampled() -> set[int]:
            return {key.process_key for key in profile.counts}

        def ended() -> bool:
            if sampled() == {first.pid, other.pid}:
                other.signal(signal.SIGKILL)
            return other.has_ended()

        pids = [first.pid, other.pid]
        options = sfsample.RecordOptions(rate=100, mode="wall")
        sfsample.record(pids, HANG_S, options, profile=profile, should_stop=ended)
        assert sampled() == {*pids}


def test_cpu_mode_leaves_sleepers_alone():
    with running(fixture("v3"), "epoll") as target:
        wait_until(lambda: status(target.pid)["State"][0] == "S", "asleep")
        profile = sfsample.record(target.pid, 0.3, sfsample.RecordOptions(rate=100))
        assert profile.stats.samples == 0
        assert profile.stats.pauses.count == 0
        assert sfsample.folded(profile) == ""
        assert target.reader.available() == []  # its system call was not interrupted


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
    """sfsample calls it at each tick, and ends the recording when it returns True."""
    calls, profile = [], sfsample.Profile(100)
    stats = profile.stats

    def ticks_taken() -> int:
        return stats.ticks - stats.late_ticks

    def enough() -> bool:
        calls.append(ticks_taken())
        return stats.samples >= 5

    with running(fixture("v3"), "leaf") as target:
        options = sfsample.RecordOptions(rate=100, perf_events=False)
        sfsample.record(target.pid, HANG_S, options, profile=profile, should_stop=enough)
    assert stats.ended_by == "signal"
    assert len(calls) >= ticks_taken() >= 1
    assert ticks_taken() <= calls[-1] + 1


def test_schedule_uses_the_clock_of_the_caller():
    """With a clock that only counts, two hours of ticks take no time."""

    class Clock:
        time = 1000.0

        def now(self) -> float:
            return self.time

        def sleep(self, seconds: float) -> None:
            self.time += seconds

    with running(fixture("v3"), "leaf") as target:
        begun = time.monotonic()
        stats = sfsample.record(target.pid, 7200, sfsample.RecordOptions(rate=0.01), clock=Clock()).stats
        assert time.monotonic() - begun < 60
        assert (stats.ticks, stats.late_ticks) == (72, 0)
        assert stats.duration_s == pytest.approx(7200)


def test_recordings_run_in_several_threads():
    """ptrace is bound to a thread; each recording uses its own."""
    with running(fixture("v3"), "leaf") as first, running(fixture(GENERATIONS[0]), "leaf") as second:
        profiles = {}

        def work(pid: int) -> None:
            profiles[pid] = recorded(pid)

        threads = [threading.Thread(target=work, args=(t.pid,)) for t in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        for target in (first, second):
            assert sfsample.folded(profiles[target.pid]).count(";leaf_spin ") == 1


def test_dump():
    before = time.time()
    with running(fixture("v3"), "threads") as target:
        wait_until(lambda: status(target.pid, target.pid)["State"][0] == "S", "the first thread waits")
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
            asleep = thread.tid == target.pid  # in pthread_join
            # elsewhere the return address of a sleeping thread may be in a register: sfsample may stop it
            if not asleep or ARCH is AMD64:
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


@pytest.mark.parametrize("function", [sfsample.record, sfsample.dump])
def test_invalid_target_is_refused(function):
    with pytest.raises(sfsample.NoSuchProcess) as refusal:
        function(2**22 + 1)
    assert (refusal.value.exit_code, refusal.value.pid) == (3, 2**22 + 1)
    with pytest.raises(sfsample.SfsampleError, match="cannot sample itself"):
        function(os.getpid())
    with running(fixture("v3"), "threads") as target:
        thread = tids(target.pid)[1]
        with pytest.raises(sfsample.SfsampleError, match="is a thread") as refusal:
            function(thread)
        assert refusal.value.help == (f"use -p {target.pid}",)


def test_kernel_thread_is_refused():
    if not os.path.exists("/proc/2/stat") or "kthreadd" not in status(2).get("Name", ""):
        pytest.skip("no kernel threads in this pid namespace")
    with pytest.raises(sfsample.UnsupportedTarget, match="kernel thread"):
        sfsample.record(2, 1)


def test_dump_has_names_and_the_verdict():
    with running(fixture("v3"), "sleep") as target:
        dump = sfsample.dump(target.pid)
        verdict = sfsample.named(dump)
        assert verdict.findings[0].nodes[0].pid == target.pid
        [(_, [thread])] = verdict.processes
        assert [name.function for names in thread.frames for name in names][-1] == "_start"
        assert dump.verdict.findings == verdict.findings
        document = dump.document
        assert document["schema"] == "sfsample.dump/1"
        assert document["verdict"][0]["text"] == verdict.findings[0].text
        assert document["processes"][0]["threads"][0]["frames"][-1]["function"] == "_start"


def test_help_shows_readable_defaults():
    shown = str(inspect.signature(sfsample.record))
    assert "= RecordOptions()," in shown
    assert "lambda" not in shown
    assert repr(sfsample.RecordOptions(rate=19, mode="wall")) == "RecordOptions(rate=19, mode='wall')"
