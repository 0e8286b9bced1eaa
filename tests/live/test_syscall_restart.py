"""System calls that a stop interrupts begin again; a signal has the same effect as without sfsample.

The target reports each call that returns.  `mend` is replaced, so that the test acts while the thread is held
and its call is about to begin again.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.process import capture_running
from sfsample.process.not_captured import Reason
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.ptrace import RegisterReader
from sfsample.process.stop_request import StopRequest, Tracer
from sfsample.process.tracer_thread import TracerThread
from tests.live.targets import ARCH, Target, started, states, wait_until

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(ARCH is not AMD64, reason="calls begin again on x86-64 only"),
]

SLEEPER = """
import ctypes, os, select, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
libc, fd = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
epoll, events = select.epoll(), ctypes.create_string_buffer(1000)
os.write(fd, b"ready %d\\n" % os.getpid())
while True:
    found = libc.epoll_wait(epoll.fileno(), events, 10, -1)
    os.write(fd, b"%d %d\\n" % (found, ctypes.get_errno()))
"""
KILLED = """
import os, signal, sys
from sfsample.process import capture_running
from sfsample.process.process import LiveProcess
mend = capture_running.mend
capture_running.mend = lambda *arguments: mend(*arguments) and os.kill(os.getpid(), signal.SIGKILL)
process = LiveProcess(int(sys.argv[1]))
process.capture(process.thread(process.pid))
"""


def capture(
    target: Target, monkeypatch: pytest.MonkeyPatch, while_held: Callable[[], object]
) -> ThreadSnapshot:
    """Stop the thread in its call; call `while_held` when `mend` has returned."""
    mend = capture_running.mend

    def mend_and_more(tid: int, reader: RegisterReader) -> bool:
        assert mend(tid, reader)
        while_held()
        return True

    def work(_stop):
        live = LiveProcess(target.pid)
        try:
            wait_until(lambda: live.proc.thread(target.pid).asleep(), "asleep")
            snapshot = live.capture(live.thread(target.pid))
            wait_until(lambda: live.proc.thread(target.pid).asleep(), "asleep again")
            return snapshot
        finally:
            live.close()

    with monkeypatch.context() as patched:
        patched.setattr(capture_running, "mend", mend_and_more)
        return TracerThread(work, lambda: False).run()


@pytest.mark.parametrize(
    ("number", "returned"),
    [
        (None, []),
        (signal.SIGUSR1, ["-1 4"]),  # a handler runs, and the call is interrupted, as without sfsample
        (signal.SIGUSR2, []),  # ignored: without sfsample it would not wake the thread
    ],
)
def test_call_returns_only_for_a_handler(monkeypatch, number, returned):
    with started([sys.executable, "-c", SLEEPER, "{fd}"]) as target:
        target.await_ready()
        for _ in range(5):
            snapshot = capture(target, monkeypatch, lambda: number and os.kill(target.pid, number))
            assert not snapshot.eintr
            assert [target.reader.line() for _ in returned] == returned
            assert target.reader.available() == []
        os.kill(target.pid, signal.SIGUSR1)
        wait_until(lambda: target.reader.available() == ["-1 4"], "a signal still interrupts it")
        target.assert_unharmed()


@pytest.mark.parametrize("seen", [True, False], ids=["status seen", "stops after the poll"])
def test_call_of_a_thread_that_stops_late_begins_again(monkeypatch, seen):
    poll = Tracer._poll
    pending = False

    def late(self: Tracer, tid: int) -> tuple[int, int]:
        if not pending:
            return 0, 0
        wait_until(lambda: states(tid) == {"t"}, "it has stopped")
        return poll(self, tid) if seen else (0, 0)

    monkeypatch.setattr(Tracer, "_poll", late)

    def work(_stop):
        nonlocal pending
        tracer = Tracer(target.pid, AMD64)
        assert tracer.stop(StopRequest(target.pid), 0).reason is Reason.PENDING
        pending = True
        assert tracer.release_pending()

    with started([sys.executable, "-c", SLEEPER, "{fd}"]) as target:
        target.await_ready()
        proc = ProcFs(target.pid)
        wait_until(lambda: proc.thread(target.pid).asleep(), "asleep")
        TracerThread(work, lambda: False).run()
        wait_until(lambda: proc.thread(target.pid).asleep(), "asleep again")
        proc.close()
        assert target.reader.available() == []
        target.assert_unharmed()


def test_thread_sleeps_on_when_sfsample_is_killed():
    with started([sys.executable, "-c", SLEEPER, "{fd}"]) as target:
        target.await_ready()
        proc = ProcFs(target.pid)
        wait_until(lambda: proc.thread(target.pid).asleep(), "asleep")
        done = subprocess.run([sys.executable, "-c", KILLED, str(target.pid)], check=False)
        assert done.returncode == -signal.SIGKILL
        wait_until(lambda: proc.thread(target.pid).asleep(), "asleep again")
        proc.close()
        assert target.reader.available() == []
        target.assert_unharmed()
