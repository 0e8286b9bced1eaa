"""Signals and job stops of other processes have the same effect on the target as without sfsample.

System calls that a stop interrupts are counted exactly.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.process import capture_running
from sfsample.process.permission.check import check
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.stop_request import StopRequest, StopState, Tracer
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.profile import Profile
from tests.live.chains import Checker, listed_chains
from tests.live.cli_runner import wait_until_sampled
from tests.live.recording import record_samples
from tests.live.targets import (
    ARCH,
    HANG_S,
    LineReader,
    Target,
    first_line,
    fixture,
    python,
    running,
    states,
    tids,
    wait_until,
)

pytestmark = [pytest.mark.live]

N, STOPS = 3000, 50
# Sends N signals, and then more until its input is closed.  sigqueue(3) fails when the queue is full, kill(2)
# would drop the signal silently.  After each signal it sleeps, so that the target can empty its queue, and
# signals arrive one by one, inside and outside of pauses.
SENDER = f"""
import ctypes, errno, select, signal, sys, time
libc, pid, sent = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), 0
print("sending", flush=True)
while sent < {N} or not select.select([0], [], [], 0)[0]:
    if libc.sigqueue(pid, int(signal.SIGRTMIN), ctypes.c_void_p(sent)) == 0:
        sent += 1
    elif ctypes.get_errno() != errno.EAGAIN:
        sys.exit(f"sigqueue: {{ctypes.get_errno()}}")
    time.sleep(0.0002)
