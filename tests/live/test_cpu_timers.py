"""Threads that end before a timer of their own fires are sampled by timers of CPUs."""

import os
import subprocess
from contextlib import contextmanager
from errno import EACCES, EBADF

import pytest

import sfsample
from sfsample.process import perf_events
from sfsample.process.cgroup import common_cgroup
from sfsample.process.perf_events import can_set_cpu_timers
from sfsample.recording.choose_sampler import FreeCpus
from sfsample.recording.profile import Profile
from sfsample.recording.summary import summary_lines
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.perf_recording import ONE_BY_ONE
from tests.live.recording import fewer
from tests.live.targets import ARCH, HANG_S, assert_untraced, fixture, python, running

pytestmark = [
    pytest.mark.live,
    needs_gcc,
    pytest.mark.skipif(not can_set_cpu_timers(ARCH), reason="the kernel permits no timers of CPUs"),
]

RATE = 198
SHORT = ONE_BY_ONE.replace("40000000", "2500000")  # ns; half a period
SAMPLES = fewer(300)
CPU_CLOCK = 0  # PERF_COUNT_SW_CPU_CLOCK


def record(pid, samples=SAMPLES, until=lambda _stats: True, **options):
    profile = Profile(RATE)
    sfsample.record(
        pid, 4 * HANG_S, sfsample.RecordOptions(rate=RATE, **options), profile=profile,
        should_stop=lambda: profile.stats.samples >= samples and until(profile.stats),
    )  # fmt: skip
    return profile


def refuse(monkeypatch):
    """Have the kernel refuse timers of CPUs, as it does without CAP_PERFMON."""
    opened = perf_events._open

    def open_event(syscall, attributes, *more):
        if attributes.config == CPU_CLOCK:
            raise OSError(EACCES, "Permission denied")
        return opened(syscall, attributes, *more)

    monkeypatch.setattr(perf_events, "_open", open_event)


@pytest.mark.parametrize("options", [{}, {"perf_events": True}])
def test_short_threads_are_sampled(tmp_path, options):
    with started(compile_c(tmp_path, "one", SHORT, "-lpthread")) as process, python("while True: pass"):
        profile = record(process.pid, **options)
        assert_untraced(process.pid)
    stats = profile.stats
    assert stats.timers_of == "cpus"
    assert stats.coverage > 0.8
    assert stats.samples / 2 < stats.threads
    assert set(profile.processes.values()) == {"one"}, "nothing of the other process"


@pytest.mark.parametrize("options", [{}, {"perf_events": True}])
def test_summary_says_what_to_do_where_timers_of_cpus_are_refused(tmp_path, monkeypatch, options):
    refuse(monkeypatch)
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 0.0)  # no other reason for timers
    with started(compile_c(tmp_path, "one", SHORT, "-lpthread")) as process:
        stats = record(
            process.pid, 1, lambda stats: stats.lacks_timers or stats.timers_refused, **options
        ).stats
    assert stats.timers_of == ("threads" if options else None)
    lines = [*summary_lines(stats, "cpu")]
    [at] = (at for at, line in enumerate(lines) if "timers of the CPUs would see threads" in line)
    assert "kernel.perf_event_paranoid=0" in lines[at + 1]
    if options:  # timers of threads see few of them
        assert lines[0].startswith("coverage  ")
        assert at == 1


def test_threads_that_live_long_keep_timers_of_their_own():
    with running(fixture("v3"), "leaf") as target:
        stats = record(target.pid, 100, perf_events=True).stats
    assert stats.timers_of == "threads"


# A shell that starts one short process after another.
CHILDREN = "while :; do {program} & wait; done"


def test_descendants_are_sampled_and_others_are_not(tmp_path):
    program = compile_c(tmp_path, "burn", "int main(void) { for (volatile int n = 0; n < 20000000; n++); }")
    with (
        subprocess.Popen(["sh", "-c", CHILDREN.format(program=program)]) as shell,
        python("while True: pass"),
    ):
        try:
            profile = record(shell.pid, 50, perf_events=True, subprocesses=True)
        finally:
            shell.kill()
    assert set(profile.processes.values()) <= {"sh", "burn"}
    assert "burn" in profile.processes.values()


@contextmanager
def own_cgroup():
    """Make a control group; yield its path, and the words before a command that run it in the group."""
    root = common_cgroup([os.getpid()])
    path = f"{root}/sfsample-test-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as failure:
        pytest.skip(f"no control group can be made: {failure}")
    try:
        yield path, ("sh", "-c", f'echo $$ > {path}/cgroup.procs; exec "$0" "$@"')
    finally:
        os.rmdir(path)


def test_timers_of_cpus_count_all_threads_where_perf_does_not_know_the_control_group(tmp_path, monkeypatch):
    """As on a machine where perf uses control groups of version 1."""
    refused, opened = [], perf_events._open

    def open_event(syscall, attributes, tid, cpu, flags=0):
        if flags:
            refused.append(cpu)
            raise OSError(EBADF, "Bad file descriptor")
        return opened(syscall, attributes, tid, cpu, flags)

    monkeypatch.setattr(perf_events, "common_cgroup", lambda _: str(tmp_path))
    monkeypatch.setattr(perf_events, "_open", open_event)
    with started(compile_c(tmp_path, "one", SHORT, "-lpthread")) as process:
        profile = record(process.pid, perf_events=True)
    assert refused
    assert profile.stats.timers_of == "cpus"


def test_timers_of_cpus_count_only_the_control_group_of_the_target(tmp_path, monkeypatch):
    program, groups, opened = compile_c(tmp_path, "one", SHORT, "-lpthread"), [], perf_events._open

    def open_event(syscall, attributes, tid, cpu, flags=0):
        if flags:
            groups.append(os.readlink(f"/proc/self/fd/{tid}"))
        return opened(syscall, attributes, tid, cpu, flags)

    with own_cgroup() as (path, wrapper), started(program, wrapper=wrapper) as process:
        monkeypatch.setattr(perf_events, "_open", open_event)
        profile = record(process.pid, perf_events=True)
    assert set(groups) == {path}
    assert profile.stats.coverage > 0.8
