"""Capturing a thread: who has a processor, who is asked to stop, and what becomes of who does so late.

Law: made-up facts of the kernel, and a tracer that only notes what it is asked.
"""

import threading
from types import SimpleNamespace

import pytest

from sfsample.core import checkpoint as gate
from sfsample.core.arch import AMD64
from sfsample.core.checkpoint import checkpoint
from sfsample.core.snapshot import LastRun, Scheduled
from sfsample.process.last_run import Balances, balance_of, changed_places
from sfsample.process.procfs import Asleep
from sfsample.process.scheduler import WakeUp, had_processor
from sfsample.process.stack_copy import StackCopy
from sfsample.process.stop_request import NotCaptured
from sfsample.process.stop_window import Capturer, Only

PID = 100
CODE, STACK = 0x40_1000, 0x7000_0000
WOKE = 10_000_000


@pytest.mark.parametrize(
    ("before", "after", "stopped_ns", "slept", "had"),  # where the kernel tells nothing but schedstat
    [
        (b"100 0 5", b"150 0 5", WOKE + 80_000, True, True),  # it never left it
        (
            b"100 0 5",
            b"100 90000 6",
            WOKE + 90_000,
            False,
            True,
        ),  # it lost it when we woke up, and waited since
        (b"100 0 5", b"100 500000 6", WOKE + 90_000, False, False),  # it had been waiting before
        (b"100 0 5", b"5100 1000 6", WOKE + 300_000, True, False),  # it went to sleep; our stop woke it
        (b"100 0 5", b"5100 90000 6", WOKE + 600_000, False, False),  # or somebody woke it meanwhile
        (b"100 0 5", b"100 90000 7", WOKE + 90_000, False, False),
        (None, b"100 90000 7", WOKE, False, True),  # not known
        (b"\t12\nnon", b"\t13\nnon", WOKE, False, True),
    ],
)
def test_who_had_the_processor(before, after, stopped_ns, slept, had):
    assert had_processor(Scheduled(before, after, stopped_ns, slept), WakeUp(WOKE)) is had


@pytest.mark.parametrize(
    ("earlier", "run", "later", "balance"),
    [
        (b"99 0 5", LastRun(b"7.1", 9000, 4), b"100 0 5", 1),
        (b"100 0 5", LastRun(b"7.1", 9000, 5), b"100 0 5", 0),
        (b"100 0 5", LastRun(b"7.1", 9000, 5), b"100 0 6", None),  # it was given one meanwhile
        (b"100 0 5", LastRun(b"7.1", 9000), b"100 0 5", None),  # not known
        (b"100 0 5", None, b"100 0 5", None),
        (b"\t12\nnon", LastRun(b"7.1", 9000, 4), b"\t12\nnon", None),
        (None, LastRun(b"7.1", 9000, 4), None, None),
    ],
)
def test_how_often_a_thread_was_put_on_a_processor_and_taken_off(earlier, run, later, balance):
    assert balance_of(earlier, run, later) == balance


def test_who_has_a_processor():
    balances = Balances()
    assert balances.has_processor(7, 0) is None, "nothing is known yet"
    balances.learn(7, 0, had=False)
    assert (balances.has_processor(7, 0), balances.has_processor(7, 1)) == (False, True)
    assert balances.has_processor(7, None) is None
    assert balances.has_processor(7, -1) is False, "the balance falls now and then"
    assert balances.has_processor(7, 0) is True
    balances.learn(7, -1, had=True)
    assert (balances.has_processor(7, -1), balances.has_processor(7, -2)) == (True, False)
    balances.keep_only([])
    assert balances.has_processor(7, 0) is None


def test_that_a_thread_never_has_a_processor_is_not_believed_for_ever():
    balances = Balances()
    balances.learn(7, 0, had=False)
    said = [balances.has_processor(7, 0) for _ in range(9)]
    assert said == [False] * 8 + [None]


def test_what_a_stop_taught_wrongly_is_put_right_when_the_thread_sleeps():
    """One that had a processor may have lost it, and been given it again, before it stopped."""
    proc = SimpleNamespace(
        pid=PID,
        counters=lambda _: b"100 0 5",
        asleep=lambda _: Asleep(232, (), STACK, CODE),
        last_run=lambda _: LastRun(b"7.1", 9000, 5),
    )
    capturer = Capturer(proc, AMD64, StackCopy(PID, AMD64, lambda _: None, 1024))
    capturer.balances.learn(PID, 1, had=False)
    assert capturer.balances.has_processor(PID, 1) is False

    missed = capturer.capture(PID, only=Only(awake=True, ours=b"se.exec_start : 9.9\n"))

    assert (missed.off, missed.runnable) == (b"100 0 5", False)
    assert capturer.balances.has_processor(PID, 1) is True


class LateTracer:
    """Asks threads to stop, which none of them does."""

    arch = AMD64
    late = ()
    runs_ns = 0

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stopped: set[int] = set()

    def rehearse(self, tid):
        self.calls.append(("rehearse", tid))

    def stop(self, _tid, patience_ns):
        self.calls.append(("stop", patience_ns))
        return NotCaptured(gone=False, why="not yet", waiting=True)

    def release(self):
        return 0

    def has_stopped(self, tid):
        return tid in self.stopped

    def settle(self):
        return not self.late


