"""A walk by the rule cache gives the same stack as a walk without it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory, PiecewiseMemory, words_at
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import GO_CODE, GOROUTINE_HIGH, GOROUTINE_LOW
from sfsample.core.stack import Found, StopReason
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
    snapshot,
    words,
)

SITES = [CODE + 0x10 * n for n in range(8)]
SAVES_FP = UnwindRow(Rule(SP, 24, deref=False), RA_SLOT, ((FP, Rule(CFA, -16, deref=True)),), kept=(RBX,))
BY_FP = SAVES_FP._replace(cfa=Rule(FP, 16, deref=False))
# CFA of a linkage stub: rsp + 8, and 8 more from the 11th byte on
_STUB_CFA = bytes.fromhex("77 08 80 00 3f 1a 3b 2a 33 24 22")
STUB = LEAF._replace(cfa=Rule(SP, 0, deref=False, expression=_STUB_CFA))
TWO_STACKS = LEAF._replace(on_goroutine=LEAF._replace(cfa=Rule(SP, 16, deref=False)))
ROWS = [
    LEAF,
    OUTERMOST,
    SAVES_FP,
    BY_FP,
    LEAF._replace(cfa=Rule(SP, 32, deref=False)),
    LEAF._replace(cfa=Rule(SP, 0, deref=False)),  # no progress
    LEAF._replace(cfa=Rule(SP, 12, deref=False)),  # not aligned
    LEAF._replace(cfa=Rule(RBX, 8, deref=False)),
    LEAF._replace(kept=()),  # fp is unknown in the caller
    SAVES_FP._replace(registers=((FP, Rule(CFA, -64, deref=True)),)),  # below sp
    SAVES_FP._replace(registers=((RBX, Rule(CFA, -16, deref=True)),), kept=(FP,)),
    BY_FP._replace(guess=True),
    LEAF._replace(guess=True),
    STUB,
    TWO_STACKS,
    SAVES_FP._replace(guess=True, mangled=True),
    UnwindRow(Rule(SP, 8, deref=True), Rule(SP, 0, deref=True), signal=True),
]
CELLS = st.one_of(st.sampled_from(SITES), st.integers(-2, 40).map(lambda n: STACK + 8 * n), st.just(0))


class OpaqueMemory:
    """Memory that is not a plain copy, so the rule cache cannot use it."""

    def __init__(self, memory) -> None:
        self.word, self.read = memory.word, memory.read


@settings(deadline=None, max_examples=300)
@given(
    first=st.dictionaries(st.sampled_from(SITES), st.sampled_from(ROWS)),
    second=st.dictionaries(st.sampled_from(SITES), st.sampled_from(ROWS)),
    stacks=st.lists(st.lists(CELLS, max_size=30), min_size=1, max_size=4),
    registers=st.dictionaries(st.sampled_from([RBX, FP]), CELLS),
    max_frames=st.integers(1, 12),
    bounded=st.booleans(),
)
@example(
    first={CODE: TWO_STACKS, CODE + 0x20: OUTERMOST},
    second={},
    registers={},
    stacks=[[CODE + 0x20, CODE + 0x20]] * 2,
    max_frames=3,
    bounded=False,
)
@example(first={CODE: LEAF, CODE + 0x10: LEAF, CODE + 0x20: OUTERMOST}, second={}, registers={},
         stacks=[[CODE + 0x10, CODE + 0x20]] * 2, max_frames=3, bounded=False)  # fmt: skip
def test_walk_with_cache_equals_walk_without_cache(*, first, second, stacks, registers, max_frames, bounded):
    """Walks over several stacks with the same rows, so that each uses what the earlier ones have cached."""
    steppers = (RowsByPc(first), RowsByPc(second, Found.EH_FRAME))
    modules = module_map()
    cached = Unwinder(modules, steppers=steppers, max_frames=max_frames)
    for cells in stacks:
        taken = snapshot(words(*cells), bounded=bounded)
        taken.registers.update(registers)
        taken.registers.update({GOROUTINE_LOW: STACK, GOROUTINE_HIGH: STACK + 64, GO_CODE: CODE})
        uncached = Unwinder(modules, steppers=steppers, max_frames=max_frames)
        expected = uncached.walk(taken._replace(memory=OpaqueMemory(taken.memory)))
        assert cached.walk(taken) == expected
        assert cached.walk(taken) == expected


def test_known_frames_are_passed_without_asking_steppers():
    rows = RowsByPc({CODE: LEAF, CODE + 0x10: LEAF, CODE + 0x20: OUTERMOST})
    unwinder = Unwinder(module_map(), steppers=(rows,))
    taken = snapshot(words(CODE + 0x10, CODE + 0x20))
    expected = unwinder.walk(taken)

    def fail(_walk):
        raise AssertionError("a stepper was asked")

    unwinder._chain.step = fail
    assert unwinder.walk(taken) == expected
    assert expected.stop_reason is StopReason.OUTERMOST


def test_guess_leads_only_to_address_that_accepted_guess_led_to():
    """Not to an address that follows no call, though the row for that address is cached."""
    guess = LEAF._replace(guess=True)
    rows = RowsByPc({CODE: guess, CODE + 1: LEAF, CODE + 0x10: OUTERMOST, CODE + 0x20: LEAF})
    unwinder = Unwinder(module_map(), steppers=(rows,))
    for _ in range(2):
        table = unwinder.walk(snapshot(words(CODE + 1, CODE + 0x10), pc=CODE + 0x20))
        accepted = unwinder.walk(snapshot(words(CODE + 0x10)))
        rejected = unwinder.walk(snapshot(words(CODE + 1, CODE + 0x10)))
        assert [frame.pc - CODE for frame in table.frames] == [0x20, 1, 0x10]
        assert [frame.pc - CODE for frame in accepted.frames] == [0, 0x10]
        assert [frame.pc - CODE for frame in rejected.frames] == [0]
    assert unwinder._chain.rule_cache.row_of(accepted.frames[0]) == guess


def test_later_row_gets_registers_of_frames_passed_by_cache():
    """A frame passed by the cache has saved rbx; the row of its caller needs it."""
    saves = UnwindRow(Rule(SP, 16, deref=False), RA_SLOT, ((RBX, Rule(CFA, -16, deref=True)),), kept=(FP,))
    by_rbx = LEAF._replace(cfa=Rule(RBX, 8, deref=False))
    rows = RowsByPc({CODE: saves, CODE + 0x10: by_rbx, CODE + 0x20: OUTERMOST})
    unwinder = Unwinder(module_map(), steppers=(rows,))
    taken = snapshot(words(STACK + 32, CODE + 0x10, 0, 0, CODE + 0x20))
    stacks = {unwinder.walk(taken) for _ in range(3)}

    [stack] = stacks
    assert [frame.pc - CODE for frame in stack.frames] == [0, 0x10, 0x20]


def test_words_at_returns_aligned_words_of_copy():
    odd = BytesMemory(0x1004, bytes(4) + (7).to_bytes(8, "little") + bytes(3))
    base, view = words_at(PiecewiseMemory(BytesMemory(0, b""), odd), 0x1008)

    assert (base, list(view)) == (0x1008, [7])
    assert words_at(odd, 0x1013) is None
    assert words_at(BytesMemory(0, bytes(16), "big"), 0) is None
    assert words_at(OpaqueMemory(odd), 0x1008) is None


def test_row_after_rejected_guess_is_not_cached():
    """Whether a guess is accepted depends on the stack, so the next stepper's row must not be cached."""
    guess = RowsByPc({CODE: LEAF._replace(guess=True)}, Found.FRAME_POINTER)
    table = RowsByPc(
        {CODE: LEAF._replace(cfa=Rule(SP, 16, deref=False)), CODE + 0x10: OUTERMOST, CODE + 0x20: OUTERMOST}
    )
    unwinder = Unwinder(module_map(), steppers=(guess, table))
    first = unwinder.walk(snapshot(words(0, CODE + 0x20)))
    second = unwinder.walk(snapshot(words(CODE + 0x10, CODE + 0x20)))

    assert [frame.pc - CODE for frame in first.frames] == [0, 0x20]
    assert [frame.pc - CODE for frame in second.frames] == [0, 0x10]