print("sent", sent, flush=True)
"""


def counted(target: Target) -> int:
    """Return how many signals the target has handled."""
    target.signal(signal.SIGUSR2)
    return target.reader.number("count")


@pytest.mark.parametrize("rate", [300, 5000])
def test_no_signal_is_lost(rate):
    with running(fixture("v3"), "signals") as target:
        with python(SENDER, target.pid) as sender:
            assert first_line(sender) == "sending"

            def sent(profile: Profile) -> bool:
                """Whether the sender has ended; its input is closed after enough stops."""
                if profile.stats.pauses.count >= STOPS:
                    sender.stdin.close()
                return sender.poll() is not None

            profile = record_samples(target.pid, STOPS, rate=rate, until=sent)
            assert sender.returncode == 0
            number = LineReader(sender.stdout.fileno()).number("sent")
        assert profile.stats.ended_by == "signal"
        assert profile.stats.pauses.count >= STOPS
        assert number >= N
        wait_until(lambda: counted(target) == number, f"all {number} signals arrived")
        assert profile.stats.samples == profile.stats.stacks[StopReason.OUTERMOST]


def test_signal_during_a_stop_is_delivered():
    """The signal is pending when sfsample requests the stop."""

    with running(fixture("v3"), "signals") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)
        for _ in range(300):
            target.signal(signal.SIGRTMIN)
            assert tracer.stop(request) is None
            target.signal(signal.SIGRTMIN)
            tracer.release()
        assert tracer.release_pending()
        wait_until(lambda: counted(target) == 600, "all 600 signals arrived")


def test_signal_is_delivered_after_a_lost_wait_status():
    """Ctrl-C can interrupt sfsample between waitpid(2) and the use of its result."""
    from sfsample.process import stop_request as module

    with running(fixture("v3"), "signals") as target:
        tracer = module.Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)
        for _ in range(300):
            target.signal(signal.SIGRTMIN)
            assert tracer.stop(request) is None
            request.state, request.signal_number = StopState.REQUESTED, 0
            tracer.release()
            assert tracer.release_pending()
        wait_until(lambda: counted(target) == 300, "all 300 signals arrived")


def test_ctrl_z_suspends_sfsample_and_not_the_target():
    with running(fixture("v3"), "threads", "3") as target:
        command = [
            sys.executable,
            "-m",
            "sfsample",
            "-q",
            "-p",
            str(target.pid),
            "-r",
            "500",
            "-o",
            os.devnull,
        ]
        sampler = subprocess.Popen([*command, "--mode", "wall"])
        try:
            wait_until_sampled(tids(target.pid)[-1])  # one that spins
            for _ in range(20):
                sampler.send_signal(signal.SIGTSTP)
                wait_until(lambda: state_of(sampler.pid) == "T", "sfsample is suspended")
                assert "t" not in states(target.pid)
                sampler.send_signal(signal.SIGCONT)
                wait_until(lambda: state_of(sampler.pid) != "T", "sfsample continues")
            sampler.send_signal(signal.SIGINT)
            assert sampler.wait(HANG_S) == 0
        finally:
            sampler.kill()
            sampler.wait()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.mark.parametrize("scenario", ["leaf", "sleep", "threads"])
def test_job_stopped_target_stays_stopped(scenario):
    program = str(fixture("v3"))
    with running(program, scenario, stopped=True) as target:
        target.stop_and_wait()
        chains = listed_chains(program)[scenario]
        profile = record_samples(target.pid, 40, mode="wall")
        target.assert_unharmed(stopped=True)
        Checker(program).check(profile, dict.fromkeys({key.tid for key in profile.counts}, chains))

        for thread in sfsample.dump(target.pid).threads:
            assert thread.state == "T"
            assert thread.capture is Capture.READ or ARCH is not AMD64  # a caller may be in a register
            assert thread.stack.stop_reason is StopReason.OUTERMOST
        target.assert_unharmed(stopped=True)

        options = sfsample.RecordOptions(rate=200)
        assert sfsample.record(target.pid, 0.05, options).stats.samples == 0  # it uses no CPU
        target.signal(signal.SIGCONT)
        wait_until(lambda: not states(target.pid) & {"t", "T"}, "resumed")
        record_samples(target.pid, 5, mode="wall")
        target.stop_and_wait()


def test_stopped_and_continued_while_recording():
    """In any order of job control and ptrace stops, job control decides.

    A job-stopped thread is read; a frame whose CFA needs an unknown register is then searched for on the
    stack.
    """
    program = str(fixture("v3"))
    with running(program, "leaf") as target:
        turns = []

        def toggle() -> bool:
            turns.append(None)
            target.signal(signal.SIGSTOP if len(turns) % 2 else signal.SIGCONT)
            return len(turns) >= 200

        options = sfsample.RecordOptions(rate=2000, mode="wall")
        profile = sfsample.record(target.pid, 60, options, should_stop=toggle)
        assert profile.stats.samples >= 5
        assert len(turns) == 200  # ended with SIGCONT
        Checker(program).check(profile, {target.pid: listed_chains(program)["leaf"]}, labels=ARCH is AMD64)


@pytest.mark.parametrize("mended", [False, *[True] * (ARCH is AMD64)])
def test_calls_that_a_stop_interrupts_are_counted(monkeypatch, mended):
    """epoll_wait(2) fails with EINTR at each stop of the thread, unless `mend` makes it begin again.

    sfsample counts exactly as many failures as the target.
    """
    if not mended:
        monkeypatch.setattr(capture_running, "mend", lambda *_: False)
    with running(fixture("v3"), "epoll") as target:

        def stop(_) -> int:
            live, prone = LiveProcess(target.pid), 0
            try:
                for _ in range(60):
                    wait_until(lambda: live.proc.thread(target.pid).asleep(), "asleep")
                    if live.capture(live.thread(target.pid)).eintr:
                        prone += 1
                        # until then it may be on its way out of the call, which /proc reports as sleeping in
                        # it
                        assert target.reader.number("eintr") == prone
                return prone
            finally:
                live.close()

        prone = TracerThread(stop, lambda: False).run()
        wait_until(lambda: states(target.pid) == {"S"}, "asleep again")
        assert target.reader.available() == []
        assert prone == 0 if mended else 5 <= prone <= 60


def test_recording_interrupts_no_call():
    """A thread that sleeps in epoll_wait(2) is read, not stopped."""
    with running(fixture("v3"), "epoll") as target:
        proc = ProcFs(target.pid)
        wait_until(lambda: proc.thread(target.pid).asleep(), "asleep")
        proc.close()
        stats = record_samples(target.pid, 60, rate=200, mode="wall").stats
        assert stats.captures == {Capture.READ: 1, Capture.REUSED: stats.samples - 1}  # it never ran
        assert (stats.eintr_prone_stops, stats.pauses.count) == (0, 0)
        assert target.reader.available() == []


def test_calls_that_the_kernel_restarts_are_not_counted():
    with running(fixture("v3"), "sleep") as target:
        profile = record_samples(target.pid, 60, rate=200, mode="wall")
        assert profile.stats.eintr_prone_stops == 0
