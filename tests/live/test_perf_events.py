"""Recordings by the kernel's timers: the same truth as when threads are stopped, and nobody is stopped.

Law: what the target says of itself is compared with every sample; how much, with the CPU time that the kernel
has charged.  Where the kernel does not let us set timers, the tests say so.
"""

import errno
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from math import sqrt

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.process import perf_events
from sfsample.process.capture import ThreadCapturer
from sfsample.process.perf_events import PerfEvents, open_events
from sfsample.process.perf_records import Named
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.recording.live_window import LiveWindow
from sfsample.recording.perf_process import PerfProcess
from sfsample.recording.profile import Profile
from sfsample.recording.thread_table import Thread
from sfsample.unwind.unwinder import Unwinder
from tests.live.chains import Checker
from tests.live.cli_runner import NOBODY, ended, is_root, sampled
from tests.live.cli_runner import begun as sfsample_begun
from tests.live.cli_runner import sfsample as sfsample_command
from tests.live.recording import fewer
from tests.live.targets import ARCH, HANG_S, assert_untraced, fixture, python, running, states, wait_until
from tests.live.targets import started as begun
from tests.live.compiled import HOST, LOOP_TURNS, compile_c, needs_gcc, started
from tests.live.test_chains import PLAIN, chains_of
from tests.live.test_changing_modules import TWIN, TWINS
from tests.live.test_cpu_shares import SOURCE, seen, shares, truth


def _refused() -> str:
    try:
        open_events([os.getpid()], [os.getpid()], ARCH, 10**7, 1024).close()
    except sfsample.TargetError as refusal:
        return f"{refusal}: {refusal.help[0]}"
    return ""


pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(_refused()), reason=_refused())]

SAMPLES = fewer(100)
# The interrupt copies from sp on, and no further than to a page that nobody has touched yet.
ELSEWHERE = ("signal", "nested-signal")  # handlers on a stack of their own
UNTOUCHED = ("bigframe",)
CUT_SHORT = (StopReason.BAD_MEMORY, StopReason.STACK_COPY_ENDED)
# Where nobody lets us run for a second, that is what happens.  It is counted.
FULL = "not captured: the ring was full before it was read"
REPLACED = "not captured: other code was mapped where it was before it could be unwound"


def by_events(pid, samples=SAMPLES, until=lambda _profile: True, rate=500, **options):
    """Record until there are so many samples; nothing may be stopped."""
    profile = Profile(rate)
    stats = profile.stats
    sfsample.record(pid, 4 * HANG_S, sfsample.RecordOptions(rate=rate, perf_events=True, **options), profile=profile, should_stop=lambda: stats.samples >= samples and until(profile))  # fmt: skip
    assert stats.samples >= samples, f"{stats.samples} samples in {stats.duration_s:.1f} s"
    assert stats.captures[Capture.EVENT] == stats.samples
    assert stats.pauses.count == 0
    return profile


@pytest.mark.parametrize("scenario", [name for name in PLAIN if name not in ELSEWHERE + UNTOUCHED])
def test_every_stack_is_the_one_that_the_target_has(scenario):
    program = str(fixture("v3"))
    with running(program, scenario) as target:
        profile = by_events(target.pid)
        Checker(program).check(profile, chains_of(program, scenario, target))
    assert set(profile.stats.problems) <= {FULL}


@pytest.mark.parametrize("scenario", [name for name in PLAIN if name in ELSEWHERE + UNTOUCHED])
def test_what_the_interrupt_cannot_copy_is_missing_and_said_to_be(scenario):
    program = str(fixture("v3"))
    with running(program, scenario) as target:
        profile = by_events(target.pid)
        checker, [[chain]] = Checker(program), chains_of(program, scenario, target).values()
    told = [token.name for token in chain]
    for key in profile.counts:
        assert key.stop_reason in (StopReason.OUTERMOST, *CUT_SHORT)
        if key.stop_reason in CUT_SHORT:
            places = checker.places(key)
            found = [place.special or place.name for place in places]
            assert found == told[-len(found) :]


