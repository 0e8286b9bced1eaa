"""Which row of which stepper is accepted, and when the walk is repeated with another order of steppers."""

import pytest

from sfsample.core.arch import AARCH64, S390X
from sfsample.core.checkpoint import OutOfTime
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import Unwinder
from tests.builders.walks import (
    CODE,
    FP,
    LEAF,
    OUTERMOST,
    RA_SLOT,
    RBX,
    SP,
    STACK,
    RowsByPc,
    module_map,
    pcs,
    snapshot,
    walk,
    words,
)

# -- which stepper is used


def test_first_stepper_that_knows_pc_is_used():
    other = LEAF._replace(cfa=Rule(SP, 16, deref=False))
    first, second = RowsByPc({CODE: LEAF}), RowsByPc({CODE: other}, Found.EH_FRAME)

    assert pcs(walk(words(CODE + 0x10, CODE + 0x20), first, second)) == [0, 0x10]
    assert second.asked == [Frame(CODE + 0x10, STACK + 8, None, Found.SFRAME, exact=False)]


def test_next_stepper_is_asked_after_rejected_row():
    good = RowsByPc({CODE: LEAF, CODE + 0x10: OUTERMOST}, Found.EH_FRAME)
    no_progress = LEAF._replace(cfa=Rule(SP, 0, deref=False), ra=Rule(SP, 0, deref=True))
    outside = LEAF._replace(cfa=Rule(SP, 16, deref=False))
    unreadable = LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))
    for wrong in (no_progress, outside, unreadable):
        stack = walk(words(CODE + 0x10, 0x1234), RowsByPc({CODE: wrong}), good)
        assert pcs(stack) == [0, 0x10]
        assert stack.frames[1].found is Found.EH_FRAME
        assert stack.frames[0].cfa == STACK + 8


def test_first_stepper_that_knows_pc_gives_stop_reason():
    first = RowsByPc({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    second = RowsByPc({CODE: LEAF}, Found.EH_FRAME)

    assert walk(words(0x1234), first, second).stop_reason is StopReason.BAD_MEMORY
    assert walk(words(0x1234), second, first).stop_reason is StopReason.BAD_PC


# -- walks that are repeated


BY_RBX = LEAF._replace(cfa=Rule(RBX, 8, deref=False))


GUESS = UnwindRow(Rule(FP, 16, deref=False), RA_SLOT, ((FP, Rule(CFA, -16, deref=True)),), guess=True)


def test_walk_is_repeated_with_cfi_first_if_register_is_unknown():
    """SFrame does not recover rbx, which a later row needs; CFI of the first frame does."""
    without_rbx = LEAF._replace(kept=(FP,))
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    sframe = RowsByPc({CODE: without_rbx})
    cfi = RowsByPc({CODE: LEAF, CODE + 0x10: by_rbx, CODE + 0x20: OUTERMOST}, Found.EH_FRAME)
    stack = walk(words(CODE + 0x10, 0, 0, CODE + 0x20), sframe, cfi, rbx=STACK)

    assert pcs(stack) == [0, 0x10, 0x20]
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.EH_FRAME, Found.EH_FRAME]


def test_first_walk_is_used_if_repeated_walk_is_no_better():
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    sframe = RowsByPc({CODE: LEAF._replace(kept=(FP,))})
    cfi = RowsByPc({CODE + 0x10: by_rbx}, Found.EH_FRAME)
    stack = walk(words(CODE + 0x10), sframe, cfi, rbx=STACK)

    assert stack.stop_reason is StopReason.REGISTER_UNKNOWN
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.SFRAME]


def test_repeated_walk_is_used_if_it_gets_further():
    """Neither walk reaches the outermost frame: the first lacks rbx after one step, the second takes two."""
    sframe = RowsByPc({CODE: LEAF._replace(kept=(FP,))})
    cfi = RowsByPc({CODE: LEAF, CODE + 0x10: BY_RBX}, Found.EH_FRAME)
    stack = walk(words(CODE + 0x10, CODE + 0x20), sframe, cfi, rbx=STACK + 8)

    assert pcs(stack) == [0, 0x10, 0x20]
    assert stack.stop_reason is StopReason.NO_ROW
    assert {frame.found for frame in stack.frames[1:]} == {Found.EH_FRAME}


