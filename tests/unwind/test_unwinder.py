"""The walk over invented stacks: which stepper is believed, when the walk ends, and why.

Code is one invented ELF file without tables; rows come from steppers that the tests write, as a user of the
library could.  Tests with real tables are at the end.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES, Unwinder
from tests.builders.eh_frame_builder import AMD64_START, EhFrameBuilder, advance_loc, def_cfa, offset
from tests.builders.elf_builder import PT_GNU_SFRAME, Bytes, Load, elf
from tests.builders.sframe_builder import Function, row, section
from tests.builders.walks import (
    BIAS,
    CODE,
    FP,
    JIT,
    LEAF,
    OUTERMOST,
    RA_SLOT,
    RBX,
    SIZE,
    SP,
    STACK,
    TEXT,
    TRAMPOLINE,
    Says,
    index_of,
    pcs,
    snapshot,
    text,
    walk,
    words,
)

# -- frames


def test_a_walk():
    """Each frame says how it was found; the innermost is the context's; only that one is exact."""
    rows = Says({CODE: LEAF, CODE + 0x10: LEAF, CODE + 0x20: OUTERMOST})
    stack = walk(words(CODE + 0x10, CODE + 0x20), rows)

    assert stack.frames == (
        Frame(CODE, STACK, STACK + 8, Found.CONTEXT, exact=True),
        Frame(CODE + 0x10, STACK + 8, STACK + 16, Found.SFRAME, exact=False),
        Frame(CODE + 0x20, STACK + 16, None, Found.SFRAME, exact=False),
    )
    assert (stack.stop_reason, stack.stopped_at) == (StopReason.OUTERMOST, None)
    assert [frame.lookup_pc - CODE for frame in stack.frames] == [0, 0xF, 0x1F]


def test_a_stepper_of_a_users_own_goes_into_the_tuple():
    """Documented example: JIT code that a runtime describes, before everything else."""
    jit = Says({JIT + 5: LEAF}, Found.FRAME_POINTER)
    known = Says({CODE + 0x10: OUTERMOST})
    index = index_of(jit=True)
    unwinder = Unwinder(index, steppers=(jit, *DEFAULT_STEPPERS, known))
    stack = unwinder.walk(snapshot(words(CODE + 0x10), pc=JIT + 5))

    assert [frame.pc for frame in stack.frames] == [JIT + 5, CODE + 0x10]
    assert stack.frames[1].found is Found.FRAME_POINTER
    assert stack.stop_reason is StopReason.OUTERMOST


def test_rows_are_asked_for_once():
    rows = Says({CODE: LEAF, CODE + 0x10: OUTERMOST})
    unwinder = Unwinder(index_of(), steppers=(rows,))
    stacks = {unwinder.walk(snapshot(words(CODE + 0x10))) for _ in range(3)}

    assert len(stacks) == 1
    assert [frame.pc - CODE for frame in rows.asked] == [0, 0x10]


def test_that_nobody_knows_a_pc_is_remembered_too():
    rows = Says({})
    unwinder = Unwinder(index_of(), steppers=(rows,))
    for _ in range(3):
        unwinder.walk(snapshot(words()))

    assert len(rows.asked) == 1


def test_an_exact_pc_and_a_return_address_are_different_questions():
    rows = Says({CODE + 0x10: LEAF})
    walk(words(CODE + 0x10, CODE + 0x10), rows, pc=CODE + 0x10, max_frames=3)

    assert [frame.exact for frame in rows.asked] == [True, False]


def test_rows_are_forgotten_when_the_mappings_change():
    at = [BIAS]
    image = ElfImage(elf([Load(TEXT, text(), offset=0x1000)]), "invented")
    index = ModuleMap(
        lambda: (
            Mapping(at[0] + TEXT, at[0] + TEXT + SIZE, True, True, 0x1000, "08:01", 7, "/bin/x", False),
        ),
        lambda _: image,
    )
    rows = Says({CODE: OUTERMOST})
    unwinder = Unwinder(index, steppers=(rows,))
    assert unwinder.walk(snapshot(words())).stop_reason is StopReason.OUTERMOST
    rows.rows.clear()
    assert unwinder.walk(snapshot(words())).stop_reason is StopReason.OUTERMOST  # kept
    at[0] += 0x100_0000
    index.refresh()
    assert unwinder.walk(snapshot(words())).stop_reason is StopReason.NO_MODULE


# -- reasons


def test_outermost_because_the_row_says_so():
    assert walk(words(), Says({CODE: OUTERMOST})).stop_reason is StopReason.OUTERMOST