RAISING = """
#include <signal.h>
#include <stdio.h>
static void ignored(int number) { }
int main(void) {
    signal(SIGUSR1, ignored);
    puts("ready"); fflush(stdout);
    for (;;) raise(SIGUSR1);
}
"""


@needs_gcc
def test_an_interrupt_may_come_while_the_kernel_returns_from_a_signal(tmp_path):
    """Seen with stress-ng: a tenth of the stacks was `no_row` behind the system call of the trampoline.

    Of 48,000 nine are cut short now: the kernel exchanges one register after the other, sp before pc.
    """
    with started(compile_c(tmp_path, "raising", RAISING)) as process:
        profile = by_events(process.pid, 5 * SAMPLES)
    whole = sum(count for key, count in profile.counts.items() if key.stop_reason is StopReason.OUTERMOST)
    assert whole >= 0.98 * profile.stats.samples


def accounted_ns(stats):
    """The CPU time that was sampled, and what the samples stand for that found no room."""
    return stats.cpu_sampled_ns + stats.problems[FULL] * 1e9 / stats.rate_hz


def test_threads_have_their_own_stacks_and_names():
    program = str(fixture("v3"))
    with running(program, "threads") as target:
        chains = chains_of(program, "threads", target)
        workers = set(chains) - {target.pid}
        everybody = lambda profile: workers <= {key.tid for key in profile.counts}  # noqa: E731
        profile = by_events(target.pid, until=everybody)
        Checker(program).check(profile, chains)
    names = {name for thread, name in profile.threads.items() if thread.tid in workers}
    assert names == {f"worker-{n}" for n in range(4)}