@pytest.fixture
def late_capturer():
    """One that was to capture threads 1, 2 and 3, which did not stop yet."""
    proc = SimpleNamespace(pid=PID, counters=lambda _: b"100 0 5", asleep=lambda _: None)
    capturer = Capturer(proc, AMD64, StackCopy(PID, AMD64, lambda _: None, 1024))
    capturer.tracer = LateTracer()
    capturer.tracer.late = {1, 2, 3}
    for tid in (1, 2, 3):
        assert capturer.capture(tid, 0).waiting
    yield capturer
    capturer.close()


ENDED = NotCaptured(gone=True, why="ended")


def test_all_that_have_stopped_are_captured_by_whoever_computes_before_one_is_asked_for(
    late_capturer, monkeypatch
):
    monkeypatch.setattr(gate, "_BREATH_NS", 0)
    tracer = late_capturer.tracer
    tracer.calls.clear()
    tracer.stop = lambda tid, _patience: tracer.calls.append(("stop", tid)) or ENDED
    tracer.stopped = {1, 3}

    checkpoint()
    checkpoint()

    assert tracer.calls == [("stop", 1), ("stop", 3)]
    assert [late_capturer.has_stopped(tid) for tid in (1, 2, 3)] == [True, False, True]
    assert late_capturer.capture(1) is ENDED
    assert tracer.calls == [("stop", 1), ("stop", 3)], "it was captured already"
    assert late_capturer.capture(1) is ENDED
    assert tracer.calls[2:] == [("rehearse", 1), ("stop", 1)]


def test_nobody_is_captured_while_another_is(late_capturer, monkeypatch):
    """Both would copy to one place."""
    monkeypatch.setattr(gate, "_BREATH_NS", 0)
    tracer, asked = late_capturer.tracer, []
    tracer.stopped = {2}

    def stop(tid, _patience_ns):
        asked.append(tid)
        checkpoint()
        return ENDED

    tracer.stop = stop
    late_capturer.capture(1)
    assert asked == [1]
    checkpoint()
    assert asked == [1, 2]


def test_what_nobody_asks_for_is_not_kept_for_the_next_look(late_capturer):
    late_capturer.tracer.stopped = {2}
    late_capturer.tracer.stop = lambda *_: ENDED
    late_capturer.catch()
    late_capturer.tracer.stop = lambda *_: None
    late_capturer.tracer.registers = lambda _tid: None

    late_capturer.settle()

    assert late_capturer.capture(2) == NotCaptured(gone=True, why="killed while it was stopped")


def test_who_was_let_go_is_not_stopped_again(late_capturer):
    """As a dump lets go of those that stop too late; one may sleep by now, and a stop make its call fail."""
    late_capturer.tracer.late = {3}
    late_capturer.settle()
    late_capturer.tracer.stopped = {1, 2}
    late_capturer.tracer.stop = None  # would fail

    late_capturer.catch()

    assert [late_capturer.has_stopped(tid) for tid in (1, 2, 3)] == [True, True, False]


def test_nobody_else_lets_go_of_a_thread_than_who_traces_it(late_capturer, monkeypatch):
    """For ptrace(2), that is an OS thread."""
    monkeypatch.setattr(gate, "_BREATH_NS", 0)
    late_capturer.tracer.has_stopped = late_capturer.tracer.stop = None  # would fail
    other = threading.Thread(target=checkpoint)
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    other.start()
    other.join()
    assert not failed


@pytest.mark.parametrize(("left_at", "first"), [(b"9.9", 0), (b"9.8", 50)])
def test_a_thread_that_lost_its_processor_to_us_is_not_waited_for_nor_one_that_was_asked_rehearsed(
    left_at, first
):
    proc = SimpleNamespace(
        pid=PID,
        counters=lambda _: b"100 0 5",
        asleep=lambda _: None,
        last_run=lambda _: LastRun(left_at, 9000, 4),
    )
    capturer = Capturer(proc, AMD64, StackCopy(PID, AMD64, lambda _: None, 1024))
    capturer.tracer = tracer = LateTracer()
    ours = b"se.exec_start : 9.9\nse.avg.last_update_time : 9000\n"

    assert capturer.capture(PID, 50, Only(awake=True, ours=ours)).waiting
    assert capturer.capture(PID, 50, Only(awake=True, ours=ours)).waiting
    assert tracer.calls == [("rehearse", PID), ("stop", first), ("stop", 50)]


@pytest.mark.parametrize(
    ("run", "lost"),
    [
        (LastRun(b"7.1", 9000), True),  # it lost the processor at the instant at which we got one
        (LastRun(b"6.9", 9000), False),  # it was woken, or lost it to another, when we woke up
        (LastRun(b"7.1", 19000), False),  # it went to sleep, we got its processor, it was woken
    ],
)
def test_who_lost_the_processor_to_us(run, lost):
    assert changed_places(run, LastRun(b"7.1", 8000)) is lost


@pytest.mark.parametrize(
    ("times", "slept", "lost", "had"),
    [
        (1, False, True, True),  # it waited since it lost the processor to us
        (0, True, False, True),  # it had one all the time
        (1, False, False, False),  # it has waited since it was asked
        (1, True, True, False),  # it went to sleep, and our stop woke it
        (2, False, True, False),  # it ran since
    ],
)
def test_what_was_known_before_the_stop_is_believed(times, slept, lost, had):
    later = Scheduled(b"100 0 5", b"150 9000 %d" % (5 + times), WOKE + 900_000, slept, lost)
    assert had_processor(later, WakeUp(WOKE)) is had
