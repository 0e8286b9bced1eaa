"""The choice between ptrace and perf sampling is made once, within half a second."""

import contextlib
import os
import random
import signal
import subprocess
from functools import partial
from types import SimpleNamespace

import pytest

from sfsample import api
from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture
from sfsample.errors import NotPermitted
from sfsample.process.descendants import Descendants
from sfsample.process.perf_events import can_set_timers
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording import choose_sampler as module
from sfsample.recording.choose_sampler import FreeCpus, TrialSampler
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_sampler import PerfSampler
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile
from tests.live.chains import Checker
from tests.live.cli_runner import Done, is_root, sampled
from tests.live.cli_runner import sfsample as sfsample_command
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.cpu_time import cpu_ns
from tests.live.perf_recording import accounted_ns, files_of
from tests.live.recording import fewer
from tests.live.targets import ARCH, HANG_S, assert_untraced, fixture, python, running, tracers, wait_until
from tests.live.test_chains import chains_of

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not can_set_timers([os.getpid()], ARCH), reason="the kernel permits no timers"),
]

SAMPLES = fewer(50)

MAX_RECORDING_S = 4 * HANG_S


def recorded(
    pid, until, *, all_busy=lambda: 1.0, duration=MAX_RECORDING_S, timeline=False, descendants=False,
    real_time=False,
):  # fmt: skip
    """Record with a trial by ptrace; no CPU is free, unless `all_busy` says otherwise.

    `real_time`: sfsample runs before all ordinary threads of the machine.
    """
    profile = Profile(500, timeline=timeline)
    options = RecordOptions(rate=500, timeline=timeline, max_pause=1.0, python=PythonView.OFF)

    def work(stop):
        if real_time:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # only of this thread, which ends
        finder = Descendants([pid], partial(LiveProcess, attach=False)) if descendants else None
        processes = Processes([LiveProcess(pid)], finder)
        try:
            sampler = TrialSampler(Recording(processes, options, profile, duration))
            sampler._cpus = SimpleNamespace(all_busy=all_busy)
            return sampler.run(lambda: stop() or until(profile))
        finally:
            processes.close(profile.stats)

    return TracerThread(work, lambda: False).run()


def by_both(profile):
    captures = profile.stats.captures
    return captures[Capture.STOPPED] > 0 and captures[Capture.EVENT] >= SAMPLES


@pytest.mark.parametrize("scenario", ["leaf", "threads", "recursion"])
def test_stacks_are_true_before_and_after_the_change(scenario):
    program, tracers_seen = str(fixture("v3")), []

    def until(profile):
        if profile.stats.captures[Capture.EVENT]:
            tracers_seen.append(tracers(target.pid))
        return by_both(profile)

    with running(program, scenario) as target:
        profile = recorded(target.pid, until)
        chains = chains_of(program, scenario, target)
        Checker(program).check(profile, chains)
        assert_untraced(target.pid)
    assert set().union(*tracers_seen) == set()
    stats = profile.stats
    assert stats.timers_since_s >= 0.1
    assert stats.as_json()["engine"] == "timers"
    assert stats.as_json()["engine_why"] == stats.engine_why == "no CPU was free"
    assert stats.threads == len({(key.tid, key.start_time) for key in profile.counts})
    assert stats.samples == sum(profile.counts.values())


def test_times_continue_after_the_change():
    with running(fixture("v3"), "leaf") as target:
        profile = recorded(target.pid, lambda _: False, duration=1.5, timeline=True)
    stats, line = profile.stats, profile.timeline
    assert stats.ended_by == "duration"
    assert stats.duration_s >= 1.5
    assert stats.ticks == 750
    assert list(line.at_ns) == sorted(line.at_ns)
    assert line.at_ns[-1] <= stats.duration_s * 1e9
    assert min(line.wall_ns) > 0
    # before the change, threads that wait for a CPU get fewer samples
    since_ns = stats.timers_since_s * 1e9
    later = sum(cpu for cpu, at in zip(line.cpu_ns, line.at_ns, strict=True) if at > since_ns)
    assert 0 < later <= 1.6e9 - since_ns
    assert 0 < accounted_ns(stats) <= 1.1 * stats.cpu_charged_ns
    assert 0 < stats.sampler_cpu_s < stats.duration_s