@pytest.mark.parametrize("guess", [True, False])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (UnwindRow(Rule(SP, 0x20, deref=False), RA_SLOT), "bad_pc"),
        (UnwindRow(Rule(SP, 0, deref=False), Rule(SP, 0x10, deref=True)), "no_progress"),
    ],
)
def test_walk_is_repeated_if_wrong_row_hides_unknown_register(wrong, reason, guess):
    """SFrame of binutils 2.40 gives sp+16 where the CFA is computed from rbx, which CFI recovers."""
    no_rbx = LEAF._replace(kept=(FP,))
    sframe = RowsByPc({CODE: no_rbx, CODE + 0x10: wrong})
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    cfi = RowsByPc({CODE: LEAF, CODE + 0x10: by_rbx, CODE + 0x20: OUTERMOST}, Found.EH_FRAME)
    frame_pointer = UnwindRow(Rule(FP, 16, deref=False), RA_SLOT, guess=True)  # would skip CODE + 0x20
    guesses = RowsByPc({CODE + 0x10: frame_pointer} if guess else {}, Found.FRAME_POINTER)
    unwinder = Unwinder(module_map(), steppers=(sframe, cfi, guesses))
    memory = words(CODE + 0x10, 0, 0, CODE + 0x20, 0x1234, 0, CODE + 0x30)
    stack = unwinder.walk(snapshot(memory, rbx=STACK, rbp=STACK + 40))

    assert (pcs(stack), stack.stop_reason) == ([0, 0x10, 0x20], StopReason.OUTERMOST)
    [rejected] = unwinder.rejected_rows
    assert rejected == f"sframe not believed ({reason}), eh_frame instead: /bin/invented+0x1010"


def test_no_guess_is_made_before_walk_is_repeated():
    """At CODE + 0x10 rbx is unknown, and the frame pointer would skip a frame."""
    sframe = RowsByPc({CODE: LEAF._replace(kept=(FP,))})
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    ends = {CODE + 0x20: OUTERMOST, CODE + 0x30: OUTERMOST}
    cfi = RowsByPc({CODE: LEAF, CODE + 0x10: by_rbx, **ends}, Found.EH_FRAME)
    guess = RowsByPc({CODE + 0x10: GUESS}, Found.FRAME_POINTER)
    memory = words(CODE + 0x10, 0, 0, CODE + 0x20, 0, CODE + 0x30)
    stack = walk(memory, sframe, cfi, guess, rbx=STACK, rbp=STACK + 32)

    assert pcs(stack) == [0, 0x10, 0x20]


def test_repeated_walk_asks_sframe_before_guesses():
    sframe = RowsByPc({CODE: LEAF._replace(kept=(FP,)), CODE + 0x20: LEAF, CODE + 0x30: OUTERMOST})
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x10, deref=False))
    cfi = RowsByPc({CODE: LEAF, CODE + 0x10: by_rbx, CODE + 0x40: OUTERMOST}, Found.EH_FRAME)
    guess = RowsByPc({CODE + 0x20: GUESS}, Found.FRAME_POINTER)
    memory = words(CODE + 0x10, CODE + 0x20, CODE + 0x30, 0, CODE + 0x40)
    stack = walk(memory, sframe, cfi, guess, rbx=STACK, rbp=STACK + 24)

    assert pcs(stack) == [0, 0x10, 0x20, 0x30]
    assert [frame.found for frame in stack.frames[1:]] == [Found.EH_FRAME, Found.EH_FRAME, Found.SFRAME]


# -- return addresses in registers, and above an unmoved stack pointer


