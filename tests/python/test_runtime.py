"""Plans, names and checks of one process; whatever its memory holds, nothing is endless or raises."""

import random
import struct
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory
from sfsample.core.stack import Frame
from sfsample.python.find import Interpreter
from sfsample.python.layout import layout_of
from sfsample.python.runtime import PythonRuntime
from tests.python.test_layout import table

BASE, SIZE = 0x10000, 0x4000
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
    words = [BASE + 8 * chance.randrange(SIZE // 8) if chance.random() < share else chance.randrange(1 << 16)
             for _ in range(SIZE // 8)]  # fmt: skip
    memory = BytesMemory(BASE, struct.pack(f"<{len(words)}Q", *words))
    tid = words[(layout.native_thread_id + 0x100) // 8] or 1
    runtime = PythonRuntime(Interpreter(None, BASE, layout), memory.read,  # type: ignore[arg-type]
                            lambda pieces: [memory.read(*piece) for piece in pieces])  # fmt: skip
    for thread in (tid, 1, 7):
        plan = runtime.plan(thread)
        if plan is not None:
            assert sum(map(len, plan.groups)) < 200
            assert len([*islice(plan.wanted(memory, None), 1000)]) < 1000
        stack = runtime.stack(thread, memory, FRAMES)
        assert stack is None or all(index < len(FRAMES) for index, _ in stack.activations)
