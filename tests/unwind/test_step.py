"""When a step is believed, and what is asked next: over invented stacks."""

import pytest

from sfsample.core.arch import AARCH64, S390X
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.unwind.row import UnwindRow, apply_row
from sfsample.unwind.steppers.entry_code import StartStepper
from sfsample.unwind.steppers.frame_pointer import FramePointerStepper
from sfsample.unwind.steppers.leaf import LeafStepper
from sfsample.unwind.steppers.scan import ScanStepper
from sfsample.unwind.unwinder import Unwinder
from tests.builders.walks import (
    CODE,
    FP,
    LEAF,
    OUTERMOST,
    RA_SLOT,
    RBX,
    SIZE,
    SP,
    STACK,
    Says,
    index_of,
    pcs,
    snapshot,
    walk,
    words,
)

BY_RBX = LEAF._replace(cfa=Rule(RBX, 8, deref=False))


# -- walks that are done again


def test_the_second_walk_is_the_answer_when_it_gets_further():
    """Neither reaches the outermost frame: the first wants rbx after one step, the second ends after two."""
    sframe = Says({CODE: LEAF._replace(kept=(FP,))})
    cfi = Says({CODE: LEAF, CODE + 0x10: BY_RBX}, Found.EH_FRAME)
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
def test_the_walk_is_done_again_where_a_wrong_answer_hides_that_a_register_is_unknown(wrong, reason, guess):
    """SFrame of binutils 2.40 says sp+16 where the CFA hangs on rbx, which CFI has recovered."""
    no_rbx = LEAF._replace(kept=(FP,))
    sframe = Says({CODE: no_rbx, CODE + 0x10: wrong})
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    cfi = Says({CODE: LEAF, CODE + 0x10: by_rbx, CODE + 0x20: OUTERMOST}, Found.EH_FRAME)
    frame_pointer = UnwindRow(Rule(FP, 16, deref=False), RA_SLOT, guess=True)  # would miss CODE + 0x20
    guesses = Says({CODE + 0x10: frame_pointer} if guess else {}, Found.FRAME_POINTER)
    unwinder = Unwinder(index_of(), steppers=(sframe, cfi, guesses))
    memory = words(CODE + 0x10, 0, 0, CODE + 0x20, 0x1234, 0, CODE + 0x30)
    stack = unwinder.walk(snapshot(memory, rbx=STACK, rbp=STACK + 40))

    assert (pcs(stack), stack.stop_reason) == ([0, 0x10, 0x20], StopReason.OUTERMOST)
    [doubt] = unwinder.rejected_rows
    assert doubt == f"sframe not believed ({reason}), eh_frame instead: /bin/invented+0x1010"


# -- signal rows, whoever gives them


INTERRUPTED = UnwindRow(Rule(SP, 0, deref=True), Rule(SP, 8, deref=True), signal=True)  # sp and pc, saved


def test_what_was_interrupted_may_lie_lower():
    rows = Says({CODE: INTERRUPTED, CODE + 0x40: OUTERMOST})
    stack = walk(words(0, 0, STACK, CODE + 0x40), rows, sp=STACK + 16)

    assert pcs(stack) == [0, 0x40]
    assert stack.frames[1].sp == STACK
    assert stack.frames[1].exact


def test_nothing_is_interrupted_twice():
    """Two rows of a damaged table that lead to each other for ever."""
    rows = Says({CODE: INTERRUPTED, CODE + 0x40: INTERRUPTED})
    ring = words(STACK + 16, CODE + 0x40, STACK, CODE)
    stack = walk(ring, rows)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x40], StopReason.NO_PROGRESS)


# -- a function that has saved its return address and not moved the stack pointer


