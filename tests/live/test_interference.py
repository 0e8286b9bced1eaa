"""The target survives whatever happens to sfsample, and whatever other tracers do.

A sfsample that is killed, interrupted or refused, or that meets another tracer, leaves a target that runs and
is not traced.  The times are random (fixed seed); each round waits until sfsample holds a thread.
"""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.dumping.options import DumpOptions
from sfsample.dumping.run import dump_all
from sfsample.process import stop_request as tracer
from sfsample.process.process import LiveProcess
from sfsample.process.ptrace import RegisterReader
from sfsample.process.stop_request import Tracer
from tests.live.chains import Checker, listed_chains
from tests.live.recording import record_samples
from tests.live.targets import (
    HANG_S,
    assert_untraced,
    extended,
    first_line,
    fixture,
    python,
    running,
    sampler,
    states,
    tids,
    tracers,
    wait_until,
)

pytestmark = pytest.mark.live

CLONE = {"x86_64": 56, "aarch64": 220}  # system calls
LIBRARY = """
import sys, sfsample
options = sfsample.RecordOptions(rate=float(sys.argv[2]), mode=sys.argv[3], perf_events=False)
sfsample.record(int(sys.argv[1]), 60, options)
"""
# Records until its input is closed.  It prints `sampled` at its first sample; from then on no refusal ends
# it.
OTHER = """
import select, sys, sfsample
profile, printed = sfsample.Profile(2000), []
def stop():
    if profile.stats.samples and not printed:
        printed.append(print("sampled", flush=True))
    return bool(select.select([0], [], [], 0)[0])
options = sfsample.RecordOptions(rate=2000, perf_events=False)
sfsample.record(int(sys.argv[1]), options=options, profile=profile, should_stop=stop)
"""
TRACER = """
import sys
from sfsample.process.permission.check import check
from sfsample.process.procfs import ProcFs
from sfsample.process.ptrace import seize
from sfsample.process.stop_request import StopRequest, Tracer
pid = int(sys.argv[1])
tracer = Tracer(pid, check(ProcFs(pid)))
seize(pid) if sys.argv[2] == "running" else tracer.stop(StopRequest(pid))
print("tracing", flush=True)
sys.stdin.read()
"""


def wait_for_tracer(pid: int, tracer: int) -> None:
    """Return while the tracer holds a thread, or a few microseconds after that.

    The test gets a CPU of its own: sfsample has real-time priority while it holds a thread.
    """
    all_cpus = os.sched_getaffinity(0)
    first, *others = sorted(all_cpus)
    for tid in (*tids(pid), *tids(tracer), *tids(tracer)) if others else ():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(tid, others)
    os.sched_setaffinity(0, {first})
    try:
        wait_until(lambda: tracer in tracers(pid), "the sampler holds a thread")
    finally:
        os.sched_setaffinity(0, all_cpus)


@pytest.mark.parametrize("rounds", [4, extended(24)])
def test_sigkill_at_any_time_leaves_the_target_running(rounds):
    """SIGKILL inside a pause (even rounds) and anywhere (odd rounds)."""
    rng = random.Random(20)  # noqa: S311 - no secret
    program, scenario = str(fixture("v3")), "threads"
    with running(program, scenario) as target:
        for turn in range(rounds):
            with sampler(target.pid, "-r", "500", "--mode", "wall") as child:
                wait_for_tracer(target.pid, child.pid)
                if turn % 2:
                    time.sleep(rng.uniform(0, 0.02))
                    wait_for_tracer(target.pid, child.pid)
                child.kill()
                assert child.wait(HANG_S) == -signal.SIGKILL
            wait_until(lambda: not tracers(target.pid), "untraced")
            target.assert_unharmed()
        chains = listed_chains(program)[scenario]
        profile = record_samples(target.pid, 20)
        Checker(program).check(profile, dict.fromkeys(tids(target.pid), chains))


