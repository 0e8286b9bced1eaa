"""Whole walks: labels of frames, cached answers, real tables, and any stack that Hypothesis invents."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, Unwinder
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
    RBX,
    SIZE,
    SP,
    STACK,
    TEXT,
    TRAMPOLINE,
    RowsByPc,
    module_map,
    pcs,
    snapshot,
    text,
    walk,
    words,
)


def test_code_is_analysed_only_if_a_word_was_popped():
    """The walk lacks rbx at the second frame.  The table row of the innermost frame lacks no word."""
    by_rbx = LEAF._replace(cfa=Rule(RBX, 8, deref=False))
    saves_rbx = LEAF._replace(registers=((RBX, Rule(CFA, -16, deref=True)),), kept=(FP,))
    for first, is_analysed in ((LEAF, False), (saves_rbx, True)):
        code = RowsByPc({}, Found.CODE)
        rows = RowsByPc({CODE: first, CODE + 0x10: by_rbx}, Found.EH_FRAME)
        stack = walk(words(CODE + 0x10), rows, code)
        assert stack.stop_reason is StopReason.REGISTER_UNKNOWN
        assert any(frame.exact for frame in code.asked) == is_analysed


def test_walk_labels_each_frame():
    """The innermost frame is labelled CONTEXT and is exact; callers have the label of their stepper."""
    rows = RowsByPc({CODE: LEAF, CODE + 0x10: LEAF, CODE + 0x20: OUTERMOST})
    stack = walk(words(CODE + 0x10, CODE + 0x20), rows)

    assert stack.frames == (
        Frame(CODE, STACK, STACK + 8, Found.CONTEXT, exact=True),
        Frame(CODE + 0x10, STACK + 8, STACK + 16, Found.SFRAME, exact=False),
        Frame(CODE + 0x20, STACK + 16, None, Found.SFRAME, exact=False),
    )
    assert (stack.stop_reason, stack.stopped_at) == (StopReason.OUTERMOST, None)
    assert [frame.lookup_pc - CODE for frame in stack.frames] == [0, 0xF, 0x1F]


def test_stepper_of_user_is_asked_in_its_place():
    """As in docs/steppers.md: a stepper for generated code before the default ones."""
    jit = RowsByPc({JIT + 5: LEAF}, Found.FRAME_POINTER)
    known = RowsByPc({CODE + 0x10: OUTERMOST})
    modules = module_map(jit=True)
    unwinder = Unwinder(modules, steppers=(jit, *DEFAULT_STEPPERS, known))
    stack = unwinder.walk(snapshot(words(CODE + 0x10), pc=JIT + 5))

    assert [frame.pc for frame in stack.frames] == [JIT + 5, CODE + 0x10]
    assert stack.frames[1].found is Found.FRAME_POINTER
    assert stack.stop_reason is StopReason.OUTERMOST


# -- cached answers


def test_stepper_is_asked_once_per_pc():
    rows = RowsByPc({CODE: LEAF, CODE + 0x10: OUTERMOST})
    unwinder = Unwinder(module_map(), steppers=(rows,))
    stacks = {unwinder.walk(snapshot(words(CODE + 0x10))) for _ in range(3)}

    assert len(stacks) == 1
    assert [frame.pc - CODE for frame in rows.asked] == [0, 0x10]


def test_answer_none_is_cached():
    rows = RowsByPc({})
    unwinder = Unwinder(module_map(), steppers=(rows,))
    for _ in range(3):
        unwinder.walk(snapshot(words()))

    assert len(rows.asked) == 1


def test_exact_pc_and_return_address_are_separate_keys():
    rows = RowsByPc({CODE + 0x10: LEAF})
    walk(words(CODE + 0x10, CODE + 0x10), rows, pc=CODE + 0x10, max_frames=3)

    assert [frame.exact for frame in rows.asked] == [True, False]


def test_rows_are_dropped_when_mappings_change():
    at = [BIAS]
    image = ElfImage(elf([Load(TEXT, text(), offset=0x1000)]), "invented")
    modules = ModuleMap(
        lambda: (
            Mapping(at[0] + TEXT, at[0] + TEXT + SIZE, True, True, 0x1000, "08:01", 7, "/bin/x", False),
        ),
        lambda _: image,
    )
    rows = RowsByPc({CODE: OUTERMOST})
    unwinder = Unwinder(modules, steppers=(rows,))
    assert unwinder.walk(snapshot(words())).stop_reason is StopReason.OUTERMOST
    rows.rows.clear()
    assert unwinder.walk(snapshot(words())).stop_reason is StopReason.OUTERMOST  # kept
    at[0] += 0x100_0000
    modules.refresh()
    assert unwinder.walk(snapshot(words())).stop_reason is StopReason.NO_MODULE


def test_walk_is_repeated_if_mappings_have_changed(monkeypatch):
    """The first walk may have used rows of another library at the same address."""
    modules = ModuleMap(tuple, lambda _: None)
    unwinder = Unwinder(modules)
    walks: list[int] = []

    def walk(_: object) -> int:
        walks.append(len(walks))
        if len(walks) == 1:
            modules.generation += 1
        return walks[-1]

    monkeypatch.setattr(unwinder, "_walk_best", walk)
    assert unwinder.walk(None) == 1
    assert unwinder.walk(None) == 2
    assert walks == [0, 1, 2]


# -- real tables


def with_tables() -> ModuleMap:
    """Return a process: +0..10, +10..20 have SFrame and CFI, +20..30 CFI by rbx, +30..50 CFI without caller.

    SFrame of the first two has the rows of CFI, without rbx, which SFrame cannot describe.
    """
    cfi = EhFrameBuilder(0x3000)
    cie = cfi.cie(AMD64_START)
    cfi.fde(cie, TEXT, 0x10)
    cfi.fde(cie, TEXT + 0x10, 0x10, def_cfa(SP, 16))
    cfi.fde(cie, TEXT + 0x20, 0x10, def_cfa(RBX, 16))
    cfi.fde(cie, TEXT + 0x30, 0x20, b"\x07\x10" + advance_loc(1) + offset(FP, 2))
    data = section(3, [Function(TEXT, 16, [row(0, 8)]), Function(TEXT + 16, 16, [row(0, 16)])])
    return module_map(
        Load(0x2000, data, type=PT_GNU_SFRAME), sections=[Bytes(".eh_frame", 0x3000, cfi.terminated())]
    )


def test_walk_is_repeated_by_cfi_if_sframe_leaves_rbx_unknown():
    memory = words(CODE + 0x18, 0, CODE + 0x28, 0, CODE + 0x38)
    stack = walk(memory, *DEFAULT_STEPPERS, modules=with_tables(), rbx=STACK + 24)

    assert pcs(stack) == [0, 0x18, 0x28, 0x38]
    assert stack.stop_reason is StopReason.OUTERMOST
    assert {frame.found for frame in stack.frames[1:]} == {Found.EH_FRAME}


def test_sframe_is_asked_before_cfi():
    stack = walk(words(CODE + 0x18, 0, CODE + 0x38), *DEFAULT_STEPPERS, modules=with_tables())

    assert pcs(stack) == [0, 0x18, 0x38]
    assert [frame.found for frame in stack.frames[1:]] == [Found.SFRAME, Found.SFRAME]


# -- any stack


CELLS = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.integers(CODE - 2, CODE + 0x60),
    st.sampled_from([TRAMPOLINE, JIT + 1, 0]),
    st.integers(-2, 40).map(lambda n: STACK + 8 * n),
)


INDEX = with_tables()


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

    assert bool(pc or sp) <= len(stack.frames) <= max_frames  # pc and sp 0: a worker thread of the kernel
    assert all((frame.pc, frame.found) == (pc, Found.CONTEXT) for frame in stack.frames[:1])
    assert (stack.stopped_at is None) == (stack.stop_reason is StopReason.OUTERMOST)
    assert all(0 <= frame.pc < 1 << 64 for frame in stack.frames)
