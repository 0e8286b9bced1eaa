"""Runs are placed by address; behind a break the chain goes on at the next sentinel."""

import struct

from sfsample.core.memory import BytesMemory
from sfsample.core.stack import Frame
from sfsample.runtimes.cpython.place import Placer
from tests.runtimes.cpython.test_chain import NEW, SENTINEL, SLOT, STATE, THREAD, at, frame, memory

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


def test_break_costs_one_run():
    placer = Placer(NEW)
    assert placer.place(memory(1, CHAIN), LOOPS, [STATE]).is_whole  # teaches where sentinels are
    broken = memory(1, {**CHAIN, 2: (0xB0, 3, THREAD)})
    data = bytearray(broken.data)
    struct.pack_into("<Q", data, SLOT + NEW.previous, 0xDEAD0000)  # of the innermost frame
    placed = placer.place(BytesMemory(broken.base, bytes(data)), LOOPS, [STATE])
    assert placed.activations == ((1, (frame(4, 0xC0, 5),)),)
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