def test_on_s390x_a_return_address_is_saved_in_the_frame_of_the_caller():
    """stmg %r11,%r15,88(%r15), and the stack pointer moves with the next instruction only."""
    saved = UnwindRow(Rule(S390X.sp, 160, deref=False), Rule(CFA, -48, deref=True))
    rows = Says({CODE: saved, CODE + 0x20: saved, CODE + 0x30: OUTERMOST})
    stack = b"".join(v.to_bytes(8, "big") for v in (*[0] * 14, CODE + 0x20, *[0] * 5))
    memory = BytesMemory(STACK, stack, "big")
    taken = ThreadSnapshot(1, {65: CODE, 15: STACK}, memory, False, 0, eintr=False, arch=S390X)
    found = Unwinder(index_of(), steppers=(rows,)).walk(taken)

    # that only the innermost function can do: the next one would lead to itself for ever
    assert (pcs(found), found.stop_reason) == ([0, 0x20], StopReason.NO_PROGRESS)
    assert [frame.sp for frame in found.frames] == [STACK, STACK]


# -- where the copy ends


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (0x100, StopReason.STACK_COPY_ENDED),  # above the copy, on the stack
        (0x20000, StopReason.BAD_MEMORY),  # above the stack
        (-0x100, StopReason.BAD_MEMORY),  # below it: nonsense
    ],
)
def test_only_what_lies_on_the_stack_above_the_copy_was_cut_off(offset, reason):
    index = index_of()
    index.refresh()
    rows = Says({CODE: UnwindRow(Rule(SP, 8, deref=False), Rule(SP, offset, deref=True))})
    unwinder = Unwinder(index, steppers=(rows,))

    assert unwinder.walk(snapshot(words(1, 2), bounded=True)).stop_reason is reason
    assert unwinder.walk(snapshot(words(1, 2), bounded=False)).stop_reason is StopReason.BAD_MEMORY


def test_what_lies_elsewhere_was_not_cut_off():
    """A frame pointer that has become something else."""
    index = index_of()
    index.refresh()
    by_fp = LEAF._replace(cfa=Rule(FP, 16, deref=False))
    stack = Unwinder(index, steppers=(Says({CODE: by_fp}),)).walk(snapshot(words(1), bounded=True, rbp=CODE))

    assert stack.stop_reason is StopReason.BAD_MEMORY


def test_no_guess_where_the_copy_ends():
    deep = LEAF._replace(cfa=Rule(SP, 0x100, deref=False))
    memory = words(STACK + 0x40, CODE + 0x10)
    stack = walk(memory, Says({CODE: deep}), FramePointerStepper(), bounded=True, rbp=STACK)

    assert (pcs(stack), stack.stop_reason) == ([0], StopReason.STACK_COPY_ENDED)


# -- the end of a chain of frame pointers


def test_a_chain_of_frame_pointers_ends_in_zero():
    stack = walk(words(0, CODE + 0x10), FramePointerStepper(), rbp=STACK)

    assert pcs(stack) == [0, 0x10]
    assert stack.stop_reason is StopReason.OUTERMOST


def test_a_zero_that_no_chain_led_to_is_no_end():
    """The function may just count in rbp."""
    stack = walk(words(CODE + 0x20), Says({CODE: LEAF}), FramePointerStepper(), rbp=0)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x20], StopReason.NO_ROW)


def test_a_guess_may_lead_to_where_stacks_begin():
    """To Go's goexit a return was prepared, not called: nop; call; nop."""
    code = bytearray(b"\xcc" * SIZE)
    code[0x80:0x87] = bytes.fromhex("90e80000000090")
    index = index_of(code=bytes(code))
    stack = walk(words(0, CODE + 0x81), StartStepper(), FramePointerStepper(), rbp=STACK, index=index)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x81], StopReason.OUTERMOST)
    stack = walk(words(0, CODE + 0x82), StartStepper(), FramePointerStepper(), rbp=STACK, index=index)
    assert (pcs(stack), stack.stop_reason) == ([0], StopReason.NO_ROW)


# -- scanning