def test_outermost_because_the_return_address_is_zero():
    stack = walk(words(0), Says({CODE: LEAF}))

    assert stack.stop_reason is StopReason.OUTERMOST
    assert pcs(stack) == [0]


def test_no_row():
    stack = walk(words(), Says({}))

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.NO_ROW, f"/bin/invented+{TEXT:#x}")


def test_no_module():
    stack = walk(words(), Says({}), pc=0x1234)

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.NO_MODULE, "0x1234")


def test_no_row_in_anonymous_code():
    stack = walk(words(), Says({}), pc=JIT, index=index_of(jit=True))

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.NO_ROW, f"{JIT:#x}")


def test_bad_memory():
    stack = walk(words(), Says({CODE: LEAF}))

    assert (stack.stop_reason, stack.stopped_at) == (StopReason.BAD_MEMORY, f"/bin/invented+{TEXT:#x}")


def test_stack_copy_ended():
    assert walk(words(), Says({CODE: LEAF}), bounded=True).stop_reason is StopReason.STACK_COPY_ENDED


def test_register_unknown():
    by_rbx = LEAF._replace(cfa=Rule(RBX, 8, deref=False))

    assert walk(words(), Says({CODE: by_rbx})).stop_reason is StopReason.REGISTER_UNKNOWN


def test_no_progress():
    for sp in (STACK - 8, STACK):  # a caller's frame below or at this one
        sideways = UnwindRow(Rule(SP, sp - STACK, deref=False), Rule(SP, 0, deref=True))
        stack = walk(words(CODE + 0x10), Says({CODE: sideways}))
        assert (stack.stop_reason, pcs(stack)) == (StopReason.NO_PROGRESS, [0])


def test_bad_pc():
    for wild in (0x1234, STACK + 8, CODE, CODE + SIZE + 1):
        stack = walk(words(wild), Says({CODE: LEAF}))
        assert (stack.stop_reason, pcs(stack)) == (StopReason.BAD_PC, [0])


def test_a_return_address_may_be_the_end_of_a_mapping():
    """`call abort` as the last instruction of the last function."""
    assert pcs(walk(words(CODE + SIZE), Says({CODE: LEAF}))) == [0, SIZE]


def test_max_frames():
    endless = words(*[CODE + 0x10] * 50)
    rows = Says({CODE: LEAF, CODE + 0x10: LEAF})
    stack = walk(endless, rows, max_frames=5)

    assert stack.stop_reason is StopReason.MAX_FRAMES
    assert pcs(stack) == [0, 0x10, 0x10, 0x10, 0x10]
    assert stack.stopped_at == f"/bin/invented+{TEXT + 0x10:#x}"
    assert len(walk(words(*[CODE + 0x10] * 2000), rows).frames) == MAX_FRAMES


# -- which stepper is believed


def test_the_first_that_knows_the_pc_is_believed():
    other = LEAF._replace(cfa=Rule(SP, 16, deref=False))
    first, second = Says({CODE: LEAF}), Says({CODE: other}, Found.EH_FRAME)

    assert pcs(walk(words(CODE + 0x10, CODE + 0x20), first, second)) == [0, 0x10]
    assert second.asked == [Frame(CODE + 0x10, STACK + 8, None, Found.SFRAME, exact=False)]


def test_a_step_that_leads_nowhere_is_not_believed_and_the_next_stepper_is_asked():
    good = Says({CODE: LEAF, CODE + 0x10: OUTERMOST}, Found.EH_FRAME)
    no_progress = LEAF._replace(cfa=Rule(SP, 0, deref=False), ra=Rule(SP, 0, deref=True))
    outside = LEAF._replace(cfa=Rule(SP, 16, deref=False))
    unreadable = LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))
    for wrong in (no_progress, outside, unreadable):
        stack = walk(words(CODE + 0x10, 0x1234), Says({CODE: wrong}), good)
        assert pcs(stack) == [0, 0x10]
        assert stack.frames[1].found is Found.EH_FRAME
        assert stack.frames[0].cfa == STACK + 8


def test_when_nobody_is_believed_the_first_that_knew_says_why():
    first = Says({CODE: LEAF._replace(cfa=Rule(SP, 0x1000, deref=False))})
    second = Says({CODE: LEAF}, Found.EH_FRAME)

    assert walk(words(0x1234), first, second).stop_reason is StopReason.BAD_MEMORY
    assert walk(words(0x1234), second, first).stop_reason is StopReason.BAD_PC


