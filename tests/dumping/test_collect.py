"""Two stacks of a thread are compared: has the thread moved between the samples?"""

import pytest

from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.dumping.model import is_same_place


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