@pytest.mark.parametrize("number", [extended(signal.SIGINT), signal.SIGTERM])
def test_signal_at_any_time_ends_the_recording(number):
    with running(fixture("v3"), "threads") as target:
        for _ in range(3):
            with sampler(target.pid, "-r", "1000", "--mode", "wall", "-o", "/dev/null") as child:
                wait_for_tracer(target.pid, child.pid)
                child.send_signal(number)
                assert child.wait(HANG_S) == 0, child.stderr.read()
            target.assert_unharmed()


@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_ctrl_c_in_a_program_that_uses_the_library(mode):
    """Python's handler raises KeyboardInterrupt between any two bytecodes."""
    with running(fixture("v3"), "leaf") as target:
        for _ in range(3):
            with python(LIBRARY, target.pid, 2000, mode) as child:
                wait_for_tracer(target.pid, child.pid)
                child.send_signal(signal.SIGINT)
                assert child.wait(HANG_S) == -signal.SIGINT
                assert b"KeyboardInterrupt" in child.stderr.read()
            target.assert_unharmed()


@pytest.mark.parametrize("scenario", ["leaf", "threads"])
def test_ctrl_c_in_a_program_that_goes_on(scenario):
    """A notebook continues after KeyboardInterrupt, so that no end of the process releases the threads."""
    rng = random.Random(1)  # noqa: S311 - no secret
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with running(fixture("v3"), scenario) as target:
            # Imports everything.  An exception inside of an import can leave CPython's import lock locked
            # (importlib._bootstrap._get_module_lock), and the next import in another thread waits for ever.
            sfsample.record(target.pid, 0.1)
            for _ in range(60):
                with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the timer is part of it
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.002, 0.02))
                    sfsample.record(target.pid, 60, sfsample.RecordOptions(rate=5000))
                assert tracers(target.pid) == set()
            target.assert_unharmed()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_exception_of_should_stop_releases_the_target(error):
    with running(fixture("v3"), "leaf") as target:
        calls = []

        def fail() -> bool:
            calls.append(None)
            if len(calls) == 30:
                raise error
            return False

        with pytest.raises(error):
            sfsample.record(target.pid, 60, sfsample.RecordOptions(rate=1000), should_stop=fail)
        target.assert_unharmed()


@pytest.mark.parametrize(
    ("part", "name"),
    [(RegisterReader, "read"), (RegisterReader, "by_dwarf_number"), (Tracer, "_wait"), (Tracer, "_note")],
)
def test_exception_in_the_pause_releases_the_thread(part, name, monkeypatch):
    """Ctrl-C in any call of the pause releases the thread."""
    with running(fixture("v3"), "signals") as target:
        live = LiveProcess(target.pid)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(part, name, interrupted)
        for _ in range(20):
            target.signal(signal.SIGRTMIN)
            with pytest.raises(KeyboardInterrupt):
                live.capture(live.thread(target.pid))
            wait_until(live.running_capture.release_pending, "released")
        monkeypatch.undo()
        live.close()
        assert_untraced(target.pid)

        def counted() -> int:
            target.signal(signal.SIGUSR2)
            return target.reader.number("count")

        wait_until(lambda: counted() == 20, "every signal arrived")


def is_hindered(pid: int, program: str) -> bool:
    """Record for 0.2 s; return True if the other sampler prevented a capture.  Each stack must be right."""
    try:
        profile = sfsample.record(pid, 0.2, sfsample.RecordOptions(rate=2000))
    except sfsample.NotPermitted as failure:  # even the first sample was refused
        assert "not permitted to trace" in str(failure)  # noqa: PT017 - one of two outcomes
        return True
    Checker(program).check(profile, {pid: listed_chains(program)["leaf"]})
    return profile.stats.captures[Capture.FAILED] > 0


