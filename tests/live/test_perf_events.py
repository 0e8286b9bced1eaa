"""Kernel timers of a recording: set, refused, read until the target ends, and closed."""

import errno
import gc
import os
import re
import signal
import subprocess
import time

import pytest

import sfsample
from sfsample.errors import NotPermitted
from sfsample.process import perf_events
from sfsample.process.perf_events import PerfEvents
from sfsample.process.perf_records import Named
from sfsample.process.process import LiveProcess
from sfsample.recording.due_threads import Thread
from sfsample.recording.profile import Profile
from tests.live.cli_runner import NOBODY, ended, is_root, sampled
from tests.live.cli_runner import begun as sfsample_begun
from tests.live.cli_runner import sfsample as sfsample_command
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.cpu_time import cpu_ns
from tests.live.perf_recording import (
    FULL,
    ONE_BY_ONE,
    accounted_ns,
    files_of,
    needs_timers,
    perf_process_of,
    record_by_perf,
)
from tests.live.targets import ARCH, HANG_S, fixture, python, running, states, wait_until

pytestmark = [pytest.mark.live, needs_timers]


def once(act):
    """Return a function that calls `act` at its first call only, and always returns False."""
    to_call = [act]

    def call():
        while to_call:
            to_call.pop()()
        return False

    return call


def send_line(process):
    process.stdin.write(b"\n")
    process.stdin.flush()


@needs_gcc
def test_records_of_ended_threads_are_dropped(tmp_path):
    kept = []

    def until(profile):
        if profile.stats.threads <= 400:
            return False
        kept.append(sum(isinstance(thing, Thread) for thing in gc.get_objects()))
        return kept[-1] < profile.stats.threads / 2

    source = ONE_BY_ONE.replace("40000000", "10000000")
    with started(compile_c(tmp_path, "one", source, "-lpthread")) as process:
        threads = record_by_perf(process.pid, until=until).stats.threads
    assert kept, f"only {threads} threads"
    assert kept[-1] < threads / 2


def test_recording_ends_with_the_target_and_keeps_its_last_samples():
    code = "import sys\nprint('ready', flush=True)\nsys.stdin.read(1)\nfor n in range(20_000_000): pass"
    with python(code) as target:
        assert target.stdout.readline() == b"ready\n"
        options = sfsample.RecordOptions(rate=500, perf_events=True)
        profile = sfsample.record(target.pid, HANG_S, options, should_stop=once(lambda: send_line(target)))
    stats = profile.stats
    assert stats.ended_by == "target"
    assert stats.samples > 10
    assert stats.duration_s < HANG_S
    assert accounted_ns(stats) == pytest.approx(stats.cpu_charged_ns, rel=0.2)


def test_poll_does_not_return_for_ended_threads():
    """poll(2) returns at once for the timer of an ended thread."""
    with running(fixture("v3"), "sleep", ends=True) as child:
        wait_until(lambda: states(child.pid) == {"S"}, "asleep")
        events = PerfEvents([child.pid], [child.pid], ARCH, 10**7, 1024)
        events.begin()
        child.signal(signal.SIGKILL)
        wait_until(lambda: states(child.pid) == {"Z"}, "it has ended")
    began = time.monotonic()
    assert not events.wait(0.1)
    assert time.monotonic() - began >= 0.1
    assert events.read() == []
    events.close()


def test_recording_ends_with_the_target_while_timers_are_off():
    with python("while True: pass") as target:
        profile = Profile(2000)
        kill = once(lambda: os.kill(target.pid, signal.SIGKILL))
        options = sfsample.RecordOptions(rate=2000, perf_events=True, max_overhead=1e-6)
        sfsample.record(
            target.pid, HANG_S, options, profile=profile, should_stop=lambda: profile.stats.samples and kill()
        )
    assert profile.stats.ended_by == "target"


# The first thread ends; the other one, which existed before, does not inherit its timer.
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
def test_ended_first_thread_costs_no_cpu_time(tmp_path):
    program = compile_c(tmp_path, "gone", FIRST_GONE, "-lpthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            profile, begin = Profile(99), once(lambda: send_line(process))
            options = sfsample.RecordOptions(perf_events=True)
            sfsample.record(
                process.pid,
                HANG_S,
                options,
                profile=profile,
                should_stop=lambda: begin() or profile.stats.samples > 50,
            )
        finally:
            process.kill()
    assert profile.stats.samples > 50
    assert profile.stats.sampler_cpu_s < 0.2 * profile.stats.duration_s


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="other machines have other names for personality(2)"
)
def test_personality_of_sfsample_makes_no_difference():
    with running(fixture("v3"), "leaf") as target:
        done = sampled("-p", target.pid, "--perf-events", "-d", "0.2", wrapper=("setarch", "linux32"))
    assert done.code == 0


def test_timers_are_closed_if_they_cannot_be_started(monkeypatch):
    def fails(events):
        raise sfsample.TargetError(0, "cannot be started")

    monkeypatch.setattr(PerfEvents, "begin", fails)
    refusal = pytest.raises(sfsample.TargetError, match="cannot be started")
    with running(fixture("v3"), "leaf") as target, refusal:
        sfsample.record(target.pid, 1, sfsample.RecordOptions(perf_events=True))
    assert not [name for name in files_of(os.getpid()) if "perf_event" in name]