def test_an_unknown_register_is_found_by_doing_the_walk_again_with_cfi_first():
    """SFrame does not recover rbx, so a later row that needs it fails; CFI of the first frame recovers it."""
    without_rbx = LEAF._replace(kept=(FP,))
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    sframe = Says({CODE: without_rbx})
    cfi = Says({CODE: LEAF, CODE + 0x10: by_rbx, CODE + 0x20: OUTERMOST}, Found.EH_FRAME)
    stack = walk(words(CODE + 0x10, 0, 0, CODE + 0x20), sframe, cfi, rbx=STACK)

    assert pcs(stack) == [0, 0x10, 0x20]
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.EH_FRAME, Found.EH_FRAME]


def test_when_the_second_walk_is_no_better_the_first_stands():
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    sframe = Says({CODE: LEAF._replace(kept=(FP,))})
    cfi = Says({CODE + 0x10: by_rbx}, Found.EH_FRAME)
    stack = walk(words(CODE + 0x10), sframe, cfi, rbx=STACK)

    assert stack.stop_reason is StopReason.REGISTER_UNKNOWN
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.SFRAME]


GUESS = UnwindRow(Rule(FP, 16, deref=False), RA_SLOT, ((FP, Rule(CFA, -16, deref=True)),), guess=True)


def test_no_guess_before_the_walk_was_done_again():
    """At CODE + 0x10 rbx is unknown: the frame pointer would step and miss a frame."""
    sframe = Says({CODE: LEAF._replace(kept=(FP,))})
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x20, deref=False))
    ends = {CODE + 0x20: OUTERMOST, CODE + 0x30: OUTERMOST}
    cfi = Says({CODE: LEAF, CODE + 0x10: by_rbx, **ends}, Found.EH_FRAME)
    guess = Says({CODE + 0x10: GUESS}, Found.FRAME_POINTER)
    memory = words(CODE + 0x10, 0, 0, CODE + 0x20, 0, CODE + 0x30)
    stack = walk(memory, sframe, cfi, guess, rbx=STACK, rbp=STACK + 32)

    assert pcs(stack) == [0, 0x10, 0x20]


def test_doing_the_walk_again_asks_sframe_before_it_guesses():
    sframe = Says({CODE: LEAF._replace(kept=(FP,)), CODE + 0x20: LEAF, CODE + 0x30: OUTERMOST})
    by_rbx = LEAF._replace(cfa=Rule(RBX, 0x10, deref=False))
    cfi = Says({CODE: LEAF, CODE + 0x10: by_rbx, CODE + 0x40: OUTERMOST}, Found.EH_FRAME)
    guess = Says({CODE + 0x20: GUESS}, Found.FRAME_POINTER)
    memory = words(CODE + 0x10, CODE + 0x20, CODE + 0x30, 0, CODE + 0x40)
    stack = walk(memory, sframe, cfi, guess, rbx=STACK, rbp=STACK + 24)

    assert pcs(stack) == [0, 0x10, 0x20, 0x30]
    assert [frame.found for frame in stack.frames[1:]] == [Found.EH_FRAME, Found.EH_FRAME, Found.SFRAME]


# -- guesses


def frame_pointer_chain(*returns: int) -> BytesMemory:
    """Each frame is (saved rbp, return address), 16 bytes."""
    cells: list[int] = []
    for number, address in enumerate(returns):
        cells += [STACK + 16 * (number + 1), address]
    return words(*cells)


def test_frame_pointers_lead_where_no_table_does():
    known = Says({CODE + 0x20: OUTERMOST})
    stack = walk(frame_pointer_chain(CODE + 0x10, CODE + 0x20), known, *DEFAULT_STEPPERS, rbp=STACK)

    assert pcs(stack) == [0, 0x10, 0x20]
    assert [frame.found for frame in stack.frames[1:]] == [Found.FRAME_POINTER] * 2
    assert stack.stop_reason is StopReason.OUTERMOST


def test_a_guessed_return_address_follows_a_call():
    calls = {
        "call rel32": b"\x90\x90\xe8\x00\x00\x00\x00",
        "call *%rax": b"\x90\x90\x90\x90\x90\xff\xd0",
        "call *8(%rax)": b"\x90\x90\x90\x90\xff\x50\x08",
        "call *8(%rax,%rbx)": b"\x90\x90\x90\xff\x54\x18\x08",
        "call *symbol(%rip)": b"\x90\xff\x15\x00\x00\x00\x00",
        "call *table(,%rax,8)": b"\xff\x14\xc5\x00\x00\x00\x00",
    }
    others = {"jmp rel32": b"\x90\x90\xe9\x00\x00\x00\x00", "jmp *%rax": b"\x90\x90\x90\x90\x90\xff\xe0",
              "nop": b"\x90" * 7}  # fmt: skip
    for number, code in enumerate([*calls.values(), *others.values()]):
        image = ElfImage(elf([Load(TEXT, code.ljust(SIZE, b"\x90"), offset=0x1000)]), "invented")
        mapping = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)
        index = ModuleMap(lambda m=mapping: (m,), lambda _, i=image: i)
        stack = walk(frame_pointer_chain(CODE + 7), *DEFAULT_STEPPERS, index=index, pc=CODE + 0x40, rbp=STACK)
        assert pcs(stack)[1:2] == ([7] if number < len(calls) else [])


