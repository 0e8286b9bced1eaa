"""`dump --consistent` releases no thread before the last one is captured."""

import itertools
import json

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import StopReason
from sfsample.process.consistent_capture import ConsistentCapture, capture_consistently
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.proc_text import Stat
from sfsample.process.process import LiveProcess
from sfsample.process.stack_copy import StackCopy
from sfsample.process.thread import Thread
from sfsample.process.tracer_thread import TracerThread
from sfsample.unwind.unwinder import Unwinder
from tests.live.cli_runner import sfsample as command
from tests.live.targets import ARCH, fixture, running, status, tids, wait_until

pytestmark = pytest.mark.live


def state(pid: int, tid: int) -> str:
    return status(pid, tid)["State"][0]


def test_all_running_threads_are_stopped_while_one_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fixture("v3"), "threads", 6) as target:
        workers = tids(target.pid)[1:]
        wait_until(lambda: state(target.pid, target.pid) == "S", "the first one waits for the others")
        states_at_copy: list[tuple[int, set[str]]] = []
        states_at_maps: list[set[str]] = []
        fill = StackCopy.fill

        def note_states(self: StackCopy, thread: Thread, sp: int, until_ns: int = 1 << 63) -> bool:
            states_at_copy.append((thread.tid, {state(target.pid, worker) for worker in workers}))
            return fill(self, thread, sp, until_ns)

        def note_state() -> None:
            states_at_maps.append({state(target.pid, worker) for worker in workers})

        def work(_stop: object) -> dict[int, tuple[Capture, StopReason]]:
            live = LiveProcess(target.pid)
            try:
                unwinder, read_maps = Unwinder(live.modules), live.proc.maps
                monkeypatch.setattr(live.proc, "maps", lambda: note_state() or read_maps())
                capture = capture_consistently(live)
                assert capture.ran == ()
                snapshots = {
                    **capture.stopped,
                    **{tid: read.snapshot for tid, read in capture.asleep.items()},
                }
                assert all(isinstance(snapshot, ThreadSnapshot) for snapshot in snapshots.values())
                return {t: (s.capture, unwinder.walk(s).stop_reason) for t, s in snapshots.items()
                        if isinstance(s, ThreadSnapshot)}  # fmt: skip
            finally:
                live.close()

        monkeypatch.setattr(StackCopy, "fill", note_states)
        walks = TracerThread(work, lambda: False).run()
        assert sorted(walks) == tids(target.pid)
        # elsewhere the caller of the function that makes the system call is in a register, which is not read
        end = StopReason.OUTERMOST if ARCH is AMD64 else walks[target.pid][1]
        assert walks[target.pid] == (Capture.READ, end)
        assert {walks[tid] for tid in workers} == {(Capture.STOPPED, StopReason.OUTERMOST)}
        assert {tid for tid, _ in states_at_copy} == set(tids(target.pid))
        assert all(states == {"t"} for _, states in states_at_copy), states_at_copy
        assert states_at_maps[0] == {"t"}


def test_reused_id_of_another_process_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fixture("v3"), "leaf") as first, running(fixture("v3"), "deep") as other:

        def work(_stop: object) -> ConsistentCapture:
            live = LiveProcess(first.pid)
            try:
                stat = live.proc.stat()
                assert stat is not None
                listed = [(other.pid, stat._replace(state="R"))]
                monkeypatch.setattr(live.proc, "thread_stats", lambda: listed)
                return capture_consistently(live)
            finally:
                live.close()

        captured = TracerThread(work, lambda: False).run().stopped[other.pid]
        assert isinstance(captured, NotCaptured)
        assert captured.reason is Reason.GONE


@pytest.mark.parametrize(("later", "looks"), [(0, 2), (1, 1)])
def test_reused_id_of_another_thread_starts_a_new_history(
    monkeypatch: pytest.MonkeyPatch, later: int, looks: int
) -> None:
    """Both threads sleep, and each has run once: only their start times differ."""
    threads, delays = LiveProcess.threads, itertools.count(step=later)

    def listed(self: LiveProcess) -> list[tuple[int, Stat]]:
        delay = next(delays)
        return [(tid, stat._replace(starttime=stat.starttime + delay)) for tid, stat in threads(self)]

    monkeypatch.setattr(LiveProcess, "threads", listed)
    with running(fixture("v3"), "sleep") as target:
        wait_until(lambda: state(target.pid, target.pid) == "S", "it sleeps")
        [thread] = sfsample.dump(target.pid, looks=2, interval=0).threads
    assert len(thread.looks) == looks


def test_consistent_dump_by_the_command_line() -> None:
    with running(fixture("v3"), "threads", 4) as target:
        done = command("dump", "-p", target.pid, "--json", "--consistent")
        (process,) = json.loads(done.out)["processes"]
        if done.code == 0:  # on a busy machine a thread may not stop in time, which is reported
            assert process["consistent"] is True
            assert [thread["tid"] for thread in process["threads"]] == tids(target.pid)
            found = {frame["function"] for thread in process["threads"] for frame in thread["frames"]}
            assert found >= {"main", "worker_alpha", "worker_beta", "worker_gamma", "worker_delta"}
        text = command("dump", "-p", target.pid, "--consistent").out.decode()
        assert "\n   all threads at one instant" in text
        assert (
            json.loads(command("dump", "-p", target.pid, "--json").out)["processes"][0]["consistent"] is None
        )