# A thread that lives for 40 ms of its own CPU time, and then the next.
ONE_BY_ONE = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
static volatile long n;
__attribute__((noinline)) static void in_a_thread(void)
{
    struct timespec t;
    do {
        for (int i = 0; i < 10000; i++) n++;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    } while (!t.tv_sec && t.tv_nsec < 40000000);
}
static void *work(void *unused) { in_a_thread(); __asm__ volatile(""); return unused; }
int main(void)
{
    puts("ready"); fflush(stdout);
    for (pthread_t thread;;)
        if (!pthread_create(&thread, 0, work, 0)) pthread_join(thread, 0);
}
"""


@needs_gcc
def test_threads_that_are_born_later_are_sampled_from_their_birth(tmp_path):
    with started(compile_c(tmp_path, "one", ONE_BY_ONE, "-lpthread")) as process:
        profile = by_events(process.pid, until=lambda so: len({key.tid for key in so.counts}) > 50)
        assert_untraced(process.pid)
    stats = profile.stats
    stacks = [line.rpartition(" ") for line in sfsample.folded(profile).splitlines()]
    inside = sum(int(count) for stack, _, count in stacks if "in_a_thread" in stack)
    assert inside > 0.9 * stats.samples
    # what is left of the last period of each thread's life is not seen: half a period, of twenty
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.1)


@needs_gcc
@pytest.mark.parametrize("others", [0, os.cpu_count()])
def test_shares_are_those_of_the_cpu_time(tmp_path, others):
    program = compile_c(tmp_path, "parts", SOURCE, "-pthread")
    with begun([str(program), str(others), "{fd}"]) as beside:
        beside.await_ready()
        with begun([str(program), "1", "{fd}", "sleeps"]) as target:
            target.await_ready()
            before = truth(target)
            profile = by_events(target.pid, 400, rate=400)
            expected = truth(target) - before
            target.assert_unharmed()
    counts = seen(profile)
    number = sum(counts.values())
    for name, share in shares(expected).items():
        tolerance = 4 * sqrt(share * (1 - share) / number) + 0.03
        assert abs(shares(counts).get(name, 0) - share) <= tolerance, (name, counts, expected)
    stats = profile.stats
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.1)


@needs_gcc
def test_row_of_unloaded_library_is_not_used(tmp_path):
    """Between two readings of the rings many have come and gone: what cannot be known is counted as lost."""
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", TWIN.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "twins", TWINS, "-ldl")) as process:
        profile = by_events(process.pid, until=lambda so: so.stats.problems[REPLACED] > SAMPLES)
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    inside = {stack.partition(";main;")[2] for stack in stacks if "_burn" in stack or "_entry" in stack}
    assert inside <= {"a_entry;a_burn", "b_entry;b_burn", "a_entry", "b_entry"}
    assert profile.stats.problems[REPLACED] > SAMPLES


# For some 10 ms: many come and go between two readings of the rings, and each has its own caller.
BRIEF = TWIN.replace("NAME_entry", "entry").replace(str(LOOP_TURNS // 5), "10000000")


@needs_gcc
def test_no_library_is_taken_for_another_that_comes_to_its_place(tmp_path):
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", BRIEF.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "host", HOST, "-ldl")) as process:
        profile = by_events(process.pid, 3 * SAMPLES)
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    wrong = [stack for stack in stacks if re.search("run_a;.*b_burn|run_b;.*a_burn", stack)]
    assert not wrong
    assert any("a_burn" in stack for stack in stacks)


# Until it is told to go on.
PATIENT = """
#include <poll.h>
#include <stdio.h>
static volatile long n;
__attribute__((noinline)) void NAME_burn(void) { for (long i = 0; i < 1000000; i++) n++; }
void entry(void) { for (struct pollfd in = {0, POLLIN}; !poll(&in, 1, 0);) NAME_burn(); getchar(); }
"""


@needs_gcc
def test_what_was_mapped_while_the_timers_stood_still_is_known(tmp_path):
    """As a limit of overhead has them do: that no samples have come for a while shows it."""
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", PATIENT.replace("NAME", name), "-shared", "-fPIC")
    program, pipe = compile_c(tmp_path, "host", HOST, "-ldl"), subprocess.PIPE
    with subprocess.Popen([program], cwd=tmp_path, stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdout.readline() == b"ready\n"
        seen, told = [(0, 0.0)], []

        def until(profile):
            stats, now = profile.stats, time.perf_counter()
            if stats.samples > seen[-1][0]:
                seen.append((stats.samples, now))
            elif stats.samples and not told and now > seen[-1][1] + 0.7:
                process.stdin.write(b"\n")
                told.append(stats.samples)
            return bool(told) and stats.samples > told[0]

        profile = by_events(process.pid, 1, rate=1000, max_overhead=0.003, until=until)
        process.kill()
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    assert not [stack for stack in stacks if re.search("run_a;.*b_burn|run_b;.*a_burn", stack)]


def test_the_cpu_time_is_that_of_the_whole_recording():
    with running(fixture("v3"), "leaf") as target:
        stats = sfsample.record(target.pid, 1.2, sfsample.RecordOptions(rate=500, perf_events=True)).stats
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.1)


# Threads of 0.1 ms.
MANY = ONE_BY_ONE.replace("40000000", "100000").replace("10000;", "100;")


@needs_gcc
def test_a_thread_that_creates_others_keeps_its_own_time(tmp_path):
    """The kernel exchanges the timers of a thread and of those that have inherited them."""
    with started(compile_c(tmp_path, "many", MANY, "-lpthread")) as process:
        used = lambda: int(_text(process.pid, "schedstat").split()[0])  # noqa: E731
        inside = []  # when the timers are set, and just before they are stopped

        def enough():
            inside.append(used())
            return inside[-1] > inside[0] + 5e8

        profile = sfsample.record(process.pid, 4 * HANG_S, sfsample.RecordOptions(rate=200, perf_events=True), should_stop=enough)
    creator = sum(count for key, count in profile.counts.items() if key.tid == process.pid)
    assert creator * 1e9 / 200 == pytest.approx(inside[-1] - inside[0], rel=0.3)


@needs_gcc
def test_what_is_kept_of_threads_that_have_ended_is_dropped(tmp_path):
    kept = []

    def until(profile):
        kept.append(sum(isinstance(one, Thread) for one in gc.get_objects()))
        return profile.stats.threads > 400 and kept[-1] < profile.stats.threads / 2

    source = ONE_BY_ONE.replace("40000000", "10000000")
    with started(compile_c(tmp_path, "one", source, "-lpthread")) as process:
        threads = by_events(process.pid, until=until).stats.threads
    assert kept[-1] < threads / 2


EXEC = """
import os, sys
def inner():
    n = 0
    while n < {turns}: n += 1
