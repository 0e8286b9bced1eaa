"""Recordings in which the kernel's timers take over: the same truth before and after, and none of it twice.

Law: that no processor is free is said by the test, where it is not the test's own busy loops that see to it;
whether the timers then do their work, by the samples.
"""

import contextlib
import os
import random
import signal
import subprocess
import time

import pytest

from sfsample import api
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.errors import NotPermitted
from sfsample.process.perf_events import may_set
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording import choose_sampler as relay
from sfsample.recording.free_cpus import FreeCpus
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_sampler import PerfSampler
from sfsample.recording.profile import Profile
from tests.live.chains import Checker
from tests.live.cli_runner import sfsample as sfsample_command
from tests.live.recording import fewer
from tests.live.targets import ARCH, HANG_S, assert_untraced, fixture, python, running, tracers, wait_until
from tests.live.test_breakers import compile_c, needs_gcc, started
from tests.live.test_chains import chains_of
from tests.live.test_cpu_truth import cpu_ns
from tests.live.test_perf_events import MANY, accounted_ns, files_of

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not may_set([os.getpid()], ARCH), reason="the kernel sets no timers for us"),
]
SAMPLES = fewer(50)
ENOUGH_S = 4 * HANG_S


def relayed(pid, until, *, crowded=None, duration=ENOUGH_S, timeline=False):
    """Record; no processor is free once there are samples, unless `crowded` says otherwise."""
    profile = Profile(500, timeline=timeline)
    options = RecordOptions(500, duration, timeline=timeline, max_pause=1.0)

    def work(stop):
        target = LiveProcess(pid)
        try:
            some = lambda: profile.stats.samples >= SAMPLES  # noqa: E731
            recording = relay.Relay([target], options, 256 << 10, profile, crowded=crowded or some)
            return recording.run(lambda: stop() or until(profile))
        finally:
            target.close()

    return TracerThread(work, lambda: False).run()


def by_both(profile):
    captures = profile.stats.captures
    return captures[Capture.STOPPED] >= SAMPLES and captures[Capture.EVENT] >= SAMPLES


@pytest.mark.parametrize("scenario", ["leaf", "threads", "recursion"])
def test_the_stacks_are_the_same_before_and_after(scenario):
    program, seen = str(fixture("v3")), []

    def until(profile):
        if profile.stats.captures[Capture.EVENT]:
            seen.append(tracers(target.pid))
        return by_both(profile)

    with running(program, scenario) as target:
        profile = relayed(target.pid, until)
        chains = chains_of(program, scenario, target)
        Checker(program).check(profile, chains)
        assert_untraced(target.pid)
    assert set().union(*seen) == set()
    stats = profile.stats
    assert stats.timers is not None
    assert stats.timers.since_s > 0
    assert stats.timers.until_s is None
    assert stats.threads == len({(key.tid, key.born) for key in profile.counts})
    assert stats.samples == sum(profile.counts.values())


def test_the_time_goes_on():
    with running(fixture("v3"), "leaf") as target:
        profile = relayed(target.pid, lambda _: False, duration=3.0, timeline=True)
    stats, line = profile.stats, profile.timeline
    assert stats.ended_by == "duration"
    assert stats.duration_s >= 3
    assert stats.ticks == 1500
    assert list(line.at_ns) == sorted(line.at_ns)
    assert line.at_ns[-1] <= stats.duration_s * 1e9
    assert min(line.wall_ns) > 0
    # before they took over, threads that wait for a processor get fewer samples
    since_ns = stats.timers.since_s * 1e9
    later = sum(cpu for cpu, at in zip(line.cpu_ns, line.at_ns, strict=True) if at > since_ns)
    assert 0 < later <= 3.1e9 - since_ns
    assert 0 < accounted_ns(stats) <= 1.1 * stats.cpu_charged_ns
    assert 0 < stats.sampler_cpu_s < stats.duration_s


def stopped_again(profile):
    """Whether it went on as it began, for long enough."""
    timers, captures = profile.stats.timers, profile.stats.captures
    if timers is None or timers.until_s is None:
        profile.before = captures[Capture.STOPPED]
        return False
    return captures[Capture.STOPPED] >= profile.before + SAMPLES


def test_stacks_that_no_interrupt_copies_are_copied_again():
    program = str(fixture("v3"))
    with running(program, "signal") as target:
        profile = relayed(target.pid, stopped_again)
        chains_of(program, "signal", target)
        assert_untraced(target.pid)
    stats = profile.stats
    assert "an interrupt could not copy enough" in stats.timers.why
    assert stats.timers.since_s < stats.timers.until_s <= stats.duration_s
    assert stats.captures[Capture.EVENT] < 0.9 * stats.samples