def test_a_scan_takes_the_first_word_that_looks_like_a_return_address():
    ends = Says({CODE + 0x30: OUTERMOST})
    not_one = [0, STACK, CODE + 0x11, CODE + SIZE + 8, 1 << 60]  # CODE + 0x11 follows no call
    stack = walk(words(*not_one, CODE + 0x20, 7, CODE + 0x30), ends, ScanStepper())

    assert pcs(stack) == [0, 0x20, 0x30]
    assert [frame.found for frame in stack.frames[1:]] == [Found.SCAN, Found.SCAN]
    assert stack.frames[0].cfa == stack.frames[1].sp == STACK + 48


def test_a_scan_comes_after_everything_else_and_has_its_limits():
    known = Says({CODE: LEAF, CODE + 0x20: OUTERMOST}, Found.EH_FRAME)

    assert [f.found for f in walk(words(CODE + 0x20), known, ScanStepper()).frames][1:] == [Found.EH_FRAME]
    assert pcs(walk(words(*[0] * 159, CODE + 0x20), Says({}), ScanStepper())) == [0, 0x20]
    nothing = walk(words(*[0] * 160, CODE + 0x20), Says({}), ScanStepper())
    assert (pcs(nothing), nothing.stop_reason) == ([0], StopReason.NO_ROW)


def test_a_scan_recovers_no_register_but_sp():
    by_fp = UnwindRow(Rule(FP, 16, deref=False), RA_SLOT, ((FP, Rule(CFA, -16, deref=True)),))
    stack = walk(words(CODE + 0x20, STACK, CODE + 0x30), Says({CODE + 0x20: by_fp}), ScanStepper(), rbp=STACK)

    assert pcs(stack) == [0, 0x20, 0x30]
    assert [frame.found for frame in stack.frames[1:]] == [Found.SCAN, Found.SCAN]


# -- a leaf, and the call that leads to it


def code_with(*pieces: tuple[int, str]) -> bytes:
    """Nops, and the pieces at their offsets; a call's operand is where it leads."""
    code = bytearray(b"\x90" * SIZE)
    for at, text in pieces:
        name, _, target = text.partition(" ")
        piece = bytes.fromhex(name)
        if target:
            piece += (int(target, 16) - at - len(piece) - 4).to_bytes(4, "little", signed=True)
        code[at : at + len(piece)] = piece
    return bytes(code)


CALLS_0X100 = (0x1B, "e8 100")  # ends at 0x20


@pytest.mark.parametrize(
    ("pieces", "pc", "found"),
    [
        ([CALLS_0X100], 0x100, True),
        ([CALLS_0X100], 0x140, True),
        ([CALLS_0X100], 0xFF, False),  # before the function
        ([CALLS_0X100, (0x120, "c3cccc")], 0x140, False),  # behind its end
        ([CALLS_0X100, (0x120, "c3")], 0x11F, True),
        ([(0x1B, "e8 300"), (0x300, "f30f1efaf2ff2500000000")], 0x140, True),  # through a stub
        ([(0x1B, "e8 300")], 0x140, False),
        ([(0x1E, "ffd0")], 0x100, False),  # nobody knows where that leads
    ],
)
def test_a_leaf_is_entered_by_the_call_before_its_return_address(pieces, pc, found):
    index = index_of(code=code_with(*pieces))
    stack = walk(words(CODE + 0x20), LeafStepper(), index=index, pc=CODE + pc)

    assert pcs(stack) == ([pc, 0x20] if found else [pc])
    assert [frame.found for frame in stack.frames[1:]] == [Found.LEAF] * found
    assert stack.stop_reason is StopReason.NO_ROW


def test_only_the_innermost_frame_is_a_leaf():
    index = index_of(code=code_with(CALLS_0X100, (0x3B, "e8 10")))
    stack = walk(words(CODE + 0x20, CODE + 0x40), LeafStepper(), index=index, pc=CODE + 0x100)

    assert pcs(stack) == [0x100, 0x20]