@pytest.mark.parametrize("after", [1, 2, 3, 4])  # descriptors: of the timers, then of their rings
def test_interrupted_close_can_be_repeated(monkeypatch, after):
    close, calls = os.close, []

    def interrupted(descriptor):
        close(descriptor)
        calls.append(descriptor)
        if len(calls) == after:
            raise KeyboardInterrupt

    with running(fixture("v3"), "leaf") as target:
        events = PerfEvents([target.pid], [target.pid], ARCH, 10_000_000, 4096)
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", interrupted)
            with pytest.raises(KeyboardInterrupt):
                events.close()
            events.close()
        assert not [name for name in files_of(os.getpid()) if "perf_event" in name]


def test_a_setuid_program_among_the_threads_keeps_timers_for_the_others(monkeypatch):
    """The kernel refuses its timers with EACCES, as another user's."""
    real, pid = perf_events._open, os.getpid()

    def opened(syscall, attributes, tid, cpu, flags=0):
        if tid == refused:
            raise PermissionError(errno.EACCES, "refused")
        return real(syscall, attributes, tid, cpu, flags)

    monkeypatch.setattr(perf_events, "_open", opened)
    with running(fixture("v3"), "leaf") as target:
        refused = target.pid
        assert perf_events.can_set_timers([refused, pid], ARCH)
        assert not perf_events.can_set_timers([refused], ARCH)
        PerfEvents([pid, refused], [pid, refused], ARCH, 10**9, 4096).close()
        with pytest.raises(NotPermitted):
            PerfEvents([refused], [refused], ARCH, 10**9, 4096)


def test_ended_threads_leave_the_history():
    with running(fixture("v3"), "leaf") as target:
        process = LiveProcess(target.pid, attach=False)
        perf_process = perf_process_of(process)
        ended = [Named(0, target.pid, 1 << 23 | n, "worker", program=False) for n in range(1000)]
        for records in ended, ():
            perf_process.begin()
            perf_process.take(records, 0)
        process.close()
    assert not perf_process._tid_history.tids


def test_summary_says_that_no_thread_was_stopped():
    with running(fixture("v3"), "leaf") as target:
        done = sampled("-p", target.pid, "--perf-events")
        target.assert_unharmed()
    assert done.code == 0
    assert any(re.match("target;_start;.*;main;", stack) for stack in done.stacks())
    assert "  pause     none: the kernel copied the stacks in timer interrupts" in done.err
    assert all(FULL in line for line in done.err if "not captured" in line)


def test_ctrl_c_ends_the_recording_and_keeps_its_samples():
    with running(fixture("v3"), "leaf") as target, sfsample_begun("-p", target.pid, "--perf-events") as child:
        wait_until(lambda: any("perf_event" in name for name in files_of(child.pid)), "timers are set")
        before = cpu_ns(target.pid)
        wait_until(lambda: cpu_ns(target.pid) > before + 10**9, "it has run")
        child.send_signal(signal.SIGINT)
        done = ended(child)
    assert done.code == 0
    assert any("main" in stack for stack in done.stacks())


@pytest.mark.skipif(not is_root(), reason="needs root to become another user")
def test_missing_permission_is_reported():
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        if int(file.read()) < 2:
            pytest.skip("here every user may set timers")
    with subprocess.Popen([*NOBODY, "sleep", "1000"]) as target:
        try:
            first, *more = (
                sfsample_command("-p", target.pid, "--perf-events", wrapper=NOBODY).refused(4).splitlines()
            )
        finally:
            target.kill()
    assert first == f"sfsample: not permitted to set timers (perf_event_open(2)): {target.pid}"
    assert any("perf_event_paranoid" in line for line in more)


def test_too_few_files_for_timers_of_threads_are_said(monkeypatch):
    def without_files(syscall, attributes, tid, cpu, flags=0):
        if tid > 0 and not flags:  # no control group
            raise OSError(errno.EMFILE, "Too many open files")
        return open_event(syscall, attributes, tid, cpu, flags)

    open_event = perf_events._open
    monkeypatch.setattr(perf_events, "_open", without_files)
    refusal = pytest.raises(sfsample.UnsupportedTarget, match="for the timers of 5 threads")
    with running(fixture("v3"), "threads") as target, refusal as refused:
        record_by_perf(target.pid)
    assert re.search(r"allow \d+: ulimit -n", refused.value.help[0])


def test_memory_that_may_not_be_locked_is_named(monkeypatch):
    """Rings become smaller down to 16 KiB, and the copies with them; then the error says what was short."""
    most, sizes, ring_type = [20 << 10], [], perf_events._Ring

    def limited(event, size):
        sizes.append(size)
        if size > most[0]:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return ring_type(event, size)

    monkeypatch.setattr(perf_events, "_Ring", limited)
    with running(fixture("v3"), "leaf") as target:
        stats = record_by_perf(target.pid).stats
        assert stats.samples
        assert all("ulimit -l" in problem for problem in stats.problems if "ring" in problem)
        assert min(sizes) == 16 << 10
        most[0] = 0
        with pytest.raises(sfsample.NotPermitted, match="no memory left to lock") as refused:
            record_by_perf(target.pid)
        assert "ulimit -l" in refused.value.help[0]


def test_rings_share_the_memory_that_may_be_locked(monkeypatch):
    """Other users than root may lock less; the first ring buffer must leave some for the others."""
    left, ring_type = [600 << 10], perf_events._Ring

    def limited(event, size):
        if size > left[0]:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        left[0] -= size
        return ring_type(event, size)

    def closed(ring):
        left[0] += ring._size
        close(ring)

    close = ring_type.close
    monkeypatch.setattr(perf_events, "_Ring", limited)
    monkeypatch.setattr(ring_type, "close", closed)
    monkeypatch.setattr(perf_events, "_online_cpus", lambda: sorted(os.sched_getaffinity(0))[:2])
    with running(fixture("v3"), "leaf") as target:
        record_by_perf(target.pid)
    assert left == [600 << 10]
