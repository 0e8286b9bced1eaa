"""Plans, names and checks of one process; whatever its memory holds, nothing is endless or raises."""

import ctypes
import os
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.budget import CAPTURE_NS, COPIED_NS, READ_NS, Budget
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.stack import Frame
from sfsample.process.beside import Beside, Room
from sfsample.process.vm import CopyBuffer
from sfsample.runtimes.cpython.find import Interpreter
from sfsample.runtimes.cpython.layout import Layout, layout_of
from sfsample.runtimes.cpython.plan import Plan
from sfsample.runtimes.cpython.runtime import PythonRuntime
from tests.runtimes.cpython.test_layout import table

SIZE = 0x4000
AREA = (ctypes.c_char * SIZE)()
BASE = ctypes.addressof(AREA)  # of this process, which is read as if it were a target
OFFSETS = {
    "interpreter_next": 8,
    "threads": 16,
    "thread_next": 8,
    "thread_interpreter": 16,
    "native_thread_id": 24,
}
LAYOUTS = [layout_of(0x030B02F0), layout_of(0x030C01F0),
           layout_of(0x030E00F0, table(14, 0x030E00F0, **OFFSETS))]  # fmt: skip
FRAMES = [Frame(1, BASE, BASE + 0x800, "context", True), Frame(2, BASE + 0x800, None, "eh_frame", False)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), share=st.floats(0, 1))
def test_hostile_memory_gives_frames_or_none(layout, seed, share):
    chance = random.Random(seed)  # noqa: S311
    words = [BASE + 8 * chance.randrange(SIZE // 8) if chance.random() < share
             else chance.randrange(1 << chance.choice((16, 64))) for _ in range(SIZE // 8)]  # fmt: skip
    AREA[:] = struct.pack(f"<{len(words)}Q", *words)
    memory = BytesMemory(BASE, bytes(AREA))
    tid = words[(layout.native_thread_id + 0x100) // 8] or 1
    runtime = PythonRuntime(Interpreter(None, BASE, layout), memory.read,  # type: ignore[arg-type]
                            lambda pieces: [memory.read(*piece) for piece in pieces],
                            Budget(CAPTURE_NS))  # fmt: skip
    for thread in (tid, 1, 7, tid):
        plan = runtime.plan(thread)
        copied: Memory = memory
        if plan is not None:
            assert sum(map(len, plan.groups)) < 200
            copied = copy(plan) or memory
        found = runtime.stack(thread, copied, FRAMES)
        assert found is None or all(index < len(FRAMES) for index, _ in found.activations)


def copy(plan: Plan) -> Memory | None:
    """Return what a plan copies in a pause, with the stack; None: nothing."""
    beside, stack = Beside(plan, Room(), "little"), BytesMemory(BASE, bytes(AREA[:0x800]))
    beside.fill(os.getpid(), CopyBuffer(0x800), BASE, 0x800)
    beside.follow(stack, 1 << 63)
    joint = beside.result()
    return None if joint is None else PiecewiseMemory(stack, joint)


CREATOR, CHILD, NATIVE = 100, 200, 300  # thread ids
OWNER, YOUNG, OLD, FRAME = (BASE + at for at in (0x1000, 0x2000, 0x2800, 0x3000))
CFRAME, SENTINEL = BASE + 0x100, BASE + 0x200  # on the stack


def put(address: int, value: int) -> None:
    ctypes.memmove(address, struct.pack("<Q", value), 8)


def two_threads(layout: Layout, *, with_gil: bool = False) -> PythonRuntime:
    """Build an interpreter with a thread, and one that it has created, which has not begun."""
    ctypes.memset(BASE, 0, SIZE)
    put(BASE + layout.interpreters, OWNER)
    put(OWNER + layout.threads, YOUNG)
    put(OWNER + layout.threads - 8, 2)
    put(YOUNG + layout.thread_next, OLD)
    for state in (YOUNG, OLD):
        put(state + layout.thread_interpreter, OWNER)
    put(OLD + layout.native_thread_id, CREATOR)
    put(YOUNG + layout.native_thread_id, CREATOR if layout.minor == 11 else 0)

    def read(address: int, size: int) -> bytes | None:
        is_there = BASE <= address <= BASE + SIZE - size
        return ctypes.string_at(address, size) if is_there else None

    return PythonRuntime(Interpreter(None, BASE, layout), read,  # type: ignore[arg-type]
                         lambda pieces: [read(*piece) for piece in pieces],
                         Budget(CAPTURE_NS), with_gil=with_gil)  # fmt: skip


def begin(layout: Layout) -> None:
    """Have the younger thread run a function."""
    put(YOUNG + layout.native_thread_id, CHILD)
    put(YOUNG + layout.thread_frame, CFRAME if layout.has_cframes else FRAME)
    put(CFRAME + layout.cframe_frame, FRAME)
    ctypes.memset(FRAME + (layout.is_entry or 0), layout.is_entry is not None, 1)
    put(FRAME + layout.previous, 0 if layout.minor == 11 else SENTINEL)
    ctypes.memset(SENTINEL + layout.owner, 3, 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_thread_that_begins_between_plan_and_pause_has_its_frames(layout):
    runtime = two_threads(layout)
    plan = runtime.plan(CHILD)
    begin(layout)
    found = runtime.stack(CHILD, copy(plan), FRAMES)
    assert [(index, len(names)) for index, names in found.activations] == [(0, 1)]
    assert found.is_whole
    assert runtime.plan(CHILD).states == (YOUNG,)
    assert runtime.plan(CREATOR).states == (OLD,)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_thread_is_not_taken_for_one_that_had_not_begun_earlier(layout):
    runtime, newer = two_threads(layout), BASE + 0x2400
    assert runtime.plan(CHILD).states == (YOUNG,)  # and it was not captured
    put(YOUNG + layout.native_thread_id, NATIVE)
    put(newer + layout.thread_next, YOUNG)
    put(newer + layout.thread_interpreter, OWNER)
    put(newer + layout.native_thread_id, CHILD)
    put(OWNER + layout.threads, newer)
    put(OWNER + layout.threads - 8, 3)
    assert runtime.plan(CHILD).states == (newer,)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_thread_that_begins_late_is_found(layout):
    runtime = two_threads(layout)
    for thread in (NATIVE, CHILD) * 200:
        assert runtime.stack(thread, copy(runtime.plan(thread)), FRAMES) is None
    begin(layout)
    found = runtime.stack(CHILD, copy(runtime.plan(CHILD)), FRAMES)
    assert len(found.activations) == 1
    assert runtime.plan(NATIVE) is None


HOLDER, LOCKED, GIL = 8, 16, BASE + 0x3800  # offsets in a GIL, and the place of one


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_gil_is_held_by_the_thread_whose_state_it_names_in_the_pause(layout):
    runtime = two_threads(layout, with_gil=True)
    gil = GIL if layout.gil is None else BASE + layout.gil
    if layout.gil_pointer is not None:
        put(OWNER + layout.gil_pointer, gil)
    begin(layout)
    put(gil + HOLDER, YOUNG)
    for locked in (1, 0):  # a GIL that was released still names the last holder
        put(gil + LOCKED, locked)
        for thread, has_it in ((CHILD, bool(locked)), (CREATOR, False), (NATIVE, False)):
            plan = runtime.plan(thread)
            assert (
                runtime.has_gil(thread, copy(plan) if plan else BytesMemory(0, b""), (BASE, CFRAME)) is has_it
            )
    assert runtime.has_gil(CHILD, BytesMemory(0, b""), (BASE, CFRAME)) is None


def test_state_that_any_thread_may_run_is_held_by_the_thread_that_has_its_cframe():
    layout = LAYOUTS[0]
    runtime, main = two_threads(layout, with_gil=True), BASE + 0x2400
    put(OWNER + layout.interpreter_next, main)  # the newest interpreter comes first
    begin(layout)
    put(YOUNG + layout.native_thread_id, CREATOR)
    put(BASE + layout.gil + HOLDER, OLD)
    put(BASE + layout.gil + LOCKED, 1)
    put(OLD + layout.thread_frame, CFRAME)
    copied = copy(runtime.plan(CREATOR))
    assert runtime.has_gil(CREATOR, copied, (BASE, CFRAME + 8)) is True
    assert runtime.has_gil(CREATOR, copied, (BASE, CFRAME)) is False


class Target:
    """Memory of words that are put there one by one; counts what is read."""

    def __init__(self, layout: Layout) -> None:
        self.words: dict[int, int] = {}
        self.layout, self.reads, self.bytes = layout, 0, 0
        self.budget = Budget(CAPTURE_NS)
        self.runtime = PythonRuntime(
            Interpreter(None, BASE, layout),  # type: ignore[arg-type]
            self.read, lambda pieces: [self.read(*piece) for piece in pieces], self.budget,
        )  # fmt: skip

    def read(self, address: int, size: int) -> bytes | None:
        if not self.budget.permits(size):
            return None
        self.reads, self.bytes = self.reads + 1, self.bytes + size
        return self.words_of(address, size)

    def words_of(self, address: int, size: int) -> bytes:
        words = (self.words.get(at, 0) for at in range(address, address + size, 8))
        return b"".join(word.to_bytes(8, "little") for word in words)[:size]

    def interpreters(self, count: int, threads: int) -> None:
        """List interpreters with the states of as many threads each, whose ids are 1 and so on."""
        layout, at, link = self.layout, 1 << 20, BASE + self.layout.interpreters
        for _ in range(count):
            owner, at = at, at + (1 << 14)
            self.words[link], link = owner, owner + layout.interpreter_next
            state_link = owner + layout.threads
            for tid in range(1, threads + 1):
                self.words[state_link], state_link = at, at + layout.thread_next
                self.words[at + layout.thread_interpreter] = owner
                self.words[at + layout.native_thread_id] = tid
                at += 512


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["3.11", "3.12"])
def test_lists_without_end_are_read_to_the_budget_of_a_look(layout):
    target = Target(layout)
    target.interpreters(30, 1000)
    assert target.runtime.plan(1) is None or target.budget.why
    assert target.budget.why == "there are too many"
    assert target.reads <= CAPTURE_NS // READ_NS
    assert target.bytes <= CAPTURE_NS // READ_NS * layout.thread_bytes
    spent = target.reads
    assert target.runtime.plan(2) is None or target.budget.why
    assert target.reads == spent, "nothing more is read in this look"


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["3.11", "3.12"])
def test_program_with_many_threads_does_not_meet_the_budget(layout):
    target = Target(layout)
    target.interpreters(3, 2000)
    for tid in (1, 2000, 5000):
        target.budget.begin()
        assert (target.runtime.plan(tid) is None) == (tid == 5000)
        assert not target.budget.why


def test_many_frames_in_copies_are_read_to_the_budget_of_a_look():
    """Words of a copy lead to a frame at each word, in each of eight states of a thread."""
    layout = layout_of(0x030C01F0)
    target = Target(layout)
    target.interpreters(8, 1)
    assert target.runtime.plan(1) is not None
    frames, size, reads = 1 << 30, 1 << 20, 0
    links = struct.pack(f"<{size // 8}Q", *range(frames, frames + size, 8))
    memory = BytesMemory(frames, links)  # `previous` of each leads to the next word

    class Copies:
        byteorder = "little"

        def read(self, address: int, size: int) -> bytes | None:
            nonlocal reads
            reads += 1
            return memory.read(address, size) if address >= frames else target.words_of(address, size)

        def word(self, address: int) -> int | None:
            data = self.read(address, 8)
            return None if data is None else int.from_bytes(data, "little")

    for at in [*target.words]:
        if at % 512 == layout.thread_interpreter and at > 1 << 20:
            target.words[at - layout.thread_interpreter + layout.thread_frame] = frames
    target.budget.begin()
    native = [Frame(1, frames, frames + 0x800, "context", True)]
    target.runtime.stack(1, Copies(), native)
    assert target.budget.why == "there are too many"
    assert reads <= CAPTURE_NS // COPIED_NS
