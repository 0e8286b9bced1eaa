"""Samples of perf sampling stand for the CPU time that the kernel charged, and a recording ends in time."""

import os
import time
from itertools import pairwise
from math import sqrt

import pytest

import sfsample
from sfsample.process.capture import ThreadCapturer
from sfsample.process.perf_events import PerfEvents
from sfsample.recording import timer_set
from sfsample.recording.perf_process import PerfProcess
from sfsample.recording.profile import LiveWindow, Profile
from tests.live.cli_runner import sfsample as sfsample_command
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.cpu_time import SOURCE, cpu_ns, measured_by, samples_of, shares
from tests.live.perf_recording import ONE_BY_ONE, SAMPLES, accounted_ns, needs_timers, record_by_perf
from tests.live.targets import HANG_S, assert_untraced, extended, fixture, running
from tests.live.targets import started as begun

pytestmark = [pytest.mark.live, needs_timers]


@needs_gcc
def test_new_threads_are_sampled_from_their_start(tmp_path):
    with started(compile_c(tmp_path, "one", ONE_BY_ONE, "-lpthread")) as process:
        profile = record_by_perf(
            process.pid, until=lambda profile: len({key.tid for key in profile.counts}) > 50
        )
        assert_untraced(process.pid)
    stats = profile.stats
    stacks = [line.rpartition(" ") for line in sfsample.folded(profile).splitlines()]
    inside = sum(int(count) for stack, _, count in stacks if "in_a_thread" in stack)
    assert inside > 0.9 * stats.samples
    # the rest of each thread's last period is not sampled: half a period of twenty
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.1)


@needs_gcc
@pytest.mark.parametrize("others", [extended(0), os.cpu_count()])
def test_shares_are_those_of_the_cpu_time(tmp_path, others):
    program = compile_c(tmp_path, "parts", SOURCE, "-pthread")
    with begun([str(program), str(others), "{fd}"]) as beside:
        beside.await_ready()
        with begun([str(program), "1", "{fd}", "sleeps"]) as target:
            target.await_ready()
            before = measured_by(target)
            profile = record_by_perf(target.pid, 400, rate=400)
            expected = measured_by(target) - before
            target.assert_unharmed()
    counts = samples_of(profile)
    number = sum(counts.values())
    for name, share in shares(expected).items():
        tolerance = 4 * sqrt(share * (1 - share) / number) + 0.03
        assert abs(shares(counts).get(name, 0) - share) <= tolerance, (name, counts, expected)
    stats = profile.stats
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.1)


def test_samples_stand_for_the_whole_recording():
    with running(fixture("v3"), "leaf") as target:
        stats = sfsample.record(target.pid, 1.2, sfsample.RecordOptions(rate=500, perf_events=True)).stats
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.1)


# Threads of 0.1 ms.
MANY = ONE_BY_ONE.replace("40000000", "100000").replace("10000;", "100;")


@needs_gcc
def test_thread_that_creates_others_keeps_its_own_time(tmp_path, monkeypatch):
    """The kernel may swap the timers of a thread and of a child that inherited them."""
    monkeypatch.setattr(timer_set, "are_too_few", lambda *_: False)  # so that no timers of CPUs are set
    with started(compile_c(tmp_path, "many", MANY, "-lpthread")) as process:
        inside = []  # CPU time after the start of the timers, and before their end

        def enough():
            inside.append(int(_text(process.pid, "schedstat").split()[0]))
            return inside[-1] > inside[0] + 5e8

        profile = sfsample.record(
            process.pid, 4 * HANG_S, sfsample.RecordOptions(rate=200, perf_events=True), should_stop=enough
        )
    creator = sum(count for key, count in profile.counts.items() if key.tid == process.pid)
    assert creator * 1e9 / 200 == pytest.approx(inside[-1] - inside[0], rel=0.3)


@pytest.mark.parametrize("rate", [1, 10_000])
def test_sample_stands_for_one_period(rate):
    with running(fixture("v3"), "leaf") as target:
        profile = record_by_perf(target.pid, 2 if rate == 1 else SAMPLES * 10, rate=rate)
    stats = profile.stats
    assert stats.cpu_sampled_ns == pytest.approx(stats.samples * 1e9 / rate, rel=0.03)


def test_limit_of_overhead_is_kept():
    with running(fixture("v3"), "leaf") as target:
        profile = record_by_perf(
            target.pid, rate=2000, max_overhead=0.02, until=lambda profile: profile.stats.spared_ticks
        )
    stats = profile.stats
    assert stats.sampler_cpu_s < 0.5 * stats.duration_s
    assert stats.spared_ticks <= stats.ticks


