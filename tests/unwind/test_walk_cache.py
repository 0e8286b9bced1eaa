"""Walks that use cached parts give the same stack as a new unwinder."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import StopReason, common_tail
from sfsample.unwind.unwinder import Unwinder
from tests.builders.walks import CODE, FP, LEAF, OUTERMOST, STACK, RowsByPc, module_map, snapshot, words
from tests.unwind.test_rule_cache import CELLS, SITES, OpaqueMemory
from tests.unwind.test_rule_cache import ROWS as ROW_KINDS

BIG = LEAF._replace(cfa=Rule(7, 24, deref=False))
FRAME = LEAF._replace(cfa=Rule(FP, 16, deref=False), registers=((FP, Rule(CFA, -16, deref=True)),), kept=(3,))
SIZES = {CODE + 0x10: 1, CODE + 0x20: 1, CODE + 0x30: 3, CODE + 0x40: 2, CODE + 0x50: 2}
ROWS = {
    CODE: LEAF, CODE + 0x10: LEAF, CODE + 0x20: LEAF, CODE + 0x30: BIG, CODE + 0x40: FRAME,
    CODE + 0x50: FRAME, CODE + 0x100: OUTERMOST,
}  # fmt: skip
TOP = STACK + 0x10000
MAX_FRAMES = 10_000


def stack_of(functions: list[int]):
    """Return a thread in the first function, called by the second, and so on; its stack ends at TOP."""
    size = 1 + sum(SIZES[function] for function in functions)
    base = TOP - 8 * size
    cells = [functions[0] if functions else CODE + 0x100]
    saved_fps = []  # indexes into `cells`, of the functions whose CFA is computed from fp
    for function, caller in zip(functions, [*functions[1:], CODE + 0x100], strict=True):
        if ROWS[function] is FRAME:
            saved_fps.append(len(cells))
        cells += [0] * (SIZES[function] - 1) + [caller]
    for slot, above in zip(saved_fps, [*saved_fps[1:], None], strict=False):
        cells[slot] = 0 if above is None else base + 8 * above
    data = b"".join(word.to_bytes(8, "little") for word in cells)
    fp = base + 8 * saved_fps[0] if saved_fps else 0
    return snapshot(BytesMemory(base, data), sp=base, rbp=fp)


def new_unwinder() -> Unwinder:
    return Unwinder(module_map(), steppers=(RowsByPc(ROWS),), max_frames=MAX_FRAMES)


def unwinder_with_rows() -> Unwinder:
    """Return an unwinder that has cached the rows of all functions."""
    unwinder = new_unwinder()
    for function in SIZES:
        unwinder.walk(stack_of([function, function]))
    return unwinder


def frames_from_cache(cached: Unwinder, taken) -> int:
    """Walk; return how many frames came from the walk cache."""
    walks, parts = cached._chain.rule_cache._walks, []
    valid_part = walks.valid_part
    walks.valid_part = lambda *arguments: parts.append(valid_part(*arguments)) or parts[-1]
    cached.walk(taken)
    walks.valid_part = valid_part
    return sum(len(part.frames) for part in parts if part)


def calls(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices([*SIZES], k=count)  # noqa: S311


@pytest.mark.parametrize("inner", [0, 1, 5, 63, 64, 65, 200, 900])
def test_outer_frames_are_reused_when_inner_frames_change(inner):
    cached = unwinder_with_rows()
    outer = calls(1, 1500)
    for _ in range(4):
        before = cached.walk(stack_of(calls(2, 40) + outer))
    stack = cached.walk(stack_of(calls(3, inner) + outer))

    assert before.stop_reason is stack.stop_reason is StopReason.OUTERMOST
    assert stack == new_unwinder().walk(stack_of(calls(3, inner) + outer))
    assert common_tail(before.frames, stack.frames) >= 1500
    assert frames_from_cache(cached, stack_of(calls(4, inner) + outer)) > 1400


@pytest.mark.parametrize("depth", [2, 5, 30, 63, 64, 65, 66, 129])
def test_walk_is_reused_after_three_walks(depth):
    cached, taken = unwinder_with_rows(), stack_of(calls(1, depth))

    for _ in range(3):
        cached.walk(taken)
    assert [frames_from_cache(cached, taken) for _ in range(2)] == [depth, depth]


@pytest.mark.parametrize("at", [0, 1, 10, 700, 1400, 1498, 1499])
def test_changed_return_address_in_middle_is_noticed(at):
    """The other function has a frame of the same size, so the outer frames stay at their addresses."""
    cached = unwinder_with_rows()
    functions = calls(1, 1500)
    functions[at] = CODE + 0x10
    for _ in range(4):
        cached.walk(stack_of(functions))
    functions[at] = CODE + 0x20
    taken = stack_of(functions)

    for _ in range(4):
        assert cached.walk(taken) == new_unwinder().walk(taken)
    assert frames_from_cache(cached, taken) > 1400


def test_any_changed_word_is_noticed():
    """Each word of a stack in turn is replaced by several others."""
    chance, fresh = random.Random(11), module_map()  # noqa: S311
    taken = stack_of(calls(8, 25))
    base, view = taken.memory.words
    instead = [*SIZES, CODE + 0x100, CODE + 8, 0, *(base + 8 * n for n in range(0, len(view), 3))]
    cached = unwinder_with_rows()
    for at in range(len(view)):
        for word in chance.sample(instead, 4):
            for _ in range(4):
                cached.walk(taken)  # caches again what was cut
            words = [*view[:at], word, *view[at + 1 :]]
            data = b"".join(w.to_bytes(8, "little") for w in words)
            other = taken._replace(memory=BytesMemory(base, data))
            expected = Unwinder(fresh, steppers=(RowsByPc(ROWS),), max_frames=MAX_FRAMES).walk(other)
            assert cached.walk(other) == expected
        cached = unwinder_with_rows() if at % 5 == 0 else cached


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_rows_and_words_give_walk_without_cache(data):
    """Rows of every kind; words and registers change one at a time."""
    sites = st.sampled_from(SITES)
    rows = {site: data.draw(st.sampled_from(ROW_KINDS)) for site in SITES[:-1]} | {SITES[-1]: OUTERMOST}
    cells = data.draw(st.lists(st.one_of(sites, CELLS), min_size=4, max_size=40))
    registers = {FP: data.draw(CELLS)}
    modules = module_map()
    cached = Unwinder(modules, steppers=(RowsByPc(rows),), max_frames=data.draw(st.integers(2, 40)))
    for at, cell in data.draw(st.lists(st.tuples(st.integers(-1, 39), st.one_of(sites, CELLS)), max_size=12)):
        if at < 0:
            registers = {FP: cell}
        elif at < len(cells):
            cells[at] = cell
        taken = snapshot(words(*cells))
        taken.registers.update(registers)
        uncached = Unwinder(modules, steppers=(RowsByPc(rows),), max_frames=cached._max_frames)
        expected = uncached.walk(taken._replace(memory=OpaqueMemory(taken.memory)))
        for _ in range(4):
            assert cached.walk(taken) == expected


def test_any_change_gives_walk_of_new_unwinder():
    cached, chance = unwinder_with_rows(), random.Random(7)  # noqa: S311
    functions = calls(5, 2000)
    for _ in range(60):
        cut, length = chance.randrange(len(functions)), chance.randrange(60)
        functions = (
            chance.choices([*SIZES], k=length) + functions[cut if chance.random() < 0.1 else cut % 100 :]
        )
        if len(functions) < 600:
            functions = calls(chance.randrange(100), 2000)
        taken = stack_of(functions)
        assert cached.walk(taken) == new_unwinder().walk(taken)


def test_threads_at_same_addresses_are_not_confused():
    """The stacks of two threads may lie at the same addresses, one after the other."""
    cached = unwinder_with_rows()
    one, other = stack_of(calls(1, 1500)), stack_of(calls(2, 1500))._replace(tid=2)
    for taken in (one, other) * 3:
        assert cached.walk(taken) == new_unwinder().walk(taken)


def test_cache_size_is_limited():
    cached = unwinder_with_rows()
    walks = cached._chain.rule_cache._walks
    most = 0
    for seed in range(120):
        for _ in range(4):
            cached.walk(stack_of(calls(seed, 1000)))
        most = max(most, walks._frame_count)
        assert walks._frame_count <= 1 << 16
        assert len(walks.entries) <= 1 << 14
    assert most > walks._frame_count  # the cache was cleared on the way


def test_cached_walks_are_dropped_when_mappings_change():
    cached, taken = unwinder_with_rows(), stack_of(calls(1, 30))
    for _ in range(4):
        cached.walk(taken)
    cached._modules.refresh(force=True)

    assert frames_from_cache(cached, taken) == 0
    assert cached.walk(taken) == new_unwinder().walk(taken)


def test_max_frames_holds_with_cached_walks():
    outer = calls(1, 1500)
    cached = Unwinder(module_map(), steppers=(RowsByPc(ROWS),), max_frames=1520)
    for _ in range(4):
        cached.walk(stack_of(outer))
    stack = cached.walk(stack_of(calls(2, 50) + outer))

    assert (len(stack.frames), stack.stop_reason) == (1520, StopReason.MAX_FRAMES)