inner()
os.execv(sys.argv[1], [sys.argv[1], "leaf", sys.argv[2]])
"""


def test_another_program_is_seen_as_what_it_is():
    """Of the second one also how it begins; compared is what it does from then on."""
    program = str(fixture("v3"))
    words = [sys.executable, "-c", EXEC.format(turns=10_000_000 // (SAMPLES // 10)), program, "{fd}"]
    with begun(words) as target:
        spins = lambda profile: "leaf_spin" in sfsample.folded(profile)  # noqa: E731
        profile = by_events(target.pid, until=spins)
        checker, [[chain]] = Checker(program), chains_of(program, "leaf", target).values()
        target.assert_unharmed()
    found = [checker.places(key) for key in profile.counts if _base(key) == "target"]
    spun = [places for places in found if "leaf_spin" in {place.name for place in places}]
    assert spun
    assert [checker.disagreement(places, chain) for places in spun] == [None] * len(spun)


def _base(key):
    """The program that a stack begins in."""
    module = key.locations[-1].module if key.locations else None
    return module.path.rpartition("/")[2] if module else ""


def test_it_ends_with_the_target_and_what_came_last_is_counted():
    code = "import sys\nprint('ready', flush=True)\nsys.stdin.read(1)\nfor n in range(20_000_000): pass"
    with python(code) as target:
        assert target.stdout.readline() == b"ready\n"
        begin = iter([lambda: (target.stdin.write(b"\n"), target.stdin.flush())])
        profile = sfsample.record(target.pid, HANG_S, sfsample.RecordOptions(rate=500, perf_events=True), should_stop=lambda: next(begin, lambda: None)() and False)  # fmt: skip
    stats = profile.stats
    assert stats.ended_by == "target"
    assert stats.samples > 10
    assert stats.duration_s < HANG_S
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.2)


def test_threads_that_have_ended_do_not_keep_us_awake():
    """Of a file of theirs poll(2) would tell at once that they have."""
    with running(fixture("v3"), "sleep", ends=True) as child:
        wait_until(lambda: states(child.pid) == {"S"}, "asleep")
        events = open_events([child.pid], [child.pid], ARCH, 10**7, 1024)
        events.begin()
        child.signal(signal.SIGKILL)
        wait_until(lambda: states(child.pid) == {"Z"}, "it has ended")
    began = time.monotonic()
    assert not events.wait(0.1)
    assert time.monotonic() - began >= 0.1
    assert events.read() == []
    events.close()


@pytest.mark.parametrize("rate", [1, 10_000])
def test_any_rate(rate):
    with running(fixture("v3"), "leaf") as target:
        profile = by_events(target.pid, 2 if rate == 1 else SAMPLES * 10, rate=rate)
    stats = profile.stats
    assert stats.cpu_sampled_ns == pytest.approx(stats.samples * 1e9 / rate, rel=0.03)


def test_the_limit_of_overhead_is_kept():
    with running(fixture("v3"), "leaf") as target:
        profile = by_events(target.pid, rate=2000, max_overhead=0.02, until=lambda so: so.stats.spared_ticks)
    stats = profile.stats
    assert stats.sampler_cpu_s < 0.5 * stats.duration_s
    assert stats.spared_ticks <= stats.ticks


def test_the_end_of_the_target_is_noticed_while_the_timers_stand_still():
    with python("while True: pass") as target:
        profile = Profile(2000)
        end = iter([lambda: os.kill(target.pid, signal.SIGKILL)])
        sfsample.record(target.pid, HANG_S, sfsample.RecordOptions(rate=2000, perf_events=True, max_overhead=1e-6), profile=profile, should_stop=lambda: profile.stats.samples and next(end, lambda: None)() and False)  # fmt: skip
    assert profile.stats.ended_by == "target"


# The first thread is gone; the other has not inherited its timer from it.
FIRST_GONE = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static volatile long n;
static void *work(void *go)
{
    char c;
    puts("ready"); fflush(stdout);
    read(0, &c, 1);
    usleep(500000);
    for (;;) n++;
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    usleep(300000);
    pthread_exit(0);
}
"""


