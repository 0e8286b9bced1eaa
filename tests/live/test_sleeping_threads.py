"""Sleeping threads are read without a stop; sfsample knows which system calls survive a stop.

The target reports each call that returns (`sleepers.py`); without a stop none does.
"""

import sys
from pathlib import Path

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.core.snapshot import Capture
from sfsample.dumping.collect import _age_ns
from sfsample.process.capture import ThreadCapturer
from sfsample.process.facts.thread_facts import FactReader
from sfsample.process.had_cpu import is_seldom
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.syscall_restart import restarts
from sfsample.process.thread_files import ThreadFiles
from sfsample.process.tracer_thread import TracerThread
from tests.live.hanging import hung
from tests.live.recording import record_samples
from tests.live.sleepers import CALLS
from tests.live.targets import ARCH, Target, fixture, running, started, status, tids, wait_until

pytestmark = pytest.mark.live
SLEEPERS = str(Path(__file__).with_name("sleepers.py"))
# not in the list of process/syscall_restart.py; they fail, or return early, when the thread is stopped
FAIL = {
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "semop", "semtimedop", "rt_sigtimedwait", "io_getevents",
    "io_uring_enter", "recvfrom_timeout", "read_socket_timeout", "write_partly",
} & CALLS.keys()  # fmt: skip
# those of them that begin again (process/syscall_mending.py)
MENDED = {
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "semop", "semtimedop", "rt_sigtimedwait", "io_getevents",
} & (CALLS.keys() if ARCH is AMD64 else set())  # fmt: skip
# restarted, but not in the list: a socket can have a time limit, an open can wait for a driver; python-ptrace
# has no name for futex_waitv
UNLISTED = {"recvfrom", "accept", "open_fifo", "futex_waitv"}
# calls that continue with their time limit as restart_syscall(2)
RESTARTED = {
    "poll", "poll_timeout", "nanosleep", "clock_nanosleep", "futex_timeout", "futex_bitset",
} & CALLS.keys()  # fmt: skip


def syscall(proc: ProcFs, tid: int) -> SyscallInfo | None:
    facts = FactReader(proc)
    return facts.syscall(tid, facts.wchan(tid))


def short(name: str) -> str:
    """Return the first 15 letters, which are the name of the thread."""
    return name[:15]


def ready(target: Target) -> dict[str, int]:
    """Wait until every thread sleeps; return their ids by the name of their call (15 letters)."""
    target.await_ready()
    return {status(target.pid, tid)["Name"]: tid for tid in tids(target.pid) if tid != target.pid}


def stop_all(pid: int, sleepers: dict[str, int]) -> dict[str, bool]:
    """Stop every thread three times; return for each whether sfsample expected its call to survive."""

    def work(_stop):
        live = LiveProcess(pid)
        try:
            expected = {
                name: restarts(live.proc, live.proc.thread(tid).asleep()) for name, tid in sleepers.items()
            }
            for tid in sleepers.values():
                for _ in range(3):
                    live.capture(live.thread(tid))
                    wait_until(lambda tid=tid: live.proc.thread(tid).asleep(), "asleep again")
            return expected
        finally:
            live.close()

    return TracerThread(work, lambda: False).run()


def test_system_calls_that_fail_after_a_stop():
    with started([sys.executable, SLEEPERS, "{fd}"]) as target:
        sleepers = ready(target)
        expected = stop_all(target.pid, sleepers)
        returned = {line.split()[1] for line in target.reader.available()}
        target.assert_unharmed()

    assert returned == FAIL - MENDED
    unharmed = {name for name, survives in expected.items() if survives}
    assert unharmed == {short(name) for name in CALLS.keys() - FAIL - UNLISTED}


def test_restarted_call_is_reported_with_its_arguments():
    """Some calls become restart_syscall(2) when they are stopped."""
    with started([sys.executable, SLEEPERS, "{fd}", *(CALLS.keys() - FAIL)]) as target:
        sleepers = ready(target)
        proc = ProcFs(target.pid)
        before = {name: syscall(proc, tid) for name, tid in sleepers.items()}
        stop_all(target.pid, sleepers)
        after = {name: syscall(proc, tid) for name, tid in sleepers.items()}
        proc.close()
        target.assert_unharmed()

    assert {name for name, call in after.items() if call.restarted} == RESTARTED
    assert {name: call[:2] for name, call in after.items()} == {n: call[:2] for n, call in before.items()}


@pytest.mark.parametrize("how", ["record", "dump"])
def test_call_of_a_sleeping_thread_never_returns(how):
    """No call returns.

    libffi needs the frame pointer, which cannot be read without a stop: a dump stops threads whose call
    survives it, and no others.  The first thread reads a pipe, and none of its callers uses the frame
    pointer.
    """
    with started([sys.executable, SLEEPERS, "{fd}"]) as target:
        sleepers = ready(target)
        if how == "record":
            stats = record_samples(target.pid, 10 * len(sleepers), rate=99, mode="wall").stats
            assert stats.eintr_prone_stops == 0
        else:
            threads = {thread.tid: thread for thread in sfsample.dump(target.pid).threads}
            main = threads[target.pid]
            assert threads.keys() >= set(sleepers.values())
            assert main.stack.stop_reason == "outermost"
            unharmed = {short(name) for name in CALLS.keys() - FAIL - UNLISTED}
            # elsewhere the return address of the function with the system call is in a register: it is
            # stopped
            unharmed |= set() if ARCH is AMD64 else {main.name}
            stopped = {t.name for t in threads.values() if t.capture is Capture.STOPPED}
            assert stopped == unharmed
            assert {t.stack.stop_reason for t in threads.values() if t.name in unharmed} == {"outermost"}
        assert target.reader.available() == []
        target.assert_unharmed()


@pytest.mark.parametrize(("running_polls", "captured"), [(3, Capture.READ), (1 << 30, Capture.STOPPED)])
def test_dump_waits_for_a_thread_that_seldom_runs(monkeypatch, running_polls, captured):
    """The thread seems to run: for a moment, or for longer than the dump waits."""
    real, polls = ThreadFiles.asleep, []

    def asleep(files: ThreadFiles) -> SyscallInfo | None:
        polls.append(files.tid)
        return None if len(polls) <= running_polls else real(files)

    with hung(fixture("v3"), "sleep", read=1) as target:
        proc = ProcFs(target.pid)
        stat, facts = proc.stat(), FactReader(proc)
        wait_until(lambda: is_seldom(facts.usage(target.pid).ran_ns, _age_ns(stat.starttime)), "old")
        monkeypatch.setattr(ThreadFiles, "asleep", asleep)
        [thread] = sfsample.dump(target.pid).threads
        assert thread.capture is captured
        assert len(polls) > running_polls or captured is Capture.STOPPED
        assert thread.stack.stop_reason == "outermost"
        proc.close()


def test_dump_stops_a_thread_that_often_runs_at_once(monkeypatch):
    with running(fixture("v3"), "leaf") as target:
        proc = ProcFs(target.pid)
        facts, stat = FactReader(proc), proc.stat()
        wait_until(lambda: not is_seldom(facts.usage(target.pid).ran_ns, _age_ns(stat.starttime)), "busy")
        monkeypatch.setattr(
            ThreadCapturer, "wait_until_asleep", lambda *_: pytest.fail("the dump waited for it")
        )
        [thread] = sfsample.dump(target.pid).threads
        assert thread.capture is Capture.STOPPED
        proc.close()
