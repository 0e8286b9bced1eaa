"""A zero return address ends a stack only if no word above it may be a return address."""

import pytest

from sfsample.core.arch import AARCH64
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, StopReason
from sfsample.unwind.step import is_stack_end
from sfsample.unwind.steppers.conventions import FramePointerStepper
from tests.builders.walks import CODE, JIT, LEAF, OUTERMOST, SP, STACK, RowsByPc, module_map, pcs, walk, words

NOT_RETURN_ADDRESSES = (0, 1, 4095, STACK, CODE + 0x11, 1 << 60)  # CODE + 0x11 follows no call


def pcs_and_reason(stack):
    return pcs(stack), stack.stop_reason


@pytest.mark.parametrize(
    ("above", "is_end"),
    [
        ((), True),
        (NOT_RETURN_ADDRESSES, True),
        ((*NOT_RETURN_ADDRESSES, CODE + 0x20), False),  # a return address: there is a caller
        ((JIT + 8,), False),  # in code that cannot be read
        ((*[0] * 511, CODE + 0x20), False),
        ((*[0] * 512, CODE + 0x20), True),  # farther than 4096 bytes: perhaps another stack
    ],
)
def test_zero_ends_stack_if_no_word_above_is_return_address(above, is_end):
    found = walk(words(0, *above), RowsByPc({CODE: LEAF}), modules=module_map(jit=True))

    assert pcs_and_reason(found) == ([0], StopReason.OUTERMOST if is_end else StopReason.BAD_PC)


@pytest.mark.parametrize(("above", "is_end"), [((), True), ((CODE + 0x20,), False)])
def test_zero_ends_chain_of_frame_pointers_if_no_word_above_is_return_address(above, is_end):
    found = walk(words(0, CODE + 0x10, *above), FramePointerStepper(), rbp=STACK)

    assert pcs_and_reason(found) == ([0, 0x10], StopReason.OUTERMOST if is_end else StopReason.NO_ROW)


def test_next_stepper_is_asked_if_row_leads_to_rejected_zero():
    """The CFA of the wrong row is one word too low, so it finds a local variable."""
    wrong = RowsByPc({CODE: LEAF})
    right = RowsByPc(
        {CODE: LEAF._replace(cfa=Rule(SP, 16, deref=False)), CODE + 0x20: OUTERMOST}, Found.EH_FRAME
    )
    found = walk(words(0, CODE + 0x20), wrong, right)

    assert pcs_and_reason(found) == ([0, 0x20], StopReason.OUTERMOST)
    assert found.frames[1].found is Found.EH_FRAME


def test_outermost_row_of_table_ends_stack():
    assert pcs_and_reason(walk(words(0, CODE + 0x20), RowsByPc({CODE: OUTERMOST}))) == (
        [0],
        StopReason.OUTERMOST,
    )


def test_signed_return_address_above_zero_is_recognized():
    modules = module_map(jit=True)
    modules.refresh()

    assert not is_stack_end(STACK, words(0x55 << 48 | JIT + 8), modules, AARCH64)


def test_words_are_examined_from_cfa_on():
    """The return address of this row lies below other words of the frame."""
    below = LEAF._replace(cfa=Rule(SP, 16, deref=False), ra=Rule(CFA, -16, deref=True))

    assert pcs_and_reason(walk(words(0, CODE + 0x20), RowsByPc({CODE: below}))) == ([0], StopReason.OUTERMOST)


def test_computed_zero_ends_stack_without_examining_words():
    """Above the first frame of a new thread (clone(2)) lies its start routine, which may follow a call."""
    computed = LEAF._replace(ra=Rule(CFA, 0, deref=False, expression=b"\x30"))  # DW_OP_lit0

    assert pcs_and_reason(walk(words(0, CODE + 0x20), RowsByPc({CODE: computed}))) == (
        [0],
        StopReason.OUTERMOST,
    )
