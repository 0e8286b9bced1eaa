"""Deep stacks whose outer part stays: the answer is the one of an unwinder that has never seen the thread."""

import random

import pytest

from sfsample.memory import BytesMemory
from sfsample.model import CFA, Rule, StopReason, common_tail
from sfsample.profile import Location, Places
from sfsample.unwind.unwinder import Unwinder
from tests.builders.walks import CODE, FP, LEAF, OUTERMOST, STACK, Says, index_of, snapshot

BIG = LEAF._replace(cfa=Rule(7, 24, deref=False))
FRAME = LEAF._replace(cfa=Rule(FP, 16, deref=False), registers=((FP, Rule(CFA, -16, deref=True)),), kept=(3,))
SIZES = {CODE + 0x10: 1, CODE + 0x20: 1, CODE + 0x30: 3, CODE + 0x40: 2, CODE + 0x50: 2}
ROWS = {
    CODE: LEAF, CODE + 0x10: LEAF, CODE + 0x20: LEAF, CODE + 0x30: BIG, CODE + 0x40: FRAME,
    CODE + 0x50: FRAME, CODE + 0x100: OUTERMOST,
}  # fmt: skip
TOP = STACK + 0x10000
MOST = 10_000


def stack_of(functions: list[int]):
    """Return a thread in the first of these functions, called by the second, and so on; it ends at TOP."""
    size = 1 + sum(SIZES[function] for function in functions)
    base = TOP - 8 * size
    made = [functions[0] if functions else CODE + 0x100]
    frames = []  # where those are whose CFA hangs on fp
    for function, caller in zip(functions, [*functions[1:], CODE + 0x100], strict=True):
        if ROWS[function] is FRAME:
            frames.append(len(made))
        made += [0] * (SIZES[function] - 1) + [caller]
    for slot, above in zip(frames, [*frames[1:], None], strict=False):
        made[slot] = 0 if above is None else base + 8 * above
    data = b"".join(word.to_bytes(8, "little") for word in made)
    fp = base + 8 * frames[0] if frames else 0
    return snapshot(BytesMemory(base, data), sp=base, rbp=fp)


def unwinder() -> Unwinder:
    return Unwinder(index_of(), steppers=(Says(ROWS),), max_frames=MOST)


def warm() -> Unwinder:
    """One that has learnt the rows."""
    made = unwinder()
    for function in SIZES:
        made.walk(stack_of([function, function]))
    return made


def calls(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices([*SIZES], k=count)  # noqa: S311


@pytest.mark.parametrize("inner", [0, 1, 5, 63, 64, 65, 200, 900])
def test_what_is_below_may_change(inner):
    known = warm()
    outer = calls(1, 1500)
    before = known.walk(stack_of(calls(2, 40) + outer))
    stack = known.walk(stack_of(calls(3, inner) + outer))

    assert before.stop_reason is stack.stop_reason is StopReason.OUTERMOST
    assert stack == unwinder().walk(stack_of(calls(3, inner) + outer))
    assert common_tail(before.frames, stack.frames) > 1300


@pytest.mark.parametrize("at", [0, 1, 10, 700, 1400, 1498, 1499])
def test_a_call_in_the_middle_that_is_another_one_now(at):
    """Of the same size, so that everything above is where it was."""
    known = warm()
    functions = calls(1, 1500)
    functions[at] = CODE + 0x10
    known.walk(stack_of(functions))
    functions[at] = CODE + 0x20

    assert known.walk(stack_of(functions)) == unwinder().walk(stack_of(functions))


def test_any_change_gives_what_a_new_unwinder_gives():
    known, chance = warm(), random.Random(7)  # noqa: S311
    functions = calls(5, 2000)
    for _ in range(60):
        cut, length = chance.randrange(len(functions)), chance.randrange(60)
        functions = (
            chance.choices([*SIZES], k=length) + functions[cut if chance.random() < 0.1 else cut % 100 :]
        )
        if len(functions) < 600:
            functions = calls(chance.randrange(100), 2000)
        taken = stack_of(functions)
        assert known.walk(taken) == unwinder().walk(taken)


def test_threads_are_not_confused_and_forgotten_when_they_have_ended():
    known = warm()
    one, other = stack_of(calls(1, 1500)), stack_of(calls(2, 1500))._replace(tid=2)
    for taken in (one, other, one, other):
        assert known.walk(taken) == unwinder().walk(taken)
    assert known._outer.keys() == {1, 2}
    known.keep_only({2})
    assert known._outer.keys() == {2}


def test_the_limit_of_frames_holds():
    outer = calls(1, 1500)
    known = Unwinder(index_of(), steppers=(Says(ROWS),), max_frames=1520)
    known.walk(stack_of(outer))
    known.walk(stack_of(outer))
    stack = known.walk(stack_of(calls(2, 50) + outer))

    assert (len(stack.frames), stack.stop_reason) == (1520, StopReason.MAX_FRAMES)


def test_deep_stacks_that_differ_are_different_keys():
    places = [Location(None, n, n) for n in range(3000)]
    one, same, other = (
        Places(places),
        Places(list(places)),
        Places([*places[:1234], places[0], *places[1235:]]),
    )

    assert (hash(one), one) == (hash(same), same)
    assert one != other
    assert len({one: 1, same: 2, other: 3}) == 2
    assert hash(Places(places[:50])) == hash(tuple(places[:50]))
