"""A stepper's answer is the same at each pc of its `reach`, in the installed libraries."""

import random
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import Found, Frame
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.unwind.stepper import reach_of
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, Unwinder
from tests.builders.installed import library
from tests.builders.walks import CODE, LEAF, OUTERMOST, RowsByPc, module_map, pcs, snapshot, words

BIAS = 0x7F00_0000_0000
STEPPERS_WITH_REACH = [stepper for stepper in DEFAULT_STEPPERS if hasattr(stepper, "reach")]


def frame(pc: int) -> Frame:
    return Frame(pc, 0, None, Found.CONTEXT, exact=True)


@pytest.mark.parametrize("name", ["libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6"])
def test_answer_is_same_within_reach(name):
    path = library(name)
    image = ElfImage(Path(path).read_bytes(), path)
    module, chance = Module(image, BIAS, path), random.Random(name)  # noqa: S311
    low, high = image.executable[0]
    wide_count = 0
    for _ in range(150):
        pc = BIAS + chance.randrange(low, high)
        for stepper in STEPPERS_WITH_REACH:
            first, end = reach_of(stepper, frame(pc), module, AMD64)
            assert first <= pc < end
            expected = stepper.row_at(frame(pc), module, AMD64)
            within = max(first, BIAS + low), min(end, BIAS + high)
            others = {within[0], within[1] - 1, *(chance.randrange(*within) for _ in range(12))}
            assert all(stepper.row_at(frame(other), module, AMD64) == expected for other in others)
            wide_count += within[1] - within[0] > 1
    assert wide_count > 150


class RowsInBlocks(RowsByPc):
    """A stepper whose rows hold for blocks of 16 bytes."""

    def __init__(self, rows) -> None:
        super().__init__({pc + n: row for pc, row in rows.items() for n in range(-8, 8)})

    def reach(self, asked, module, arch):  # noqa: ARG002 - the protocol
        return asked.pc - 8 & -16 | 8, (asked.pc - 8 & -16 | 8) + 16


@pytest.mark.parametrize(
    ("kind", "asked"), [(RowsInBlocks, {CODE, CODE + 24}), (RowsByPc, {CODE, CODE + 7, CODE + 24})]
)
def test_answer_is_reused_within_reach_only(kind, asked):
    rows = {
        CODE: LEAF,
        CODE + 0x10: OUTERMOST,
        CODE + 0x20: LEAF._replace(cfa=LEAF.cfa._replace(offset=16)),
    }
    stepper = RowsInBlocks(rows) if kind is RowsInBlocks else RowsByPc({**RowsInBlocks(rows).rows})
    unwinder = Unwinder(module_map(), steppers=(stepper,))
    memory = words(CODE + 0x10, CODE + 0x10)
    for pc in (CODE, CODE + 7, CODE, CODE + 24, CODE + 7):
        stack = unwinder.walk(snapshot(memory, pc=pc))
        assert pcs(stack) == [pc - CODE, 0x10]
        assert stack.frames[0].cfa == stack.frames[0].sp + (16 if pc == CODE + 24 else 8)
    assert {frame.pc for frame in stepper.asked if frame.exact} == asked

    unwinder._modules.refresh(force=True)
    stepper.asked.clear()
    unwinder.walk(snapshot(memory, pc=CODE + 7))
    assert CODE + 7 in {frame.pc for frame in stepper.asked}