def test_a_guess_that_is_not_believed_gives_no_reason():
    for address in (CODE + 0x12, CODE + 3, 0x1234, 0):
        stack = walk(frame_pointer_chain(address), *DEFAULT_STEPPERS, rbp=STACK)
        assert (stack.stop_reason, pcs(stack)) == (StopReason.NO_ROW, [0])


def test_a_guess_into_code_that_cannot_be_seen_is_believed():
    stack = walk(frame_pointer_chain(JIT + 3), *DEFAULT_STEPPERS, index=index_of(jit=True), rbp=STACK)

    assert [frame.pc for frame in stack.frames] == [CODE, JIT + 3]


def test_a_call_through_a_null_pointer():
    stack = walk(words(CODE + 0x10), Says({CODE + 0x10: OUTERMOST}), *DEFAULT_STEPPERS, pc=0)

    assert [frame.pc for frame in stack.frames] == [0, CODE + 0x10]
    assert stack.frames[1].found is Found.NULL_CALL


NOWHERE = {"unmapped": 0x1234_5678_9000, "the stack": STACK + 0x100, "not canonical": 0x4141 << 48}


@pytest.mark.parametrize("where", NOWHERE)
@pytest.mark.parametrize("rbp", [0, STACK + 8], ids=["no fp", "fp"])
def test_a_call_through_a_stray_pointer(where, rbp):
    """Where nothing can run, the return address is on top; the frame pointer would miss the caller."""
    memory = words(CODE + 0x10, 0, CODE + 0x20)
    rows = Says({CODE + 0x10: OUTERMOST, CODE + 0x20: OUTERMOST})
    stack = walk(memory, rows, *DEFAULT_STEPPERS, pc=NOWHERE[where], rbp=rbp)

    assert [frame.pc for frame in stack.frames] == [NOWHERE[where], CODE + 0x10]
    assert stack.frames[1].found is Found.NULL_CALL


def test_a_jump_to_nowhere():
    """Then the word on top is anything, and no call stands before it."""
    stack = walk(words(CODE + 0x18, CODE + 0x10), *DEFAULT_STEPPERS, pc=NOWHERE["unmapped"])

    assert (len(stack.frames), stack.stop_reason) == (1, StopReason.NO_MODULE)


def test_generated_code_is_somewhere():
    """Anonymous memory that may be executed holds code, so that rule does not apply."""
    stack = walk(words(CODE + 0x10), *DEFAULT_STEPPERS, pc=JIT, index=index_of(jit=True))

    assert [frame.pc for frame in stack.frames] == [JIT]


# -- signals


def ucontext(pc: int, sp: int, *, rbx: int = 0) -> list[int]:
    """Return struct ucontext up to rip, as words: gregs start 40 bytes in."""
    gregs = [0] * 17
    gregs[11], gregs[15], gregs[16] = rbx, sp, pc
    return [0] * 5 + gregs


def test_a_signal_handler_on_an_alternate_stack():
    """sp falls from the handler's stack to the interrupted one; the interrupted pc is exact; rbx is back."""
    altstack, interrupted = STACK + 0x8000, CODE + 0x40
    by_rbx = LEAF._replace(cfa=Rule(RBX, 8, deref=False))
    rows = Says({CODE: LEAF._replace(kept=()), interrupted: by_rbx, CODE + 0x50: OUTERMOST})
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


def test_what_a_signal_interrupted_may_be_a_jump_into_nowhere():
    memory = words(TRAMPOLINE, *ucontext(0xDEAD, STACK + 0x400))
    stack = walk(memory, *DEFAULT_STEPPERS[:1], Says({CODE: LEAF}))

    assert [frame.pc for frame in stack.frames] == [CODE, TRAMPOLINE, 0xDEAD]
    assert stack.stop_reason is StopReason.NO_MODULE


def test_a_ring_of_signal_frames_ends():
    ring = words(*ucontext(TRAMPOLINE, STACK))
    stack = walk(ring, *DEFAULT_STEPPERS, pc=TRAMPOLINE, max_frames=20)

    assert (len(stack.frames), stack.stop_reason) == (1, StopReason.NO_PROGRESS)