def test_full_caches_begin_anew(monkeypatch):
    """Each cache keeps within its bound, and walks stay right."""
    monkeypatch.setattr("sfsample.unwind.rule_cache._MAX_ENTRIES", 3)
    monkeypatch.setattr("sfsample.unwind.step._MAX_ANSWERS", 3)
    rows = RowsByPc(dict.fromkeys(SITES[:-1], LEAF) | {SITES[-1]: OUTERMOST})
    unwinder = Unwinder(module_map(), steppers=(rows,))
    for _ in range(3):
        for start, site in enumerate(SITES):
            stack = unwinder.walk(snapshot(words(*SITES[start + 1 :]), pc=site))
            assert [frame.pc for frame in stack.frames] == SITES[start:]
            rules = unwinder._chain.rule_cache
            assert len(rules._by_exact_pc) + len(rules._by_return_address) <= 3
            assert all(len(stepper._rows) <= 3 for stepper in unwinder._chain._steppers)
    assert len(rows.asked) > 2 * len(SITES)


def test_row_found_while_mappings_change_is_not_cached():
    """The mappings change after the look-up of a row has begun: the next look-up asks again."""
    modules = module_map()

    class Changing(RowsByPc):
        def row_at(self, frame, module, arch):
            modules.refresh(force=True)
            return super().row_at(frame, module, arch)

    rows = Changing({CODE: LEAF, CODE + 0x10: OUTERMOST})
    unwinder = Unwinder(modules, steppers=(rows,))
    unwinder.walk(snapshot(words(CODE + 0x10)))
    rules = unwinder._chain.rule_cache

    assert not rules._by_exact_pc
    assert not rules._outermost
    asked = len(rows.asked)
    unwinder.walk(snapshot(words(CODE + 0x10)))
    assert len(rows.asked) > asked