@needs_gcc
def test_a_thread_that_has_ended_keeps_nobody_awake(tmp_path):
    program = compile_c(tmp_path, "gone", FIRST_GONE, "-lpthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            begin = iter([lambda: (process.stdin.write(b"\n"), process.stdin.flush())])
            profile = Profile(99)
            sfsample.record(process.pid, HANG_S, sfsample.RecordOptions(perf_events=True), profile=profile, should_stop=lambda: bool(next(begin, lambda: None)() and False) or profile.stats.samples > 50)  # fmt: skip
        finally:
            process.kill()
    assert profile.stats.samples > 50
    assert profile.stats.sampler_cpu_s < 0.2 * profile.stats.duration_s


@pytest.mark.parametrize("duration", [0.3, 0.5, 0.9])
def test_no_more_is_sampled_than_there_was_time_for(monkeypatch, duration):
    """A timer counts what interrupts and a virtual machine's host take from a thread, so not its CPU time."""
    times, begin, pause = [], PerfEvents.begin, PerfEvents.pause

    def begins(self):
        times.append(time.perf_counter_ns())
        begin(self)

    def pauses(self):
        pause(self)
        times.append(time.perf_counter_ns())

    monkeypatch.setattr(PerfEvents, "begin", begins)
    monkeypatch.setattr(PerfEvents, "pause", pauses)
    with running(fixture("v3"), "leaf") as target:
        stats = sfsample.record(target.pid, duration, sfsample.RecordOptions(rate=500, perf_events=True)).stats
    assert len(times) % 2 == 0
    assert 0 < stats.cpu_sampled_ns <= sum(times[1::2]) - sum(times[::2])


def test_at_the_end_the_timers_are_stopped_before_the_rest_is_unwound(monkeypatch):
    """Where unwinding takes longer than the time between samples, it would go on for ever so long."""
    log, asked, profile = [], [], Profile(2000)
    pause, walk = PerfEvents.pause, ThreadCapturer.walk
    monkeypatch.setattr(PerfEvents, "pause", lambda self: log.append("pause") or pause(self))
    monkeypatch.setattr(ThreadCapturer, "walk", lambda self, *words: log.append("walk") or walk(self, *words))

    def should_stop():
        asked.append((profile.stats.samples, _cpu_ns(target.pid)))
        (before, ran_before), (samples, ran) = asked[-2:] if len(asked) > 1 else asked * 2
        if not samples or samples > before or ran < ran_before + 10**7:
            return False
        log.append("end")  # it ran, and nothing was read since it was last asked: there is something to read
        return True

    with running(fixture("v3"), "leaf") as target:
        sfsample.record(target.pid, HANG_S, sfsample.RecordOptions(rate=2000, perf_events=True), profile=profile, should_stop=should_stop)
    assert log[log.index("end") + 1] == "pause"
    assert log[-1] == "walk"


def test_who_looks_on_sees_it_soon():
    seen, ticks = set(), set()
    with running(fixture("v3"), "leaf") as target:
        window = LiveWindow(99, 1)
        stats = window.stats
        sfsample.record(target.pid, 4 * HANG_S, sfsample.RecordOptions(perf_events=True), profile=window, should_stop=lambda: seen.add(stats.samples) or ticks.add(stats.ticks) or stats.samples > 200)  # fmt: skip
    assert len(seen) > 12  # of 50 samples each it would be half as many
    assert len(ticks) > 2


def test_no_time_for_a_sample_is_no_overload():
    with running(fixture("v3"), "leaf") as target:
        done = sfsample_command("-p", target.pid, "--perf-events", "-r", 1, "-d", 0.3)
    assert done.code == 0
    assert not any("overloaded" in line for line in done.err)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="personality(2) names the others differently")
def test_another_personality_is_the_same_machine():
    with running(fixture("v3"), "leaf") as target:
        done = sampled("-p", target.pid, "--perf-events", "-d", "0.2", wrapper=("setarch", "linux32"))
    assert done.code == 0


