"""What a plan foresees comes with the stack; what it did not is followed: frames, chunks, headers.

The chain lies in the memory of this process, which is read as if it were a target.
"""

import ctypes
import os
import struct

import pytest

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.process.beside import Beside, Room
from sfsample.process.vm import CopyBuffer
from sfsample.runtimes.cpython.chain import PythonFrame, Run, runs
from sfsample.runtimes.cpython.code_objects import header_of
from sfsample.runtimes.cpython.layout import layout_of
from sfsample.runtimes.cpython.plan import Plan
from tests.runtimes.cpython.test_chain import NEW as LAYOUT

PID = os.getpid()
CHUNK_BYTES = 1 << 14
SENTINEL = 3


class Area:
    """A thread state, chunks, and a heap; everything is at its address in this process."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(8 * CHUNK_BYTES)
        base = ctypes.addressof(self._bytes) + 0xFFF & ~0xFFF
        self.state, self.heap, self.stack, self.codes = base, base + 0x1000, base + 0x2000, base + 0x3000
        self.chunks = [base + 0x4000 + number * CHUNK_BYTES for number in range(6)]

    def word(self, address: int, value: int) -> None:
        ctypes.memmove(address, struct.pack("<Q", value), 8)

    def chunk(self, number: int, previous: int | None) -> None:
        at = self.chunks[number]
        self.word(at, 0 if previous is None else self.chunks[previous])
        self.word(at + 8, CHUNK_BYTES)

    def frame(self, address: int, code: int, previous: int, owner: int = 0) -> int:
        self.word(address + LAYOUT.executable, code)
        self.word(address + LAYOUT.previous, previous)
        ctypes.memset(address + LAYOUT.owner, owner, 1)
        return address

    def current(self, frame: int, chunk: int, used: int = 256) -> None:
        self.word(self.state + LAYOUT.thread_frame, frame)
        self.word(self.state + LAYOUT.chunk, self.chunks[chunk])
        self.word(self.state + LAYOUT.chunk + 8, self.chunks[chunk] + used)

    def code(self, number: int) -> int:
        return self.codes + 256 * number


@pytest.fixture
def area() -> Area:
    return Area()


def sampled(area: Area, plan: Plan, trusted: set[int]) -> tuple[list[PythonFrame], Memory, int]:
    """Copy, and learn; return the frames that were copied, the copy, and how many calls followed."""
    room, calls = Room(), 0

    def counting(*arguments: object) -> int:
        nonlocal calls
        calls += 1
        return type(room).read(room, *arguments)  # type: ignore[arg-type]

    beside, buffer = Beside(plan, room, "little"), CopyBuffer(0x1000)
    assert beside.fill(PID, buffer, area.stack, 0x1000) == 0x1000
    room.read = counting  # type: ignore[method-assign]
    stack = BytesMemory(area.stack, bytes(buffer.bytes))
    beside.follow(stack, 1 << 63)
    joint = beside.result()
    assert joint is not None
    memory = PiecewiseMemory(stack, joint)
    found: list[Run] = [*runs(memory, LAYOUT, area.state)]
    frames = [frame for run in found for frame in run.frames]
    trusted |= {frame.code for frame in frames}
    plan.learn(memory, frames, is_whole=all(run.mark for run in found))
    return frames, memory, calls


def in_chunk(area: Area, count: int, chunk: int = 0) -> list[int]:
    """Put a chain of frames into a chunk; return their addresses, the innermost first."""
    sentinel = area.frame(area.stack + 0x100, 0, 0, SENTINEL)
    frames, outer = list[int](), sentinel
    for number in range(count):
        outer = area.frame(area.chunks[chunk] + 24 + 80 * number, area.code(number), outer)
        frames.insert(0, outer)
    return frames


def test_first_sample_follows_and_the_second_foresees(area):
    area.chunk(0, None)
    expected = in_chunk(area, 5)
    area.current(expected[0], 0)
    trusted: set[int] = set()
    plan = Plan(LAYOUT, [area.state], (), trusted)
    first, _, calls = sampled(area, plan, trusted)
    assert [frame.address for frame in first] == expected
    assert calls == 2  # the chunk, and the headers of its code objects
    second, _, calls = sampled(area, plan, trusted)
    assert (second, calls) == (first, 0)


def test_header_and_texts_of_a_code_object_that_is_not_known_are_copied(area):
    area.chunk(0, None)
    texts = [area.heap, area.heap + 0x400]
    area.word(area.code(1) + LAYOUT.qualname, texts[0])
    area.word(area.code(1) + LAYOUT.filename, texts[1])
    expected = in_chunk(area, 3)
    area.current(expected[0], 0)
    trusted = {area.code(0), area.code(2)}
    _, memory, _ = sampled(area, Plan(LAYOUT, [area.state], (), trusted), trusted)
    found = [memory.read(*header_of(LAYOUT, area.code(number))) is not None for number in range(3)]
    assert found == [False, True, False]
    assert [memory.read(text, 100) is not None for text in texts] == [True, True]


def test_stack_that_grows_by_chunks_is_followed(area):
    for number in range(4):
        area.chunk(number, number - 1 if number else None)
    frames = in_chunk(area, 3)
    area.current(frames[0], 0)
    trusted: set[int] = set()
    plan = Plan(LAYOUT, [area.state], (), trusted)
    sampled(area, plan, trusted)
    outer = frames[0]
    for number in range(1, 4):  # it grows
        outer = area.frame(area.chunks[number] + 24, area.code(number), outer)
        frames.insert(0, outer)
    area.current(outer, 3)
    found, _, calls = sampled(area, plan, trusted)
    assert [frame.address for frame in found] == frames
    assert calls == 4  # each chunk, and the header of the innermost code object
    assert sampled(area, plan, trusted)[2] == 0
    area.current(frames[3], 0)  # and shrinks
    found, _, _ = sampled(area, plan, trusted)
    assert [frame.address for frame in found] == frames[3:]


def test_stack_may_grow_in_its_newest_chunk(area):
    area.chunk(0, None)
    frames = in_chunk(area, 3)
    area.current(frames[0], 0)
    trusted = {area.code(9)}
    plan = Plan(LAYOUT, [area.state], (), trusted)
    sampled(area, plan, trusted)
    far = area.frame(area.chunks[0] + CHUNK_BYTES - 80, area.code(9), frames[0])
    area.current(far, 0, CHUNK_BYTES)
    found, _, calls = sampled(area, plan, trusted)
    assert ([frame.address for frame in found], calls) == ([far, *frames], 0)


def test_frames_of_generators_are_copied_with_their_page(area):
    area.chunk(0, None)
    frames = in_chunk(area, 2)
    outer, loose = frames[0], list[int]()
    for number in range(5):
        outer = area.frame(area.heap + 128 * number, area.code(number), outer, owner=1)
        loose.insert(0, outer)
    area.current(loose[0], 0)
    trusted = {area.code(number) for number in range(9)}
    plan = Plan(LAYOUT, [area.state], (), trusted)
    found, _, calls = sampled(area, plan, trusted)
    assert [frame.address for frame in found] == [*loose, *frames]
    assert calls == 1 + 1  # the chunk, and the page
    other = area.frame(area.heap + 0x800, area.code(8), loose[0], owner=1)
    area.current(other, 0)
    assert sampled(area, plan, trusted)[2] == 0
    crossing = area.frame(area.heap - 40, area.code(7), other, owner=1)
    area.current(crossing, 0)
    found, _, calls = sampled(area, plan, trusted)
    assert [frame.address for frame in found] == [crossing, other, *loose, *frames]
    assert calls == 1


def test_pages_that_are_foreseen_are_bounded(area):
    area.chunk(0, None)
    [frame] = in_chunk(area, 1)
    trusted = {area.code(8)}
    plan = Plan(LAYOUT, [area.state], (), trusted)
    heap = ctypes.create_string_buffer(40 * 0x1000)
    for number in range(1, 40):
        at = (ctypes.addressof(heap) & -0x1000) + 0x1000 * number
        area.current(area.frame(at, area.code(8), frame, owner=1), 0)
        found, _, _ = sampled(area, plan, trusted)
        assert [each.address for each in found] == [at, frame]
        assert len(plan.groups[-1]) == min(number, 16)


def test_frame_that_cannot_be_read_ends_the_chain(area):
    area.chunk(0, None)
    [frame] = in_chunk(area, 1)
    area.word(frame + LAYOUT.previous, 0x1000)
    area.current(frame, 0)
    found, _, _ = sampled(area, Plan(LAYOUT, [area.state], (), set()), set())
    assert [each.address for each in found] == [frame]


def test_frame_behind_the_cframe_of_the_thread_state_is_copied(area):
    """It is the current frame if only compiled functions run: 3.11 and 3.12 have no activation then."""
    layout = layout_of(0x030C01F0)
    cframe, frame = area.heap + 0x100, area.heap + 0x200
    area.word(area.state + layout.thread_frame, cframe)
    area.word(cframe + layout.cframe_frame, frame)
    area.frame(frame, area.code(0), 0, owner=1)
    room, buffer = Room(), CopyBuffer(0x1000)
    beside = Beside(Plan(layout, [area.state], (), set()), room, "little")
    beside.fill(PID, buffer, area.stack, 0x1000)
    beside.follow(BytesMemory(area.stack, bytes(buffer.bytes)), 1 << 63)
    copies = beside.result()
    assert copies is not None
    [run] = runs(copies, layout, area.state)
    assert ([each.address for each in run.frames], run.is_compiled) == ([frame], True)


def test_circle_of_unknown_code_objects_ends(area):
    area.chunk(0, None)
    frames = in_chunk(area, 2)
    area.word(frames[1] + LAYOUT.previous, frames[0])
    area.current(frames[0], 0)
    room, buffer = Room(), CopyBuffer(0x1000)
    plan = Plan(LAYOUT, [area.state], (), set())
    beside = Beside(plan, room, "little")
    beside.fill(PID, buffer, area.stack, 0x1000)
    beside.follow(BytesMemory(area.stack, bytes(buffer.bytes)), 1 << 63)
    assert beside.result() is not None


def test_circle_of_chunks_is_one_chunk(area):
    area.chunk(0, 0)
    frames = in_chunk(area, 1)
    area.current(frames[0], 0)
    plan = Plan(LAYOUT, [area.state], (), set())
    sampled(area, plan, set())
    assert len(plan.groups[1]) == 1


def test_chunks_of_a_state_are_bounded(area):
    area.chunk(0, None)
    area.word(area.chunks[0] + 8, 1 << 22)
    frames = in_chunk(area, 1)
    area.current(frames[0], 0)
    plan = Plan(LAYOUT, [area.state], (), set())
    sampled(area, plan, set())
    assert sum(size for group in plan.groups for _, size in group) < 1 << 21
