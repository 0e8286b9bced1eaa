"""Chains of frames are split into runs; torn and hostile ones end, and say where a frame is missing."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory
from sfsample.runtimes.cpython.chain import PythonFrame, Run, runs
from sfsample.runtimes.cpython.layout import layout_of
from tests.runtimes.cpython.test_layout import table

BASE, STATE, SLOT = 0x10000, 0x10000, 0x100  # frames lie in slots of 256 bytes; slot 0 is the thread state
OFFSETS = {"previous": 8, "executable": 0, "instruction": 56, "owner": 70,
           "frame_bytes": 72, "thread_frame": 72}  # fmt: skip
NEW = layout_of(0x030D05F0, table(13, 0x030D05F0, **OFFSETS))
THREAD, GENERATOR, SENTINEL = 0, 1, 3


def at(slot: int) -> int:
    return BASE + SLOT * slot if slot else 0


def memory(current: int, frames: dict[int, tuple[int, int, int]]) -> BytesMemory:
    """Return a copy: the thread state leads to slot `current`; frames are (code, previous slot, owner)."""
    data = bytearray(SLOT * (max(frames, default=0) + 1))
    struct.pack_into("<Q", data, NEW.thread_frame, at(current))
    for slot, (code, previous, owner) in frames.items():
        struct.pack_into("<QQ", data, SLOT * slot, code, at(previous))
        struct.pack_into("<Q", data, SLOT * slot + NEW.instruction, code + 208)
        data[SLOT * slot + NEW.owner] = owner
    return BytesMemory(BASE, bytes(data))


def frame(slot: int, code: int, caller: int = 0) -> PythonFrame:
    return PythonFrame(at(slot), code, code + 208, at(caller), code)


def test_sentinels_split_the_chain_into_runs():
    copy = memory(1, {1: (0xA0, 2, THREAD), 2: (0xB0, 3, GENERATOR), 3: (0, 4, SENTINEL),
                      4: (0xC0, 5, THREAD), 5: (0, 0, SENTINEL)})  # fmt: skip
    assert [*runs(copy, NEW, STATE)] == [
        Run((frame(1, 0xA0, 2), frame(2, 0xB0, 3)), at(3)), Run((frame(4, 0xC0, 5),), at(5))]  # fmt: skip


def test_compiled_functions_need_no_activation():
    """Nuitka links frames that look like those of generators; an activation may be inside them."""
    copy = memory(
        1, {1: (0xA0, 2, THREAD), 2: (0, 3, SENTINEL), 3: (0xB0, 4, GENERATOR), 4: (0xC0, 0, GENERATOR)}
    )
    *_, compiled = runs(copy, NEW, STATE)
    assert compiled == Run((frame(3, 0xB0, 4), frame(4, 0xC0)), 0, is_compiled=True)
    [torn] = runs(memory(1, {1: (0xA0, 2, GENERATOR), 2: (0xB0, 0, THREAD)}), NEW, STATE)
    assert not torn.is_compiled  # an interpreted function has an activation


def test_activation_without_frames_is_a_run():
    assert [*runs(memory(1, {1: (0, 0, SENTINEL)}), NEW, STATE)] == [Run((), at(1))]


def test_thread_without_frames_has_no_run():
    assert [*runs(memory(0, {}), NEW, STATE)] == []


def test_frame_that_was_not_copied_is_missing():
    copy = memory(1, {1: (0xA0, 9, THREAD)})
    assert [*runs(copy, NEW, STATE)] == [Run((frame(1, 0xA0, 9),), 0)]


def test_circle_ends():
    copy = memory(1, {1: (0xA0, 2, THREAD), 2: (0xB0, 1, THREAD)})
    assert [*runs(copy, NEW, STATE)] == [Run((frame(1, 0xA0, 2), frame(2, 0xB0, 1)), 0)]
    copy = memory(1, {1: (0xA0, 2, THREAD), 2: (0, 1, SENTINEL)})
    assert [*runs(copy, NEW, STATE)] == [Run((frame(1, 0xA0, 2),), at(2)), Run((), 0)]


CFRAME_SLOT, OTHER = 4, 5
OLD = layout_of(0x030B02F0)


def old_memory() -> BytesMemory:
    """Return a copy of 3.11: two activations, of two frames and of one."""
    data = bytearray(SLOT * 6)

    def put(slot: int, offset: int, value: int) -> None:
        struct.pack_into("<Q", data, SLOT * slot + offset, value)

    put(0, OLD.thread_frame, at(CFRAME_SLOT))
    put(CFRAME_SLOT, 8, at(1))
    put(CFRAME_SLOT, 16, at(OTHER))
    put(OTHER, 8, at(3))
    for slot, previous, entry in ((1, 2, 0), (2, 3, 1), (3, 0, 1)):
        put(slot, OLD.executable, 0xA0 + slot * 16)
        put(slot, OLD.previous, at(previous))
        put(slot, OLD.instruction, 0xA0 + slot * 16 + 208)
        data[SLOT * slot + 68] = entry
    return BytesMemory(BASE, bytes(data))


def test_entry_frames_split_the_chain_of_3_11():
    assert [*runs(old_memory(), OLD, STATE)] == [
        Run((frame(1, 0xB0, 2), frame(2, 0xC0, 3)), at(CFRAME_SLOT)), Run((frame(3, 0xD0),), at(OTHER)),
    ]  # fmt: skip


def test_compiled_functions_of_3_11_need_no_activation():
    copy = bytearray(old_memory().data)
    copy[SLOT * 3 + 68 : SLOT * 3 + 70] = bytes([0, GENERATOR])  # no entry of an activation
    *_, last = runs(BytesMemory(BASE, bytes(copy)), OLD, STATE)
    assert last == Run((frame(3, 0xD0),), 0, is_compiled=True)


def test_circle_of_3_11_ends():
    copy = bytearray(old_memory().data)
    struct.pack_into("<Q", copy, SLOT * 3 + OLD.previous, at(3))
    *_, last = runs(BytesMemory(BASE, bytes(copy)), OLD, STATE)
    assert last == Run((), 0)


def test_activation_that_begins_has_no_frame():
    """Its `_PyCFrame` is linked, and has what lay there before: a frame that another one has called."""
    copy = bytearray(old_memory().data)
    struct.pack_into("<Q", copy, SLOT * 2 + OLD.previous, at(1))
    assert [*runs(BytesMemory(BASE, bytes(copy)), OLD, STATE)] == [Run((frame(3, 0xD0),), at(OTHER))]


@pytest.mark.parametrize("layout", [NEW, OLD], ids=["3.13", "3.11"])
@given(data=st.binary(min_size=400, max_size=2000), patches=st.lists(st.integers(0, 15), max_size=60))
def test_any_memory_ends_without_an_error(layout, data, patches):
    whole = bytearray(data)
    for number, slot in enumerate(patches):  # pointers that lead somewhere into it
        struct.pack_into("<Q", whole, number * 8 % (len(whole) - 8) & -8, BASE + slot * 24)
    for run in runs(BytesMemory(BASE, bytes(whole)), layout, STATE):
        assert len(run.frames) <= 100_000