def _has_time_namespaces():
    words = ["unshare", "--time", "--monotonic", "1000", "--fork", "true"]
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.skipif(not _has_time_namespaces(), reason="no time namespace of our own: unshare(1) refuses")
@pytest.mark.parametrize("ahead", ["1000", "-1"])
def test_in_a_time_namespace_of_our_own_it_is_the_same_time(ahead):
    with running(fixture("v3"), "leaf") as target:
        words = ["-p", target.pid, "--perf-events", "-r", "500", "-d", "2", "--format", "json"]
        done = sfsample_command(*words, wrapper=("unshare", "--time", "--monotonic", ahead, "--fork"))
    assert done.code == 0
    seconds = [at_ns / 1e9 for at_ns in json.loads(done.out)["timeline"]["at_ns"]]
    assert min(seconds) < 1 < max(seconds)


def test_timers_are_taken_away_when_they_cannot_be_set_for_all(monkeypatch):
    threads, calls = ProcFs.threads, iter(range(1000))

    def fails(self):
        if next(calls):
            raise sfsample.TargetError(self.pid, "too many files")
        return threads(self)

    with running(fixture("v3"), "leaf") as target:
        monkeypatch.setattr(ProcFs, "threads", fails)
        with pytest.raises(sfsample.TargetError, match="too many files"):
            sfsample.record(target.pid, 1, sfsample.RecordOptions(perf_events=True))
        monkeypatch.undo()
    assert not [name for name in files_of(os.getpid()) if "perf_event" in name]


def test_threads_that_have_ended_are_forgotten():
    with running(fixture("v3"), "leaf") as target:
        process = LiveProcess(target.pid, attach=False)
        evented = PerfProcess(process, Unwinder(process.modules), Profile(99), None)
        ended = [Named(0, target.pid, 1 << 23 | n, "worker", program=False) for n in range(1000)]
        for records in ended, ():
            evented.begin()
            evented.take(records, 0)
        process.close()
    assert not evented._holders.known


def test_the_vdso_is_read_while_it_is_there():
    """It is in no file, and some samples are looked at when the process has ended."""
    with running(fixture("v3"), "leaf", ends=True) as target:
        process = LiveProcess(target.pid, attach=False)
        evented = PerfProcess(process, Unwinder(process.modules), Profile(99), None)
        evented.begin()
        target.process.kill()
        target.process.wait(HANG_S)
        vdso = next(mapping for mapping in process.modules.mappings if mapping.path == "[vdso]")
        assert process.modules.find(vdso.start) is not None
        process.close()


def test_where_it_takes_long_to_unwind_little_is_missed_and_the_duration_is_of_the_timers(monkeypatch):
    told = []

    def tells(owner, name, takes_s=0.0):
        real = getattr(owner, name)

        def telling(self, *arguments):
            told.append((name, time.perf_counter()))
            time.sleep(takes_s)
            return real(self, *arguments)

        monkeypatch.setattr(owner, name, telling)

    for name in ("begin", "pause", "read"):
        tells(PerfEvents, name)
    tells(PerfProcess, "_sample", takes_s=0.005)
    with running(fixture("v3"), "leaf") as target:
        before = time.perf_counter()
        duration_s = sfsample.record(target.pid, 2, sfsample.RecordOptions(rate=200, perf_events=True)).stats.duration_s
    names = [name for name, _ in told if name != "read"]
    assert names[names.index("pause") + 1] == "begin", "others run before what was left is unwound"
    assert duration_s <= max(at for name, at in told if name == "read") - before


def test_where_it_takes_longer_to_unwind_than_there_is_time_it_ends_in_time(monkeypatch):
    taken, walk = [], ThreadCapturer.walk

    def slow(self, *arguments):
        taken.append(time.perf_counter())
        time.sleep(0.03)
        return walk(self, *arguments)

    monkeypatch.setattr(ThreadCapturer, "walk", slow)
    with running(fixture("v3"), "leaf") as target:
        stats = sfsample.record(target.pid, 1.0, sfsample.RecordOptions(rate=200, perf_events=True)).stats
    unwound_s = taken[-1] - taken[0]
    assert unwound_s > 2
    assert stats.duration_s < 1.0 + 2 * max(later - earlier for earlier, later in pairwise(taken))
    assert stats.samples <= stats.duration_s * 200 * 1.05
    assert stats.cpu_charged_ns < unwound_s * 1e9