DEEPER = """
#include <signal.h>
#include <stdio.h>
static volatile sig_atomic_t deep;
static void deeper(int number) { deep = 1; }
static __attribute__((noinline)) void shallow(void) { for (int i = 0; i < 10000; i++) __asm__ volatile(""); }
static __attribute__((noinline)) void large(void) {
    volatile char much[24 << 10];  /* all of it touched: an interrupt reads no page that is not there */
    for (unsigned i = 0; i < sizeof much; i += 1024) much[i] = 1;
    shallow();
    much[1] = 1;
}
int main(void) {
    signal(SIGUSR1, deeper);
    puts("ready"); fflush(stdout);
    for (;;) if (deep) large(); else shallow();
}
"""


@needs_gcc
def test_stacks_that_grow_are_copied_by_the_timers_all_the_same(tmp_path):
    def grown(profile):
        events = profile.stats.captures[Capture.EVENT]
        if events < SAMPLES:
            return False
        process.send_signal(signal.SIGUSR1)
        return profile.stats.timers.until_s is not None or events >= 20 * SAMPLES

    with started(compile_c(tmp_path, "deeper", DEEPER)) as process:
        stats = relayed(process.pid, grown).stats
    assert (stats.timers.until_s, stats.timers.why) == (None, "")
    assert stats.stacks[StopReason.OUTERMOST] > stats.stacks[StopReason.STACK_COPY_ENDED]


def test_how_much_is_copied_is_learned_from_the_timers_own_samples(monkeypatch):
    """There were enough by stops; of the timers' first two or three next to nothing can be told."""
    known: list[int] = []
    set_anew = PerfSampler._set_anew

    def noted(self, stack_bytes):
        known.append(sum(one.samples for one in self._evented.values()))
        set_anew(self, stack_bytes)

    monkeypatch.setattr(PerfSampler, "_set_anew", noted)
    with running(fixture("v3"), "leaf") as target:
        relayed(target.pid, by_both)
    assert min(known) >= 20


@needs_gcc
def test_threads_that_live_for_too_short_a_time_are_stopped_again(tmp_path):
    with started(compile_c(tmp_path, "many", MANY, "-lpthread")) as process:
        profile = relayed(process.pid, lambda so: so.stats.timers and so.stats.timers.until_s,
                          crowded=lambda: True)  # fmt: skip
        assert_untraced(process.pid)
    assert profile.stats.timers.why == "too much of the CPU time gave no sample"


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
def test_threads_that_have_left_when_we_come_to_stop_them_are_seen(tmp_path):
    with started(compile_c(tmp_path, "brief", BRIEF, "-lpthread")) as process:
        profile = relayed(process.pid, lambda so: so.stats.captures[Capture.EVENT] >= SAMPLES,
                          crowded=lambda: False)  # fmt: skip
        assert_untraced(process.pid)
    stats = profile.stats
    assert stats.ended_by == "signal"
    assert stats.timers == (stats.timers.since_s, None, "", "threads ran too briefly to be stopped")
    assert stats.captures[Capture.STOPPED] < SAMPLES


def test_what_stops_find_is_compared_with_what_the_cpu_time_is_worth():
    """In ten seconds, in which a tenth of the ticks was missed."""
    recording = relay.Relay([], RecordOptions(99, 10), 1 << 18, crowded=lambda: False)
    recording._start = time.monotonic() - 10
    stats = recording.profile.stats
    stats.ticks, stats.late_ticks, stats.samples = 990, 99, 10
    found = []
    for cpu_s in (0.1, 1, 2):
        stats.cpu_charged_ns = round(cpu_s * 1e9)
        found.append(recording._found())
    assert found[0] == 1  # nine samples are due: that says nothing
    assert found[1:] == pytest.approx([10 / 89.1, 10 / 178.2], rel=0.01)


def test_timers_that_stand_still_to_cost_less_are_no_reason(monkeypatch):
    monkeypatch.setattr(FreeCpus, "lacks", lambda _: True)
    with running(fixture("v3"), "leaf") as target:
        stats = api.record(target.pid, 4, rate=1000, max_overhead=0.005).stats
    assert stats.spared_ticks > 1000
    assert stats.timers is not None
    assert stats.timers.until_s is None


def test_what_sleeps_is_left_to_who_is_there():
    with running(fixture("v3"), "sleep") as target:
        profile = relayed(target.pid, lambda _: False, crowded=lambda: True, duration=0.3)
    assert profile.stats.timers is None


def test_all_cpu_time_is_charged_once(monkeypatch):
    """Also what passes between the one and the other; `signal` is stopped again."""
    inside, events = [], relay.PerfSampler

    def late(*words, **more):
        before = cpu_ns(target.pid)
        wait_until(lambda: cpu_ns(target.pid) > before + 100_000_000, "it has run meanwhile")
        return events(*words, **more)

    monkeypatch.setattr(relay, "PerfSampler", late)

    def until(profile):
        if profile.stats.samples:
            inside.append(cpu_ns(target.pid))
        return stopped_again(profile)

    with running(fixture("v3"), "signal") as target:
        first = cpu_ns(target.pid)
        profile = relayed(target.pid, until)
        last = cpu_ns(target.pid)
    assert inside[-1] - inside[0] <= profile.stats.cpu_charged_ns <= last - first