def test_a_guess_for_want_of_a_register_says_so():
    """A thread that is read instead of stopped has no frame pointer: stopping it would help."""
    taken = snapshot(words(0), rbp=STACK)
    del taken.registers[FP]
    unwinder = Unwinder(index_of(), steppers=(FramePointerStepper(),))

    assert unwinder.walk(taken).stop_reason is StopReason.REGISTER_UNKNOWN


# -- what was not believed is told


def test_a_table_that_was_not_believed_is_told():
    wrong = Says({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    right = Says({CODE: LEAF, CODE + 0x10: OUTERMOST}, Found.EH_FRAME)
    unwinder = Unwinder(index_of(), steppers=(wrong, right))
    unwinder.walk(snapshot(words(CODE + 0x10)))  # learns the mappings, so it walks twice
    learning = unwinder.rejected_rows
    for _ in range(3):
        unwinder.walk(snapshot(words(CODE + 0x10)))

    told = {"sframe not believed (bad_memory), eh_frame instead: /bin/invented+0x1000": 3}
    assert unwinder.rejected_rows - learning == told


def test_no_doubt_without_somebody_who_knows_better():
    wrong = Says({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    unwinder = Unwinder(index_of(), steppers=(wrong,))
    unwinder.walk(snapshot(words(CODE + 0x10)))

    assert not unwinder.rejected_rows


def test_no_doubt_where_a_register_was_only_supposed():
    wrong = Says({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    right = Says({CODE: LEAF, CODE + 0x10: OUTERMOST}, Found.EH_FRAME)
    unwinder = Unwinder(index_of(), steppers=(wrong, right))
    taken = snapshot(words(CODE + 0x10))
    assert unwinder.walk(taken._replace(assumed=True)).stop_reason is StopReason.OUTERMOST

    assert not unwinder.rejected_rows


@pytest.mark.parametrize(("sp", "whole"), [(STACK, True), (STACK + 16, False)], ids=["leaf", "frame"])
def test_a_register_that_an_innermost_leaf_leaves_alone(sp, whole):
    """As __libc_arm_za_disable leaves x13: the table of its caller says so; what has a frame is no leaf."""
    leaf = UnwindRow(Rule(AARCH64.sp, sp - STACK, deref=False), Rule(AARCH64.ra, 0, deref=False))
    caller = UnwindRow(Rule(AARCH64.sp, 0, deref=False), Rule(13, 0, deref=False))
    rows = Says({CODE: leaf, CODE + 0x10: caller, CODE + 0x20: OUTERMOST})
    at = {AARCH64.pc: CODE, AARCH64.sp: STACK, AARCH64.ra: CODE + 0x10, 13: CODE + 0x20}
    snapshot = ThreadSnapshot(1, at, words(0), False, 0, eintr=False, arch=AARCH64)
    stack = Unwinder(index_of(), steppers=(rows,)).walk(snapshot)

    assert pcs(stack) == ([0, 0x10, 0x20] if whole else [0, 0x10])


def test_where_a_scan_finds_the_return_address_on_other_machines():
    s390x = ScanStepper().row_at(Frame(CODE, 0, None, Found.CONTEXT, exact=True), None, S390X)
    aarch64 = ScanStepper().row_at(Frame(CODE, 0, None, Found.CONTEXT, exact=True), None, AARCH64)
    big = BytesMemory(STACK, (CODE + 0x10).to_bytes(8, "big"), "big")

    # r14 is saved at 112 of the caller's frame: found at sp, it tells where that begins
    assert apply_row(s390x, {S390X.sp: STACK}, big, S390X).registers == {
        S390X.sp: STACK - 112,
        S390X.pc: CODE + 0x10,
    }
    # x30 beside x29, and no word of where the frame ends
    at = {AARCH64.sp: STACK + 8}
    assert apply_row(aarch64, at, words(STACK + 64, CODE + 0x10), AARCH64).registers == {
        AARCH64.fp: STACK + 64,
        AARCH64.pc: CODE + 0x10,
    }
