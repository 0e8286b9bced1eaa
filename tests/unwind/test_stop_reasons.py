"""Why a walk ends: each `StopReason` over invented stacks."""

import pytest

from sfsample.core.rule import Rule
from sfsample.core.stack import StopReason
from sfsample.core.walk_limits import MAX_FRAMES
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.steppers.conventions import FramePointerStepper
from sfsample.unwind.unwinder import Unwinder
from tests.builders.walks import (
    CODE,
    FP,
    JIT,
    LEAF,
    OUTERMOST,
    RBX,
    SIZE,
    SP,
    STACK,
    TEXT,
    RowsByPc,
    module_map,
    pcs,
    snapshot,
    walk,
    words,
)


def test_outermost_by_row():
    assert walk(words(), RowsByPc({CODE: OUTERMOST})).stop_reason is StopReason.OUTERMOST


def test_outermost_by_zero_return_address():
    stack = walk(words(0), RowsByPc({CODE: LEAF}))

    assert stack.stop_reason is StopReason.OUTERMOST
    assert pcs(stack) == [0]


def test_no_row():
    stack = walk(words(), RowsByPc({}))

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.NO_ROW, f"/bin/invented+{TEXT:#x}")


def test_no_module():
    stack = walk(words(), RowsByPc({}), pc=0x1234)

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.NO_MODULE, "0x1234")


def test_no_row_in_anonymous_code():
    stack = walk(words(), RowsByPc({}), pc=JIT, modules=module_map(jit=True))

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.NO_ROW, f"{JIT:#x}")


def test_bad_memory():
    stack = walk(words(), RowsByPc({CODE: LEAF}))

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.BAD_MEMORY, f"/bin/invented+{TEXT:#x}")


def test_stack_copy_ended():
    assert walk(words(), RowsByPc({CODE: LEAF}), bounded=True).stop_reason is StopReason.STACK_COPY_ENDED


def test_register_unknown():
    by_rbx = LEAF._replace(cfa=Rule(RBX, 8, deref=False))

    assert walk(words(), RowsByPc({CODE: by_rbx})).stop_reason is StopReason.REGISTER_UNKNOWN


def test_no_progress():
    for sp in (STACK - 8, STACK):  # a caller's frame below or at this one
        sideways = UnwindRow(Rule(SP, sp - STACK, deref=False), Rule(SP, 0, deref=True))
        stack = walk(words(CODE + 0x10), RowsByPc({CODE: sideways}))
        assert (stack.stop_reason, pcs(stack)) == (StopReason.NO_PROGRESS, [0])


def test_bad_pc():
    for wild in (0x1234, STACK + 8, CODE, CODE + SIZE + 1):
        stack = walk(words(wild), RowsByPc({CODE: LEAF}))
        assert (stack.stop_reason, pcs(stack)) == (StopReason.BAD_PC, [0])


def test_return_address_may_be_end_of_mapping():
    """`call abort` may be the last instruction of the mapping."""
    assert pcs(walk(words(CODE + SIZE), RowsByPc({CODE: LEAF}))) == [0, SIZE]


def test_max_frames():
    endless = words(*[CODE + 0x10] * 50)
    rows = RowsByPc({CODE: LEAF, CODE + 0x10: LEAF})
    stack = walk(endless, rows, max_frames=5)

    assert stack.stop_reason is StopReason.MAX_FRAMES
    assert pcs(stack) == [0, 0x10, 0x10, 0x10, 0x10]
    assert stack.stopped_at == f"/bin/invented+{TEXT + 0x10:#x}"
    assert len(walk(words(*[CODE + 0x10] * 2000), rows).frames) == MAX_FRAMES


def test_guess_without_its_register_gives_register_unknown():
    """A thread that sleeps is read without its frame pointer; a capture that stops it knows it."""
    taken = snapshot(words(0), rbp=STACK)
    del taken.registers[FP]
    unwinder = Unwinder(module_map(), steppers=(FramePointerStepper(),))

    assert unwinder.walk(taken).stop_reason is StopReason.REGISTER_UNKNOWN


# -- where the copy ends


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (0x100, StopReason.STACK_COPY_ENDED),  # above the copy, on the stack
        (0x20000, StopReason.BAD_MEMORY),  # above the stack
        (-0x100, StopReason.BAD_MEMORY),  # below sp
    ],
)
def test_word_on_stack_above_copy_was_cut_off(offset, reason):
    modules = module_map()
    modules.refresh()
    rows = RowsByPc({CODE: UnwindRow(Rule(SP, 8, deref=False), Rule(SP, offset, deref=True))})
    unwinder = Unwinder(modules, steppers=(rows,))

    assert unwinder.walk(snapshot(words(1, 2), bounded=True)).stop_reason is reason
    assert unwinder.walk(snapshot(words(1, 2), bounded=False)).stop_reason is StopReason.BAD_MEMORY


def test_word_outside_stack_was_not_cut_off():
    """The function uses the frame pointer for another value."""
    modules = module_map()
    modules.refresh()
    by_fp = LEAF._replace(cfa=Rule(FP, 16, deref=False))
    stack = Unwinder(modules, steppers=(RowsByPc({CODE: by_fp}),)).walk(
        snapshot(words(1), bounded=True, rbp=CODE)
    )

    assert stack.stop_reason is StopReason.BAD_MEMORY


def test_no_guess_is_made_where_copy_ends():
    deep = LEAF._replace(cfa=Rule(SP, 0x100, deref=False))
    memory = words(STACK + 0x40, CODE + 0x10)
    stack = walk(memory, RowsByPc({CODE: deep}), FramePointerStepper(), bounded=True, rbp=STACK)

    assert (pcs(stack), stack.stop_reason) == ([0], StopReason.STACK_COPY_ENDED)


def test_guess_that_ends_where_the_copy_ends_says_so():
    memory = words(STACK + 0x40, CODE + 0x10)
    stack = walk(memory, FramePointerStepper(), bounded=True, rbp=STACK + 0x40)

    assert (pcs(stack), stack.stop_reason) == ([0], StopReason.STACK_COPY_ENDED)
    whole = walk(memory, FramePointerStepper(), rbp=STACK + 0x40)
    assert whole.stop_reason is StopReason.NO_ROW