def test_a_debugger_in_the_target_is_in_nobodys_way():
    tracer = """
import sys
from sfsample.process.find import check
from sfsample.process.procfs import ProcFs
from sfsample.process.stop_request import PTRACE_SEIZE, ptrace
ptrace(PTRACE_SEIZE, int(sys.argv[1]))
print("tracing", flush=True)
sys.stdin.read()
"""
    program = str(fixture("v3"))
    with running(program, "leaf") as target, python(tracer, target.pid) as debugger:
        assert debugger.stdout.readline() == b"tracing\n"
        profile = by_events(target.pid)
        Checker(program).check(profile, chains_of(program, "leaf", target))
        debugger.stdin.close()
        debugger.wait(HANG_S)


def test_the_command_line_says_that_nothing_was_stopped():
    with running(fixture("v3"), "leaf") as target:
        done = sampled("-p", target.pid, "--perf-events")
        target.assert_unharmed()
    assert done.code == 0
    assert any(re.match("target;_start;.*;main;", stack) for stack in done.stacks())
    assert "  pause     none: the kernel copied the stacks in timer interrupts" in done.err
    assert all(FULL in line for line in done.err if "not captured" in line)


def test_ctrl_c_ends_it_and_what_was_seen_is_written():
    with running(fixture("v3"), "leaf") as target, sfsample_begun("-p", target.pid, "--perf-events") as child:
        wait_until(lambda: any("perf_event" in name for name in files_of(child.pid)), "timers are set")
        before = _cpu_ns(target.pid)
        wait_until(lambda: _cpu_ns(target.pid) > before + 10**9, "it has run")
        child.send_signal(signal.SIGINT)
        done = ended(child)
    assert done.code == 0
    assert any("main" in stack for stack in done.stacks())


def _cpu_ns(pid):
    return time.clock_gettime_ns(~pid << 3 | 2)


def _text(pid, name):
    with open(f"/proc/{pid}/task/{pid}/{name}", encoding="ascii") as file:
        return file.read()


def files_of(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue


@pytest.mark.skipif(not is_root(), reason="only root can become somebody who may not")
def test_who_may_not_is_told_what_it_takes():
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        if int(file.read()) < 2:
            pytest.skip("here everybody may")
    with subprocess.Popen([*NOBODY, "sleep", "1000"]) as target:
        try:
            first, *more = (
                sfsample_command("-p", target.pid, "--perf-events", wrapper=NOBODY).refused(4).splitlines()
            )
        finally:
            target.kill()
    assert first == f"sfsample: not permitted to set timers (perf_event_open(2)): {target.pid}"
    assert any("perf_event_paranoid" in line for line in more)


def test_too_few_files_are_told_with_how_many_it_takes():
    with running(fixture("v3"), "threads") as target:
        limit = ["prlimit", "--nofile=24:24"]
        first, *more = (
            sfsample_command("-p", target.pid, "--perf-events", wrapper=limit).refused(1).splitlines()
        )
    assert first == "sfsample: no files left to open: for the timers of 5 threads"
    assert re.search(r"allow \d+: ulimit -n", more[0])


def test_where_less_memory_may_be_locked_all_rings_are_smaller(monkeypatch):
    """As for who is not root: the first ring must not take what the others need."""
    left, whole = [600 << 10], perf_events._Ring

    def limited(event, size):
        if size > left[0]:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        left[0] -= size
        return whole(event, size)

    def closed(ring):
        left[0] += ring._size
        close(ring)

    close = whole.close
    monkeypatch.setattr(perf_events, "_Ring", limited)
    monkeypatch.setattr(whole, "close", closed)
    monkeypatch.setattr(perf_events, "_online_cpus", lambda: sorted(os.sched_getaffinity(0))[:2])
    with running(fixture("v3"), "leaf") as target:
        by_events(target.pid)
    assert left == [600 << 10]
