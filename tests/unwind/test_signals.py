"""Walks through signal frames, and rows that say that a frame was interrupted."""

from sfsample.core.memory import PiecewiseMemory
from sfsample.core.rule import Rule
from sfsample.core.stack import Found, StopReason
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import DEFAULT_STEPPERS
from tests.builders.walks import (
    CODE,
    LEAF,
    OUTERMOST,
    RBX,
    SP,
    STACK,
    TRAMPOLINE,
    RowsByPc,
    pcs,
    walk,
    words,
)


def ucontext(pc: int, sp: int, *, rbx: int = 0) -> list[int]:
    """Return struct ucontext up to rip, as words: gregs start 40 bytes in."""
    gregs = [0] * 17
    gregs[11], gregs[15], gregs[16] = rbx, sp, pc
    return [0] * 5 + gregs


def test_signal_handler_on_alternate_stack():
    """The interrupted frame lies on another stack, its pc is exact, and its rbx is restored."""
    altstack, interrupted = STACK + 0x8000, CODE + 0x40
    by_rbx = LEAF._replace(cfa=Rule(RBX, 8, deref=False))
    rows = RowsByPc({CODE: LEAF._replace(kept=()), interrupted: by_rbx, CODE + 0x50: OUTERMOST})
    memory = PiecewiseMemory(
        words(TRAMPOLINE, *ucontext(interrupted, STACK, rbx=STACK + 8), base=altstack),
        words(0, CODE + 0x50),
    )
    stack = walk(memory, *DEFAULT_STEPPERS[:1], rows, sp=altstack)

    assert pcs(stack) == [0, TRAMPOLINE - CODE, 0x40, 0x50]
    assert [f.found for f in stack.frames[1:]] == [Found.SFRAME, Found.SIGNAL_FRAME, Found.SFRAME]
    assert [f.exact for f in stack.frames] == [True, True, True, False]  # the trampoline was not called
    assert stack.frames[2].sp == STACK < stack.frames[1].sp
    assert stack.frames[2].lookup_pc == interrupted
    assert stack.stop_reason is StopReason.OUTERMOST


def test_signal_may_interrupt_jump_to_unmapped_address():
    memory = words(TRAMPOLINE, *ucontext(0xDEAD, STACK + 0x400))
    stack = walk(memory, *DEFAULT_STEPPERS[:1], RowsByPc({CODE: LEAF}))

    assert [frame.pc for frame in stack.frames] == [CODE, TRAMPOLINE, 0xDEAD]
    assert stack.stop_reason is StopReason.NO_MODULE


def test_ring_of_signal_frames_ends():
    ring = words(*ucontext(TRAMPOLINE, STACK))
    stack = walk(ring, *DEFAULT_STEPPERS, pc=TRAMPOLINE, max_frames=20)

    assert (len(stack.frames), stack.stop_reason) == (1, StopReason.NO_PROGRESS)


INTERRUPTED = UnwindRow(Rule(SP, 0, deref=True), Rule(SP, 8, deref=True), signal=True)  # sp and pc, saved


def test_interrupted_frame_may_lie_lower():
    rows = RowsByPc({CODE: INTERRUPTED, CODE + 0x40: OUTERMOST})
    stack = walk(words(0, 0, STACK, CODE + 0x40), rows, sp=STACK + 16)

    assert pcs(stack) == [0, 0x40]
    assert stack.frames[1].sp == STACK
    assert stack.frames[1].exact


def test_same_frame_is_not_interrupted_twice():
    """Two rows of a damaged table lead to each other."""
    rows = RowsByPc({CODE: INTERRUPTED, CODE + 0x40: INTERRUPTED})
    ring = words(STACK + 16, CODE + 0x40, STACK, CODE)
    stack = walk(ring, rows)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x40], StopReason.NO_PROGRESS)
