"""A zero in which a stack may end: over invented stacks."""

import pytest

from sfsample.core.arch import AARCH64
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, StopReason
from sfsample.unwind.stack_end import is_stack_end
from sfsample.unwind.steppers.frame_pointer import FramePointerStepper
from tests.builders.walks import CODE, JIT, LEAF, OUTERMOST, SP, STACK, Says, index_of, pcs, walk, words

NOT_ONE = (0, 1, 4095, STACK, CODE + 0x11, 1 << 60)  # CODE + 0x11 follows no call


def ended(stack):
    return pcs(stack), stack.stop_reason


@pytest.mark.parametrize(
    ("above", "is_end"),
    [
        ((), True),
        (NOT_ONE, True),
        ((*NOT_ONE, CODE + 0x20), False),  # somebody has called
        ((JIT + 8,), False),  # in code that nobody can read
        ((*[0] * 511, CODE + 0x20), False),
        ((*[0] * 512, CODE + 0x20), True),  # another stack's, perhaps
    ],
)
def test_a_zero_is_the_end_where_nobody_above_has_called(above, is_end):
    found = walk(words(0, *above), Says({CODE: LEAF}), index=index_of(jit=True))

    assert ended(found) == ([0], StopReason.OUTERMOST if is_end else StopReason.BAD_PC)


@pytest.mark.parametrize(("above", "is_end"), [((), True), ((CODE + 0x20,), False)])
def test_so_it_is_for_a_chain_of_frame_pointers(above, is_end):
    found = walk(words(0, CODE + 0x10, *above), FramePointerStepper(), rbp=STACK)

    assert ended(found) == ([0, 0x10], StopReason.OUTERMOST if is_end else StopReason.NO_ROW)


def test_who_knows_better_than_a_row_that_leads_to_zero_is_asked():
    """The row is one word short: it finds a local variable."""
    wrong = Says({CODE: LEAF})
    right = Says({CODE: LEAF._replace(cfa=Rule(SP, 16, deref=False)), CODE + 0x20: OUTERMOST}, Found.EH_FRAME)
    found = walk(words(0, CODE + 0x20), wrong, right)

    assert ended(found) == ([0, 0x20], StopReason.OUTERMOST)
    assert found.frames[1].found is Found.EH_FRAME


def test_what_a_table_calls_the_end_is_the_end():
    assert ended(walk(words(0, CODE + 0x20), Says({CODE: OUTERMOST}))) == ([0], StopReason.OUTERMOST)


def test_a_signed_return_address_is_one():
    index = index_of(jit=True)
    index.refresh()

    assert not is_stack_end(STACK, words(0x55 << 48 | JIT + 8), index, AARCH64)


def test_the_zero_itself_is_no_witness():
    """Words count from the CFA on, whatever the row says of the return address."""
    below = LEAF._replace(cfa=Rule(SP, 16, deref=False), ra=Rule(CFA, -16, deref=True))

    assert ended(walk(words(0, CODE + 0x20), Says({CODE: below}))) == ([0], StopReason.OUTERMOST)


def test_a_zero_that_was_computed_needs_no_witness():
    """Of the two threads that leave clone(2) one has just begun; above it lies its start routine.

    (That looks like a return address where the function before it ends in a call.)
    """
    computed = LEAF._replace(ra=Rule(CFA, 0, deref=False, expression=b"\x30"))  # DW_OP_lit0

    assert ended(walk(words(0, CODE + 0x20), Says({CODE: computed}))) == ([0], StopReason.OUTERMOST)
