"""Runs are placed by address; a break ends the chain."""

import struct

import pytest

from sfsample.core.memory import BytesMemory
from sfsample.core.stack import Frame
from sfsample.modules.mapping import Mapping
from sfsample.runtimes.cpython.layout import layout_of
from sfsample.runtimes.cpython.place import Placer
from tests.runtimes.cpython.test_chain import (
    BASE,
    GENERATOR,
    NEW,
    SENTINEL,
    SLOT,
    STATE,
    THREAD,
    at,
    frame,
    memory,
)

# native frames of 64 bytes over the sentinels in slots 3 and 5, with 16 bytes from sentinel to CFA
LOOPS = [Frame(pc, at(slot) - 32, at(slot) + 16, "eh_frame", False) for pc, slot in ((1, 3), (2, 5))]
CHAIN = {
    1: (0xA0, 2, THREAD),
    2: (0xB0, 3, THREAD),
    3: (0, 4, SENTINEL),
    4: (0xC0, 5, THREAD),
    5: (0, 0, SENTINEL),
}


def test_each_run_is_at_the_native_frame_that_has_its_sentinel():
    placed = Placer(NEW).place(memory(1, CHAIN), LOOPS, [STATE])
    assert placed.activations == ((0, (frame(1, 0xA0, 2), frame(2, 0xB0, 3))), (1, (frame(4, 0xC0, 5),)))
    assert placed.is_whole


def test_break_ends_the_chain():
    broken = memory(1, {**CHAIN, 2: (0xB0, 3, THREAD)})
    data = bytearray(broken.data)
    struct.pack_into("<Q", data, 4 * SLOT + NEW.previous, 0xDEAD0000)  # of the outer activation
    placed = Placer(NEW).place(BytesMemory(broken.base, bytes(data)), LOOPS, [STATE])
    assert placed.activations == ((0, (frame(1, 0xA0, 2), frame(2, 0xB0, 3))),)
    assert not placed.is_whole


def test_break_before_anything_is_known_costs_all():
    copy = memory(9, {1: (0xA0, 0, THREAD)})
    placed = Placer(NEW).place(copy, LOOPS, [STATE])
    assert placed == ((), False)


def test_mark_outside_of_all_native_frames_is_not_placed():
    placed = Placer(NEW).place(memory(1, CHAIN), LOOPS[1:], [STATE])
    assert [index for index, _ in placed.activations] == [0]
    assert not placed.is_whole


def test_stack_without_native_frames_has_no_activation():
    assert Placer(NEW).place(memory(1, CHAIN), [], [STATE]) == ((), False)


def test_circle_of_sentinels_is_not_whole():
    copy = memory(1, {1: (0xA0, 3, THREAD), 3: (0, 3, SENTINEL)})
    assert not Placer(NEW).place(copy, LOOPS, [STATE]).is_whole


PROGRAM = Mapping(0x5000, 0x6000, True, True, 0, "0:0", 1, "/prog.bin", False)
COMPILED = {1: (0xA0, 2, GENERATOR), 2: (0xB0, 0, GENERATOR)}


@pytest.mark.parametrize(
    ("pcs", "index", "is_whole"),
    [
        (
            (0x9000, 0x5000, 0x5010, 0x9010, 0x5020),
            1,
            True,
        ),  # libc, called by the program; the last is _start
        ((0x5000, 0x9000, 0x9010), 0, True),
        ((0x5000, 0x9000, 0x5010, 0x9010), 0, False),  # a library between them: called by which function?
        ((0x9000, 0x9010, 0x5020), None, False),
    ],
)
def test_compiled_functions_are_at_the_innermost_frame_of_the_program(pcs, index, is_whole):
    native = [Frame(pc, 0x100 + 16 * at, 0x110 + 16 * at, "eh_frame", False) for at, pc in enumerate(pcs)]
    placed = Placer(NEW, (PROGRAM,)).place(memory(1, COMPILED), native, [STATE])
    run = frame(1, 0xA0, 2), frame(2, 0xB0)
    assert placed == (((index, run),) if index is not None else (), is_whole)


def test_compiled_functions_are_outside_the_activation_that_they_called():
    chain = {1: (0xA0, 3, THREAD), 3: (0, 4, SENTINEL), 4: (0xC0, 0, GENERATOR)}
    loop, *outside = [Frame(0x5000 + at, sp, sp + 48, "eh_frame", False)
                      for at, sp in enumerate((at(3) - 32, at(5), at(6), at(7)))]  # fmt: skip
    placed = Placer(NEW, (PROGRAM,)).place(memory(1, chain), [loop, *outside], [STATE])
    assert placed == (((0, (frame(1, 0xA0, 3),)), (1, (frame(4, 0xC0),))), True)


def test_state_that_another_thread_runs_has_no_frames_here():
    """Until 3.12 a sub-interpreter has one thread state, whichever thread runs it."""
    layout, other, cframe = layout_of(0x030C01F0), at(6), at(3) - 16
    data = bytearray(memory(1, CHAIN).data) + bytes(SLOT * 5)
    for state, to, current in ((STATE, cframe, at(1)), (other, at(9), at(1))):
        struct.pack_into("<Q", data, state + layout.thread_frame - BASE, to)
        struct.pack_into("<Q", data, to - BASE, current)
    placed = Placer(layout).place(BytesMemory(BASE, bytes(data)), LOOPS, [STATE, other])
    assert placed.is_whole
    assert [index for index, _ in placed.activations] == [0, 1]
