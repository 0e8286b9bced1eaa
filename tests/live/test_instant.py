"""`dump --consistent`: no thread is let go before the last has been captured.

Law: seen from outside, at the instant itself: while any thread is captured, every one that runs is held.
"""

import itertools
import json
import os

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import StopReason
from sfsample.process.consistent_capture import ConsistentCapture
from sfsample.process.not_captured import NotCaptured
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import Stat
from sfsample.process.stack_copy import StackCopy
from sfsample.process.thread import Thread
from sfsample.process.tracer_thread import TracerThread
from sfsample.unwind.unwinder import Unwinder
from tests.live.cli_runner import sfsample as command
from tests.live.targets import ARCH, fixture, running, status, tids, wait_until

pytestmark = pytest.mark.live


def state(pid: int, tid: int) -> str:
    return status(pid, tid)["State"][0]


def test_every_running_thread_is_held_while_any_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fixture("v3"), "threads", 6) as target:
        workers = tids(target.pid)[1:]
        wait_until(lambda: state(target.pid, target.pid) == "S", "the first one waits for them")
        seen: list[tuple[int, set[str]]] = []
        fill = StackCopy.fill

        def spied(self: StackCopy, thread: Thread, sp: int) -> None:
            seen.append((thread.tid, {state(target.pid, worker) for worker in workers}))
            fill(self, thread, sp)

        def work(_stop: object) -> dict[int, tuple[Capture, StopReason]]:
            live = LiveProcess(target.pid)
            try:
                unwinder = Unwinder(live.modules)
                taken = live.capture_consistently()
                assert taken.ran == ()
                snapshots = {**taken.stopped, **{tid: one.snapshot for tid, one in taken.read.items()}}
                assert all(isinstance(one, ThreadSnapshot) for one in snapshots.values())
                return {t: (s.capture, unwinder.walk(s).stop_reason) for t, s in snapshots.items()
                        if isinstance(s, ThreadSnapshot)}  # fmt: skip
            finally:
                live.close()

        monkeypatch.setattr(StackCopy, "fill", spied)
        walks = TracerThread(work, lambda: False).run()
        assert sorted(walks) == tids(target.pid)
        # the caller of what calls the kernel is in a register elsewhere, which is not read
        end = StopReason.OUTERMOST if ARCH is AMD64 else walks[target.pid][1]
        assert walks[target.pid] == (Capture.READ, end)
        assert {walks[tid] for tid in workers} == {(Capture.STOPPED, StopReason.OUTERMOST)}
        assert {tid for tid, _ in seen} == set(tids(target.pid))
        assert all(states == {"t"} for _, states in seen), seen


def test_a_thread_id_that_was_given_to_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fixture("v3"), "leaf") as one, running(fixture("v3"), "deep") as other:

        def work(_stop: object) -> ConsistentCapture:
            live = LiveProcess(one.pid)
            try:
                stat = live.proc.stat()
                assert stat is not None
                listed = [(other.pid, stat._replace(state="R"))]
                monkeypatch.setattr(live.proc, "thread_stats", lambda: listed)
                return live.capture_consistently()
            finally:
                live.close()

        taken = TracerThread(work, lambda: False).run().stopped[other.pid]
        assert isinstance(taken, NotCaptured)
        assert taken.gone


@pytest.mark.parametrize(("later", "looks"), [(0, 2), (1, 1)])
def test_a_thread_id_that_was_given_to_another_thread(
    monkeypatch: pytest.MonkeyPatch, later: int, looks: int
) -> None:
    """Both sleep, and each has run once: nothing but the time of their birth tells them apart."""
    threads, births = LiveProcess.threads, itertools.count(step=later)

    def listed(self: LiveProcess) -> list[tuple[int, Stat]]:
        born = next(births)
        return [(tid, stat._replace(starttime=stat.starttime + born)) for tid, stat in threads(self)]

    monkeypatch.setattr(LiveProcess, "threads", listed)
    with running(fixture("v3"), "sleep") as target:
        wait_until(lambda: state(target.pid, target.pid) == "S", "it sleeps")
        [thread] = sfsample.dump(target.pid, looks=2, interval=0).threads
    assert len(thread.looks) == looks


def test_the_command_line() -> None:
    with running(fixture("v3"), "threads", 4) as target:
        done = command("dump", "-p", target.pid, "--json", "--consistent")
        (process,) = json.loads(done.out)["processes"]
        if done.code == 0:  # on a machine under load a thread may not stop in time, and is told
            assert process["consistent"] is True
            assert [thread["tid"] for thread in process["threads"]] == tids(target.pid)
            found = {frame["function"] for thread in process["threads"] for frame in thread["frames"]}
            assert found >= {"main", "worker_alpha", "worker_beta", "worker_gamma", "worker_delta"}
        text = command("dump", "-p", target.pid, "--consistent").out.decode()
        assert "\n   all threads at one instant" in text
        assert (
            json.loads(command("dump", "-p", target.pid, "--json").out)["processes"][0]["consistent"] is None
        )
        command("dump", "-p", os.getpid(), "--consistent", "--no-stop").refused(2)