@pytest.mark.parametrize("duration", [0.3, 0.5, 0.9])
def test_samples_stand_for_no_more_time_than_passed(monkeypatch, duration):
    """The timer also counts what interrupts and the host of a virtual machine take from the thread."""
    times, begin, pause = [], PerfEvents.begin, PerfEvents.pause

    def note_begin(self):
        times.append(time.perf_counter_ns())
        begin(self)

    def note_pause(self):
        pause(self)
        times.append(time.perf_counter_ns())

    monkeypatch.setattr(PerfEvents, "begin", note_begin)
    monkeypatch.setattr(PerfEvents, "pause", note_pause)
    with running(fixture("v3"), "leaf") as target:
        stats = sfsample.record(
            target.pid, duration, sfsample.RecordOptions(rate=500, perf_events=True)
        ).stats
    assert len(times) % 2 == 0
    assert 0 < stats.cpu_sampled_ns <= sum(times[1::2]) - sum(times[::2])


def test_timers_are_stopped_before_the_last_samples_are_unwound(monkeypatch):
    """Otherwise the recording would not end if unwinding takes longer than a period."""
    log, calls, profile = [], [], Profile(2000)
    pause, walk = PerfEvents.pause, ThreadCapturer.walk
    monkeypatch.setattr(PerfEvents, "pause", lambda self: log.append("pause") or pause(self))
    monkeypatch.setattr(ThreadCapturer, "walk", lambda self, *words: log.append("walk") or walk(self, *words))

    def should_stop():
        calls.append((profile.stats.samples, cpu_ns(target.pid)))
        (before, ran_before), (samples, ran) = calls[-2:] if len(calls) > 1 else calls * 2
        if not samples or samples > before or ran < ran_before + 10**7:
            return False
        log.append("end")  # the thread ran since the last call, and nothing was read: samples are waiting
        return True

    with running(fixture("v3"), "leaf") as target:
        sfsample.record(
            target.pid,
            HANG_S,
            sfsample.RecordOptions(rate=2000, perf_events=True),
            profile=profile,
            should_stop=should_stop,
        )
    assert log[log.index("end") + 1] == "pause"
    assert log[-1] == "walk"


def test_samples_are_read_often_for_a_live_window():
    samples, ticks = set(), set()
    with running(fixture("v3"), "leaf") as target:
        window = LiveWindow(99, 1)
        stats = window.profile.stats

        def enough():
            samples.add(stats.samples)
            ticks.add(stats.ticks)
            return stats.samples > 200

        options = sfsample.RecordOptions(perf_events=True)
        sfsample.record(target.pid, 4 * HANG_S, options, profile=window.profile, should_stop=enough)
    assert len(samples) > 12  # a read of every 50 samples would give half as many
    assert len(ticks) > 2


def test_recording_shorter_than_a_period_is_no_overload():
    with running(fixture("v3"), "leaf") as target:
        done = sfsample_command("-p", target.pid, "--perf-events", "-r", 1, "-d", 0.3)
    assert done.code == 0
    assert not any("overloaded" in line for line in done.err)


def test_timers_run_again_before_the_samples_are_unwound(monkeypatch):
    """If unwinding takes long, few samples are missed, and the duration is that of the timers."""
    calls = []

    def note(owner, name, takes_s=0.0):
        real = getattr(owner, name)

        def noting(self, *arguments):
            calls.append((name, time.perf_counter()))
            time.sleep(takes_s)
            return real(self, *arguments)

        monkeypatch.setattr(owner, name, noting)

    for name in ("begin", "pause", "read"):
        note(PerfEvents, name)
    note(PerfProcess, "_sample", takes_s=0.005)
    with running(fixture("v3"), "leaf") as target:
        before = time.perf_counter()
        duration_s = sfsample.record(
            target.pid, 2, sfsample.RecordOptions(rate=200, perf_events=True)
        ).stats.duration_s
    names = [name for name, _ in calls if name != "read"]
    assert names[names.index("pause") + 1] == "begin", "the timers do not run while the rest is unwound"
    assert duration_s <= max(at for name, at in calls if name == "read") - before


def test_recording_ends_in_time_where_unwinding_is_slower_than_sampling(monkeypatch):
    walked_at, walk = [], ThreadCapturer.walk

    def slow(self, *arguments):
        walked_at.append(time.perf_counter())
        time.sleep(0.03)
        return walk(self, *arguments)

    monkeypatch.setattr(ThreadCapturer, "walk", slow)
    with running(fixture("v3"), "leaf") as target:
        stats = sfsample.record(target.pid, 0.5, sfsample.RecordOptions(rate=200, perf_events=True)).stats
    unwound_s = walked_at[-1] - walked_at[0]
    assert unwound_s > 1
    assert stats.duration_s < 0.5 + 2 * max(later - earlier for earlier, later in pairwise(walked_at))
    assert stats.samples <= stats.duration_s * 200 * 1.05
    assert stats.cpu_charged_ns < unwound_s * 1e9


def _text(pid, name):
    with open(f"/proc/{pid}/task/{pid}/{name}", encoding="ascii") as file:
        return file.read()
