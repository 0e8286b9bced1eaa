"""Objects, waits and tasks are read from whatever memory: nothing is endless, and nothing raises."""

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.budget import DUMP_NS, READ_NS, Budget
from sfsample.core.memory import BytesMemory
from sfsample.modules.location import PythonPlace
from sfsample.python.chain import PythonFrame
from sfsample.python.find import Interpreter
from sfsample.python.layout import layout_of
from sfsample.python.names import PythonStack
from sfsample.python.objects import Objects
from sfsample.python.waits import ThreadReader
from tests.python.test_runtime import BASE, LAYOUTS, SIZE

FUNCTIONS = [
    ("/lib/threading.py", "Condition.wait"), ("/lib/threading.py", "Thread.join"),
    ("/lib/threading.py", "Thread._wait_for_tstate_lock"), ("/lib/queue.py", "Queue.get"),
    ("/lib/concurrent/futures/_base.py", "Future.result"),
    ("/lib/concurrent/futures/thread.py", "_WorkItem.run"), ("/lib/concurrent/futures/thread.py", "_worker"),
    ("/lib/asyncio/base_events.py", "BaseEventLoop._run_once"),
]  # fmt: skip
NAMES = (b"_thread.RLock", b"_thread.lock", b"_queue.SimpleQueue", b"_asyncio.Task", b"_asyncio.FutureIter",
         b"builtin_function_or_method", b"coroutine", b"str", b"int", b"list", b"tuple", b"dict", b"set",
         b"bytes", b"cell", b"float", b"method", b"_thread._ThreadHandle")  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), share=st.floats(0.3, 1))
def test_hostile_memory_is_read_within_bounds(layout, seed, share):
    chance = random.Random(seed)  # noqa: S311
    odd = [0, 1, 7, 0xFF, 1 << 62, (1 << 63) + 8, (1 << 64) - 8, (1 << 64) - 1]
    words = [BASE + 8 * chance.randrange(SIZE // 8) if chance.random() < share else chance.choice(odd)
             for _ in range(SIZE // 8)]  # fmt: skip
    data = bytearray(struct.pack(f"<{len(words)}Q", *words))
    for _ in range(200):  # names, which pointers may lead to
        name, at = chance.choice(NAMES) + b"\0", 8 * chance.randrange(SIZE // 8 - 4)
        data[at : at + len(name)] = name
    memory = BytesMemory(BASE, bytes(data))
    reads = 0

    def read(address: int, size: int) -> bytes | None:
        nonlocal reads
        reads += 1
        return memory.read(address, size)

    at = [BASE + 8 * chance.randrange(SIZE // 16) for _ in range(len(FUNCTIONS) + 1)]
    frames = [PythonFrame(frame, code, BASE) for frame, code in pairwise(at)]
    order = chance.sample(FUNCTIONS, len(FUNCTIONS))
    places = [PythonPlace(function, file, 1, 1) for file, function in order]
    stack = PythonStack(((0, tuple(places)),), True, tuple(frames))
    reader = ThreadReader(Interpreter(None, BASE, layout), read, BASE + 8, lambda: False)  # type: ignore[arg-type]
    facts = reader.facts(stack, 1, BASE + 8 * chance.randrange(SIZE // 8))
    shown = reader.locals(stack)
    assert len(facts.tasks) <= 12_000
    assert all(len(text) < 500 for frame in shown for _, text in frame)
    assert reads <= (DUMP_NS + DUMP_NS // 2) // READ_NS


class World:
    """Memory of a 3.12 process that a test writes objects into."""

    def __init__(self) -> None:
        self._data = bytearray(0x10000)
        self._end = 0x100
        self.objects = Objects(
            layout_of(0x030C01F0), lambda at, size: BytesMemory(0, bytes(self._data)).read(at, size),
            Budget(DUMP_NS),
        )  # fmt: skip

    def put(self, data: bytes) -> int:
        at, self._end = self._end, self._end + (len(data) + 15) // 16 * 16
        self._data[at : at + len(data)] = data
        return at

    def type(self, name: bytes, flags: int = 0) -> int:
        text = self.put(name + b"\0")
        return self.put(
            struct.pack("<QQQQ", 1, 0, 0, text).ljust(168, b"\0") + struct.pack("<Q", flags) + bytes(800)
        )

    def object(self, name: bytes, *fields: int) -> int:
        return self.put(struct.pack(f"<QQ{len(fields)}Q", 1, self.type(name), *fields))

    def string(self, text: str) -> int:
        return self.put(
            struct.pack("<QQQQII", 1, self.type(b"str"), len(text), 0, 1 << 2 | 0b11 << 5, 0) + text.encode()
        )


def test_numbers_have_their_sign_and_size():
    world = World()
    assert world.objects.integer(world.object(b"int", 1 << 3, 5)) == 5
    assert world.objects.integer(world.object(b"int", 1 << 3 | 2, 5)) == -5
    assert world.objects.integer(world.object(b"int", 1)) == 0
    assert world.objects.integer(world.object(b"int", 1000 << 3, 5)) is None
    assert world.objects.repr(world.object(b"int", 1000 << 3, 5)) == "<int>"


def test_long_text_is_cut():
    world = World()
    assert world.objects.repr(world.string("a" * 81)) == f"{'a' * 80!r}..."
    assert world.objects.repr(world.string("a" * 80)) == repr("a" * 80)


def test_texts_of_a_type_that_only_looks_simple_are_not_read():
    world = World()
    assert world.objects.repr(world.object(b"Secret", 1 << 3, 5)) == "<Secret>"
    assert world.objects.integer(world.object(b"Secret", 1 << 3, 5)) is None


def test_nothing_more_is_read_once_sfsample_is_asked_to_end():
    reads = 0

    def read(_address: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return bytes(size)

    frames = tuple(PythonFrame(BASE + 8 * at, BASE, BASE) for at in range(len(FUNCTIONS)))
    places = tuple(PythonPlace(function, file, 1, 1) for file, function in FUNCTIONS)
    stack = PythonStack(((0, places),), True, frames)
    interpreter = Interpreter(None, BASE, LAYOUTS[1])  # type: ignore[arg-type]
    reader = ThreadReader(interpreter, read, BASE + 8, lambda: reads >= 5)
    facts = reader.facts(stack, 1, BASE)
    reader.locals(stack)
    assert reads == 5
    assert facts.tasks == ()
    assert {text.rpartition(": ")[2] for text in reader.problems} == {"sfsample was asked to end"}