# Threads that run for ten microseconds at a time.
BRIEF = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static void *brief(void *unused) {
    struct timespec nap = {0, 200000};
    for (;;) { for (volatile int n = 0; n < 2000; n++); nanosleep(&nap, 0); }
    return unused;
}
int main(void) {
    pthread_t thread;
    for (int i = 0; i < 8; i++) pthread_create(&thread, 0, brief, 0);
    puts("ready"); fflush(stdout);
    pause();
}
"""


@needs_gcc
def test_threads_that_run_too_briefly_for_a_stop_are_sampled_by_timers(tmp_path):
    # neither sfsample nor the threads wait for a CPU, however busy the machine is
    wrapper = ("chrt", "--fifo", "1") if is_root() else ()
    with started(compile_c(tmp_path, "brief", BRIEF, "-lpthread"), wrapper=wrapper) as process:
        profile = recorded(process.pid, lambda profile: profile.stats.captures[Capture.EVENT] >= SAMPLES,
                           all_busy=lambda: 0.0, real_time=is_root())  # fmt: skip
        assert_untraced(process.pid)
    stats = profile.stats
    assert stats.ended_by == "signal"
    assert stats.engine_why == "threads ran too briefly to be stopped"
    assert stats.captures[Capture.STOPPED] < SAMPLES


def test_free_cpus_keep_the_stops():
    with running(fixture("v3"), "leaf") as target:
        stats = recorded(target.pid, lambda profile: profile.stats.engine_why, all_busy=lambda: 0.0).stats
    assert stats.timers_since_s is None
    assert stats.as_json()["engine"] == "ptrace"
    assert stats.engine_why == "CPUs were free, and threads ran long enough to be stopped"


@pytest.mark.parametrize(("descendants", "privileged"), [(True, False), (True, True), (False, False)])
def test_timers_of_descendants_spare_setuid_programs(monkeypatch, descendants, privileged):
    monkeypatch.setattr(module, "stops_keep_privileges", lambda: privileged)
    with running(fixture("v3"), "leaf") as target:
        stats = recorded(target.pid, lambda profile: profile.stats.engine_why and profile.stats.samples,
                         all_busy=lambda: 0.0, descendants=descendants).stats  # fmt: skip
    assert (stats.timers_since_s is not None) == (descendants and not privileged)
    assert ("setuid" in stats.engine_why) == (descendants and not privileged)


def test_busy_cpus_are_a_reason_for_timers(monkeypatch):
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 1.0)
    with running(fixture("v3"), "leaf") as target:
        stats = api.record(target.pid, 0.8).stats
    assert stats.timers_since_s is not None


def test_limit_of_overhead_is_no_reason_against_timers(monkeypatch):
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 1.0)
    with running(fixture("v3"), "leaf") as target:
        profile = Profile(1000)
        stats = profile.stats
        api.record(
            target.pid, HANG_S, api.RecordOptions(rate=1000, max_overhead=0.005), profile=profile,
            should_stop=lambda: stats.spared_ticks > 1000 and stats.timers_since_s is not None,
        )  # fmt: skip
    assert stats.spared_ticks > 1000
    assert stats.timers_since_s is not None


def test_sleeping_threads_keep_the_stops():
    with running(fixture("v3"), "sleep") as target:
        profile = recorded(target.pid, lambda _: False, duration=1.0)
    assert profile.stats.timers_since_s is None


def test_cpu_time_is_charged_once(monkeypatch):
    """The time between the last stop and the start of the timers is charged too."""
    inside, perf_sampler = [], module.PerfSampler

    def late(*arguments, **options):
        before = cpu_ns(target.pid)
        wait_until(lambda: cpu_ns(target.pid) > before + 100_000_000, "it has run meanwhile")
        return perf_sampler(*arguments, **options)

    monkeypatch.setattr(module, "PerfSampler", late)

    def until(profile):
        if profile.stats.samples:
            inside.append(cpu_ns(target.pid))
        return by_both(profile)

    with running(fixture("v3"), "leaf") as target:
        first = cpu_ns(target.pid)
        profile = recorded(target.pid, until)
        last = cpu_ns(target.pid)
    assert inside[-1] - inside[0] <= profile.stats.cpu_charged_ns <= last - first


def test_timers_that_are_not_permitted_keep_the_stops(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "can_set_timers", lambda *_: bool(calls.append(1)))
    with running(fixture("v3"), "leaf") as target:
        stats = recorded(target.pid, lambda _: False, duration=1.0).stats
    assert calls == [1], "the choice is made once"
    assert stats.timers_since_s is None
    assert stats.engine_why == "no CPU was free, but timers are not permitted"
    assert stats.lacks_timers
    assert stats.captures[Capture.EVENT] == 0


def test_timers_that_cannot_be_set_keep_the_stops(monkeypatch):
    def refuse(pid, *_, **__):
        raise NotPermitted(pid, "not permitted today")

    monkeypatch.setattr("sfsample.recording.timer_set.PerfEvents", refuse)
    with running(fixture("v3"), "leaf") as target:
        stats = recorded(target.pid, lambda _: False, duration=1.0).stats
    assert (stats.timers_since_s, stats.ended_by) == (None, "duration")
    assert stats.engine_why == "timers cannot be set: not permitted today"
    assert stats.captures[Capture.EVENT] == 0
    assert stats.ticks == 500


SPINS_UNTIL_INPUT = """
import os, sys, threading
print('ready', flush=True)
threading.Thread(target=lambda: (sys.stdin.read(1), os._exit(0))).start()
while True: pass
"""


def test_recording_ends_with_the_target_while_timers_run():
    with python(SPINS_UNTIL_INPUT) as target:
        assert target.stdout.readline() == b"ready\n"
        end = iter([lambda: (target.stdin.write(b"\n"), target.stdin.flush())])

        def until(profile):
            if by_both(profile):
                next(end, lambda: None)()
            return False

        profile = recorded(target.pid, until)
    assert profile.stats.ended_by == "target"
    assert by_both(profile)


def test_failure_of_the_timers_ends_the_recording_and_keeps_its_samples(monkeypatch):
    read, calls = PerfSampler._read, iter(range(1000))

    def fails(self):
        if next(calls) == 3:
            raise OSError(5, "Input/output error")
        return read(self)

    monkeypatch.setattr(PerfSampler, "_read", fails)
    with running(fixture("v3"), "leaf") as target:
        profile = recorded(target.pid, lambda _: False)
    assert profile.stats.ended_by == "failure"
    assert "Input/output error" in profile.stats.failure[0]
    assert profile.stats.samples


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "wall"}, "timers do not see threads that sleep"),
        ({"stop": False}, "nothing may be stopped"),
        ({"perf_events": False}, "asked for"),
    ],
)
def test_options_that_timers_do_not_serve_keep_the_stops(monkeypatch, options, why):
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 1.0)
    with running(fixture("v3"), "leaf") as target:
        stats = api.record(target.pid, 0.8, RecordOptions(**options)).stats
    assert (stats.timers_since_s, stats.engine_why) == (None, why)


@pytest.mark.extended
def test_exception_at_any_time_closes_the_timers(monkeypatch):
    """A notebook continues after KeyboardInterrupt, so that no end of the process closes them."""
    rng = random.Random(1)  # noqa: S311 - no secret
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 1.0)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    timers = []
    try:
        with running(fixture("v3"), "threads") as target:
            api.record(target.pid, 0.8)  # imports everything; see test_interference.py
            for _ in range(20):
                profile = Profile(5000)
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the timer is part of it
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.002, 1.0))
                    api.record(target.pid, 60, api.RecordOptions(rate=5000), profile=profile)
                timers.append(profile.stats.timers_since_s)
                assert_untraced(target.pid)
                assert not [name for name in files_of(os.getpid()) if "perf_event" in name]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert any(timers)


@contextlib.contextmanager
def busy_cpus():
    """Run one busy loop for each CPU."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(HANG_S)


def test_busy_cpus_are_not_free():
    with busy_cpus():
        cpus = FreeCpus()
        wait_until(lambda: cpus.all_busy() > 0.5, "no CPU is free")


def timers_lines(done: Done) -> list[str]:
    return [line for line in done.err if line.startswith("  timers    kernel timers sampled from ")]


def test_summary_says_when_timers_began():
    with busy_cpus(), running(fixture("v3"), "leaf") as target:
        done = sampled("-p", target.pid, enough=timers_lines)
        target.assert_unharmed()
    assert done.code == 0
    [line] = timers_lines(done)
    assert line.endswith(" s on, because no CPU was free; they stop no thread")


def test_no_perf_events_flag_keeps_the_stops():
    with busy_cpus(), running(fixture("v3"), "leaf") as target:
        done = sfsample_command("-p", target.pid, "-d", 1, "--no-perf-events")
    assert done.code == 0
    assert not [line for line in done.err if "timers" in line]