# -- real tables


def with_tables() -> ModuleMap:
    """CODE+0..10 and +10..20 have SFrame and CFI, +20..30 CFI by rbx, +30..40 CFI and no caller.

    SFrame of the first two says the same as CFI but, as it must, nothing of rbx.
    """
    cfi = EhFrameBuilder(0x3000)
    cie = cfi.cie(AMD64_START)
    cfi.fde(cie, TEXT, 0x10)
    cfi.fde(cie, TEXT + 0x10, 0x10, def_cfa(SP, 16))
    cfi.fde(cie, TEXT + 0x20, 0x10, def_cfa(RBX, 16))
    cfi.fde(cie, TEXT + 0x30, 0x20, b"\x07\x10" + advance_loc(1) + offset(FP, 2))
    data = section(3, [Function(TEXT, 16, [row(0, 8)]), Function(TEXT + 16, 16, [row(0, 16)])])
    return index_of(
        Load(0x2000, data, type=PT_GNU_SFRAME), sections=[Bytes(".eh_frame", 0x3000, cfi.terminated())]
    )


def test_sframe_leaves_rbx_unknown_and_the_walk_is_done_again_from_cfi():
    memory = words(CODE + 0x18, 0, CODE + 0x28, 0, CODE + 0x38)
    stack = walk(memory, *DEFAULT_STEPPERS, index=with_tables(), rbx=STACK + 24)

    assert pcs(stack) == [0, 0x18, 0x28, 0x38]
    assert stack.stop_reason is StopReason.OUTERMOST
    assert {frame.found for frame in stack.frames[1:]} == {Found.EH_FRAME}


def test_sframe_is_asked_before_cfi():
    stack = walk(words(CODE + 0x18, 0, CODE + 0x38), *DEFAULT_STEPPERS, index=with_tables())

    assert pcs(stack) == [0, 0x18, 0x38]
    assert [frame.found for frame in stack.frames[1:]] == [Found.SFRAME, Found.SFRAME]


def test_an_unreadable_module_is_walked_by_frame_pointers():
    def refuse(mapping):
        raise FormatError(mapping.path, 0, "damaged")

    mapping = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)
    index = ModuleMap(lambda: (mapping,), refuse)
    stack = walk(frame_pointer_chain(CODE + 0x10), *DEFAULT_STEPPERS, index=index, rbp=STACK)

    assert pcs(stack) == [0, 0x10]
    assert len(index.problems) == 1


# -- any stack

CELLS = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.integers(CODE - 2, CODE + 0x60),
    st.sampled_from([TRAMPOLINE, JIT + 1, 0]),
    st.integers(-2, 40).map(lambda n: STACK + 8 * n),
)


@settings(deadline=None)
@given(
    cells=st.lists(CELLS, max_size=60),
    registers=st.dictionaries(st.sampled_from([RBX, FP, 0, 12]), CELLS),
    pc=CELLS,
    sp=st.one_of(st.integers(0, 60).map(lambda n: STACK + n), CELLS),
    bounded=st.booleans(),
    max_frames=st.integers(1, 40),
)
def test_any_stack_ends_within_max_frames(*, cells, registers, pc, sp, bounded, max_frames):
    unwinder = Unwinder(INDEX, max_frames=max_frames)
    thread = snapshot(words(*cells), pc, sp, bounded=bounded)
    thread.registers.update(registers)
    stack = unwinder.walk(thread)

    assert bool(pc or sp) <= len(stack.frames) <= max_frames  # 0, 0: a thread that works for the kernel
    assert all((frame.pc, frame.found) == (pc, Found.CONTEXT) for frame in stack.frames[:1])
    assert (stack.stopped_at is None) == (stack.stop_reason is StopReason.OUTERMOST)
    assert all(0 <= frame.pc < 1 << 64 for frame in stack.frames)


INDEX = with_tables()


def test_a_walk_that_has_shown_new_mappings_is_done_again(monkeypatch):
    """Its first rows may have been kept for another library at the same address."""
    index = ModuleMap(tuple, lambda _: None)
    unwinder = Unwinder(index)
    walks: list[int] = []

    def walk(_: object) -> int:
        walks.append(len(walks))
        if len(walks) == 1:
            index.generation += 1
        return walks[-1]

    monkeypatch.setattr(unwinder, "_walk_best", walk)
    assert unwinder.walk(None) == 1
    assert unwinder.walk(None) == 2
    assert walks == [0, 1, 2]