def test_s390x_return_address_is_saved_in_frame_of_caller():
    """stmg %r11,%r15,88(%r15) saves it, and the next instruction moves the stack pointer."""
    saved = UnwindRow(Rule(S390X.sp, 160, deref=False), Rule(CFA, -48, deref=True))
    rows = RowsByPc({CODE: saved, CODE + 0x20: saved, CODE + 0x30: OUTERMOST})
    stack = b"".join(v.to_bytes(8, "big") for v in (*[0] * 14, CODE + 0x20, *[0] * 5))
    memory = BytesMemory(STACK, stack, "big")
    taken = ThreadSnapshot(1, {65: CODE, 15: STACK}, memory, False, 0, eintr=False, arch=S390X)
    found = Unwinder(module_map(), steppers=(rows,)).walk(taken)

    # only the innermost frame may leave sp where it is: its caller would lead to itself
    assert (pcs(found), found.stop_reason) == ([0, 0x20], StopReason.NO_PROGRESS)
    assert [frame.sp for frame in found.frames] == [STACK, STACK]


@pytest.mark.parametrize(("sp", "whole"), [(STACK, True), (STACK + 16, False)], ids=["leaf", "frame"])
def test_return_address_register_spared_by_innermost_leaf(sp, whole):
    """The caller of __libc_arm_za_disable keeps its return address in x13, by its table."""
    leaf = UnwindRow(Rule(AARCH64.sp, sp - STACK, deref=False), Rule(AARCH64.ra, 0, deref=False))
    caller = UnwindRow(Rule(AARCH64.sp, 0, deref=False), Rule(13, 0, deref=False))
    rows = RowsByPc({CODE: leaf, CODE + 0x10: caller, CODE + 0x20: OUTERMOST})
    at = {AARCH64.pc: CODE, AARCH64.sp: STACK, AARCH64.ra: CODE + 0x10, 13: CODE + 0x20}
    snapshot = ThreadSnapshot(1, at, words(0), False, 0, eintr=False, arch=AARCH64)
    stack = Unwinder(module_map(), steppers=(rows,)).walk(snapshot)

    assert pcs(stack) == ([0, 0x10, 0x20] if whole else [0, 0x10])


# -- rejected rows are counted


def test_rejected_row_is_counted():
    wrong = RowsByPc({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    right = RowsByPc({CODE: LEAF, CODE + 0x10: OUTERMOST}, Found.EH_FRAME)
    unwinder = Unwinder(module_map(), steppers=(wrong, right))
    unwinder.walk(snapshot(words(CODE + 0x10)))  # reads the maps, so it walks twice
    learning = unwinder.rejected_rows
    for _ in range(3):
        unwinder.walk(snapshot(words(CODE + 0x10)))

    expected = {"sframe not believed (bad_memory), eh_frame instead: /bin/invented+0x1000": 3}
    assert unwinder.rejected_rows - learning == expected


def test_rejected_row_is_not_counted_without_accepted_row():
    wrong = RowsByPc({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    unwinder = Unwinder(module_map(), steppers=(wrong,))
    unwinder.walk(snapshot(words(CODE + 0x10)))

    assert not unwinder.rejected_rows


def test_rejected_row_is_not_counted_if_register_was_assumed():
    wrong = RowsByPc({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    right = RowsByPc({CODE: LEAF, CODE + 0x10: OUTERMOST}, Found.EH_FRAME)
    unwinder = Unwinder(module_map(), steppers=(wrong, right))
    taken = snapshot(words(CODE + 0x10))
    assert unwinder.walk(taken._replace(assumed=True)).stop_reason is StopReason.OUTERMOST

    assert not unwinder.rejected_rows


# -- out of time


def test_walk_that_runs_out_of_time_keeps_its_frames_and_asks_again_next_time():
    class Slow(RowsByPc):
        is_slow = True

        def row_at(self, frame, module, arch):
            if self.is_slow and frame.pc == CODE + 0x10:
                raise OutOfTime
            return super().row_at(frame, module, arch)

    slow, stack = Slow({CODE: LEAF, CODE + 0x10: OUTERMOST}), words(CODE + 0x10, CODE + 0x20)
    unwinder = Unwinder(module_map(), (slow,))
    cut = unwinder.walk(snapshot(stack))
    slow.is_slow = False
    whole = unwinder.walk(snapshot(stack))

    assert (pcs(cut), cut.stop_reason) == ([0, 0x10], StopReason.OUT_OF_TIME)
    assert (pcs(whole), whole.stop_reason) == ([0, 0x10], StopReason.OUTERMOST)