def test_where_timers_are_refused_it_goes_on(monkeypatch):
    asked = []
    monkeypatch.setattr(relay, "may_set", lambda *_: bool(asked.append(1)))
    with running(fixture("v3"), "leaf") as target:
        profile = relayed(target.pid, lambda so: so.stats.samples > 2 * SAMPLES)
    assert asked == [1]
    assert profile.stats.timers is None
    assert profile.stats.captures[Capture.EVENT] == 0


def test_where_timers_are_refused_later_it_goes_on_and_says_so(monkeypatch):
    def refuse(pids, *_):
        raise NotPermitted(next(iter(pids)), "not permitted today")

    monkeypatch.setattr("sfsample.recording.perf_sampler.open_events", refuse)
    with running(fixture("v3"), "leaf") as target:
        profile = relayed(target.pid, stopped_again)
    assert profile.stats.timers.why == "not permitted today"
    assert profile.stats.captures[Capture.EVENT] == 0


SPINS_UNTIL_TOLD = """
import os, sys, threading
print('ready', flush=True)
threading.Thread(target=lambda: (sys.stdin.read(1), os._exit(0))).start()
while True: pass
"""


def test_it_ends_with_the_target_while_timers_run():
    with python(SPINS_UNTIL_TOLD) as target:
        assert target.stdout.readline() == b"ready\n"
        end = iter([lambda: (target.stdin.write(b"\n"), target.stdin.flush())])

        def until(profile):
            if by_both(profile):
                next(end, lambda: None)()
            return False

        profile = relayed(target.pid, until)
    assert profile.stats.ended_by == "target"
    assert by_both(profile)


def test_a_failure_is_not_the_end(monkeypatch):
    """Of the timers: whoever stops threads may still go on."""
    from sfsample.recording.perf_sampler import PerfSampler

    read, calls = PerfSampler._read, iter(range(1000))

    def fails(self):
        if next(calls) == 3:
            raise OSError(5, "Input/output error")
        return read(self)

    monkeypatch.setattr(PerfSampler, "_read", fails)
    with running(fixture("v3"), "leaf") as target:
        profile = relayed(target.pid, stopped_again)
    assert "Input/output error" in profile.stats.timers.why
    assert not profile.stats.failure


@pytest.mark.parametrize(
    "options", [{"mode": "wall"}, {"subprocesses": True}, {"stop": False}, {"perf_events": False}]
)
def test_it_is_for_recordings_of_what_runs_that_may_stop_it(monkeypatch, options):
    made = []
    monkeypatch.setattr(relay, "Relay", lambda *_, **__: made.append(1))
    with running(fixture("v3"), "leaf") as target:
        api.record(target.pid, 0.1, **options)
        assert not made
        monkeypatch.undo()
        monkeypatch.setattr(FreeCpus, "lacks", lambda _: True)
        stats = api.record(target.pid, 0.5, **{**options, "perf_events": None, "mode": "cpu"}).stats
    assert (stats.timers is not None) == (options.keys() <= {"mode", "perf_events"})


def test_an_exception_at_any_instant_leaves_nothing(monkeypatch):
    """The end of the process does not clean up after us where the program goes on."""
    rng = random.Random(1)  # noqa: S311 - no secret
    monkeypatch.setattr(FreeCpus, "lacks", lambda _: True)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    over = []
    try:
        with running(fixture("v3"), "threads") as target:
            for _ in range(60):
                profile = Profile(5000)
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the timer is part of it
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.002, 0.1))
                    api.record(target.pid, 60, rate=5000, profile=profile)
                over.append(profile.stats.timers)
                assert_untraced(target.pid)
                assert not [name for name in files_of(os.getpid()) if "perf_event" in name]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert any(over)


@contextlib.contextmanager
def busy_processors():
    """One busy loop for each."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(HANG_S)


def test_busy_processors_are_seen_to_be():
    with busy_processors():
        asked = FreeCpus()
        wait_until(asked.lacks, "no processor is free")


def test_the_command_line_tells_when_they_took_over():
    with busy_processors(), running(fixture("v3"), "leaf") as target:
        done = sfsample_command("-p", target.pid, "-d", 4)
        target.assert_unharmed()
    assert done.code == 0
    told = [line for line in done.err if line.startswith("  timers    of the kernel took over at ")]
    assert len(told) == 1
    assert told[0].endswith("as no processor was free; nothing was stopped from then on")


def test_it_can_be_had_without():
    with busy_processors(), running(fixture("v3"), "leaf") as target:
        done = sfsample_command("-p", target.pid, "-d", 2, "--no-perf-events")
    assert done.code == 0
    assert not [line for line in done.err if "timers" in line]
