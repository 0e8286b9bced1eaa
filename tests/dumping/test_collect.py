"""Has a thread moved between two samples, or between the reading of its facts and of its stack?"""

from types import SimpleNamespace

import pytest

from sfsample.core.memory import PiecewiseMemory
from sfsample.core.snapshot import Capture, Registers, SchedulerEvidence, ThreadSnapshot
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.dumping.collect import Dumper, _is_one_moment
from sfsample.dumping.model import is_same_place
from sfsample.process.go_capture import FoundGoroutine
from sfsample.runtimes.go.layout import Goroutine
from tests.builders.hang_builder import WAIT, futex, thread


def stack(pc: int, *callers: int, reason: StopReason = StopReason.OUTERMOST) -> Stack:
    innermost = Frame(pc, 0x7000, 0x7000, Found.CONTEXT, exact=True)
    outer = (Frame(caller, 0x7010, 0x7020, Found.SFRAME, exact=False) for caller in callers)
    return Stack((innermost, *outer), reason)


@pytest.mark.parametrize(
    ("last", "is_same"),
    [
        (stack(0x1000, 0x2000), True),
        (stack(0x1004, 0x2000), True),  # a stop took the first pc back to the system call instruction
        (stack(0x1008, 0x2000), False),
        (stack(0xFFC, 0x2000), False),
        (stack(0x1004, 0x2004), False),
        (stack(0x1004, 0x2000, 0x3000), False),
        (stack(0x1004, 0x2000, reason=StopReason.NO_ROW), False),
        (Stack((), StopReason.OUTERMOST), False),
        (None, False),
    ],
)
def test_stacks_are_equal_but_for_a_step_back_to_the_system_call(last, is_same):
    assert is_same_place(stack(0x1000, 0x2000), last) is is_same
    assert is_same_place(None, None)


@pytest.mark.parametrize(
    ("state", "calls", "how", "before", "is_one"),
    [
        ("S", True, Capture.READ, b"5 0 3", True),
        ("S", True, Capture.READ, b"6 0 4", False),  # it ran between facts and stack
        ("R", True, Capture.READ, b"5 0 3", False),  # it has fallen asleep since its state was read
        ("R", False, Capture.STOPPED, b"5 0 3", True),
        ("S", False, Capture.STOPPED, b"5 0 3", False),  # it ran when it was stopped
        ("R", True, Capture.STOPPED, b"5 0 3", False),
        ("T", False, Capture.STOPPED, b"5 0 3", True),
    ],
)
def test_facts_and_stack_are_of_one_moment_if_the_thread_has_not_run(state, calls, how, before, is_one):
    dump = thread("f", call=futex(0x5000, WAIT, 2) if calls else None, state=state).dump
    snapshot = ThreadSnapshot(1, Registers(), PiecewiseMemory(), bounded=False, stop_ns=0, eintr=False,
                              capture=how, scheduler=SchedulerEvidence(before, before))  # fmt: skip
    assert _is_one_moment(dump, b"5 0 3", snapshot) is is_one
    asleep = snapshot._replace(scheduler=SchedulerEvidence(before, b"7 0 4", interrupted_sleep=True))
    if state == "S" and how is Capture.STOPPED:
        assert _is_one_moment(dump, b"5 0 3", asleep), "the stop interrupted its sleep"


@pytest.mark.parametrize(
    ("state", "is_noted"), [("running", True), ("sync.Mutex.Lock", True), ("chan receive", False)]
)
def test_goroutines_of_which_a_second_look_is_needed(state: str, is_noted: bool) -> None:
    """A goroutine that runs may hold up a stop of the world, and one with a lock may be in a deadlock."""
    goroutine = Goroutine(0x1000, 7, state, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"place")
    dumper = SimpleNamespace(_with_locks={})
    [*_] = Dumper._note_locks(dumper, [FoundGoroutine(goroutine, None, ())])  # type: ignore[arg-type]
    assert dumper._with_locks == ({0x1000: b"place"} if is_noted else {})
