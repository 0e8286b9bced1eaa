"""Plans, names and checks of one process; whatever its memory holds, nothing is endless or raises."""

import ctypes
import os
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.stack import Frame
from sfsample.process.beside import Beside, Room
from sfsample.process.vm import CopyBuffer
from sfsample.python.find import Interpreter
from sfsample.python.layout import layout_of
from sfsample.python.runtime import PythonRuntime
from tests.python.test_layout import table

SIZE = 0x4000
AREA = (ctypes.c_char * SIZE)()
BASE = ctypes.addressof(AREA)  # of this process, which is read as if it were a target
OFFSETS = {
    "interpreter__next": 8,
    "interpreter__threads_head": 16,
    "thread__next": 8,
    "thread__interp": 16,
    "thread__native_thread_id": 24,
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
    memory, pid = BytesMemory(BASE, bytes(AREA)), os.getpid()
    tid = words[(layout.native_thread_id + 0x100) // 8] or 1
    runtime = PythonRuntime(Interpreter(None, BASE, layout), memory.read,  # type: ignore[arg-type]
                            lambda pieces: [memory.read(*piece) for piece in pieces])  # fmt: skip
    stack = BytesMemory(BASE, bytes(AREA[:0x800]))
    for thread in (tid, 1, 7, tid):
        plan = runtime.plan(thread)
        copied: Memory = memory
        if plan is not None:
            assert sum(map(len, plan.groups)) < 200
            beside = Beside(plan, Room(), "little")
            beside.fill(pid, CopyBuffer(0x800), BASE, 0x800)
            beside.follow(stack, 1 << 63)
            if (joint := beside.result()) is not None:
                copied = PiecewiseMemory(stack, joint)
        found = runtime.stack(thread, copied, FRAMES)
        assert found is None or all(index < len(FRAMES) for index, _ in found.activations)
