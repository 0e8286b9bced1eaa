"""Whether a thread is where it was, when it was looked at twice."""

import pytest

from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.dumping.collect import in_one_place


def stack(pc: int, *callers: int, reason: StopReason = StopReason.OUTERMOST) -> Stack:
    inner = Frame(pc, 0x7000, 0x7000, Found.CONTEXT, exact=True)
    others = (Frame(caller, 0x7010, 0x7020, Found.SFRAME, exact=False) for caller in callers)
    return Stack((inner, *others), reason)


@pytest.mark.parametrize(
    ("last", "same"),
    [
        (stack(0x1000, 0x2000), True),
        (stack(0x1004, 0x2000), True),  # a stop had taken it back to the call of the system
        (stack(0x1008, 0x2000), False),
        (stack(0xFFC, 0x2000), False),
        (stack(0x1004, 0x2004), False),
        (stack(0x1004, 0x2000, 0x3000), False),
        (stack(0x1004, 0x2000, reason=StopReason.NO_ROW), False),
        (Stack((), StopReason.OUTERMOST), False),
        (None, False),
    ],
)
def test_where_it_was(last, same):
    assert in_one_place(stack(0x1000, 0x2000), last) is same
    assert in_one_place(None, None)