def test_two_samplers_at_once():
    """Each sampler sometimes prevents a capture of the other, which counts it.  No stack is wrong."""
    program = str(fixture("v3"))
    with running(program, "leaf") as target:
        with python(OTHER, target.pid) as other:
            assert first_line(other) == "sampled"
            for _ in range(9):
                is_hindered(target.pid, program)
            wait_until(lambda: is_hindered(target.pid, program), "they meet")
            assert other.poll() is None
            other.stdin.close()
            assert other.wait(HANG_S) == 0
        target.assert_unharmed()
        record_samples(target.pid, 5)


@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_target_of_another_tracer_is_refused(mode):
    """The target runs under strace, for example; the help text names the tracer."""
    with running(fixture("v3"), "leaf") as target:
        with python(TRACER, target.pid, "running") as other:
            assert first_line(other) == "tracing"
            with pytest.raises(sfsample.NotPermitted) as refusal:
                sfsample.record(target.pid, 1, sfsample.RecordOptions(mode=mode))
            assert f"process {other.pid} (" in refusal.value.help[0]
            assert refusal.value.exit_code == 4
            assert tracers(target.pid) == {other.pid}
            other.kill()
            other.wait(HANG_S)
        wait_until(lambda: not tracers(target.pid), "untraced")


@pytest.mark.parametrize("consistent", [False, True])
def test_dump_names_the_other_tracer(consistent):
    with running(fixture("v3"), "leaf") as target:
        with python(TRACER, target.pid, "running") as other:
            assert first_line(other) == "tracing"
            [dump], failures = dump_all((target.pid,), DumpOptions(consistent=consistent))
            assert not failures
            [thread] = dump.threads
            assert (thread.stack, thread.error) == (None, f"process {other.pid} traces it")
            assert tracers(target.pid) == {other.pid}
            other.kill()
            other.wait(HANG_S)
        wait_until(lambda: not tracers(target.pid), "untraced")


# Clones itself repeatedly, and waits for each child.
CLONING = """
import ctypes, os, select, sys
call = ctypes.PyDLL(None).syscall
while not select.select([0], [], [], 0)[0]:
    child = call(int(sys.argv[1]), 0x2000 | 17, 0, 0, 0, 0)  # CLONE_PTRACE | SIGCHLD
    if child == 0:
        os._exit(7)
    assert os.waitpid(child, 0) == (child, 7 << 8)
print("all have ended", flush=True)
"""


@pytest.mark.skipif(os.uname().machine not in CLONE, reason="the number of clone(2) is not known here")
def test_child_that_starts_traced_is_released(monkeypatch):
    """clone(2) with CLONE_PTRACE in a traced thread makes sfsample the tracer of the stopped child."""
    detached, detach = [], tracer.detach

    def noting(tid, number):
        detached.append(tid)
        return detach(tid, number)

    def should_stop():
        return len(newborn()) >= 3

    def newborn():
        return [tid for tid in detached if tid != target.pid]

    monkeypatch.setattr(tracer, "detach", noting)
    with python(CLONING, CLONE[os.uname().machine]) as target:
        options = sfsample.RecordOptions(rate=2000, perf_events=False)
        profile = sfsample.record(target.pid, HANG_S, options, should_stop=should_stop)
        target.stdin.close()
        assert first_line(target) == "all have ended"
    assert profile.stats.ended_by == "signal"


def test_target_that_another_tracer_holds_is_read_by_a_dump():
    """gdb, for example, has stopped the target; it stays stopped."""
    with running(fixture("v3"), "leaf") as target:
        with python(TRACER, target.pid, "stopped") as other:
            assert first_line(other) == "tracing"
            with pytest.raises(sfsample.NotPermitted) as refusal:
                sfsample.record(target.pid, 1)
            assert f"process {other.pid} (" in refusal.value.help[0]
            (thread,) = sfsample.dump(target.pid).threads
            assert (thread.state, thread.capture) == ("t", "read")
            assert (tracers(target.pid), states(target.pid)) == ({other.pid}, {"t"})
            other.kill()
            other.wait(HANG_S)
        wait_until(lambda: not tracers(target.pid), "untraced")
