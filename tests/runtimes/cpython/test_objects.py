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
from sfsample.runtimes.cpython.chain import PythonFrame
from sfsample.runtimes.cpython.find import Interpreter
from sfsample.runtimes.cpython.layout import layout_of
from sfsample.runtimes.cpython.objects import Objects
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.tasks import TaskReader
from sfsample.runtimes.cpython.waits import ThreadReader
from tests.runtimes.cpython.test_runtime import BASE, LAYOUTS, SIZE

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
    waiting = reader._tasks.waiting([BASE], stack, lambda: True)
    assert waiting.stacks.total() <= 100
    assert waiting.scale >= 1 or not waiting.stacks
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


def test_first_items_of_a_collection_are_shown_but_not_what_is_in_them():
    world = World()
    number = world.object(b"int", 1 << 3, 5)
    inner = world.object(b"tuple", 1, number)
    assert world.objects.repr(world.object(b"tuple", 2, number, inner)) == "<tuple of 2: 5, <tuple of 1>>"
    assert world.objects.repr(world.object(b"tuple", 9, *[number] * 9)) == "<tuple of 9: 5, 5, 5, 5, 5, ...>"
    long = world.objects.repr(world.object(b"tuple", 5, *[world.string("a" * 50)] * 5))
    assert long == f"<tuple of 5: {(repr('a' * 50) + ', ') * 2}"[:93] + "...>"
    circle = world.object(b"tuple", 1, 0)
    struct.pack_into("<Q", world._data, circle + 24, circle)
    assert world.objects.repr(circle) == "<tuple of 1: <tuple of 1>>"


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


THREAD, FUTEX = 0x7F00_0000_1000, 0x9000  # ident of the thread that holds a lock; word on which others sleep
RLOCK = (FUTEX, THREAD, 1)  # semaphore, owner, count (3.12)
# handle, last owner, count 1 and maximum 1, kind (0: RLock, 1: Lock)
SEM_RLOCK, SEM_LOCK = (FUTEX, THREAD, 1 << 32 | 1, 0), (FUTEX, THREAD, 1 << 32 | 1, 1)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (b"_thread.RLock", RLOCK),
        (b"_multiprocessing.SemLock", SEM_RLOCK),
        (b"_multiprocessing.SemLock", SEM_LOCK),
    ],
)
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_owner_whose_place_has_moved_is_not_named_but_said(kind, fields, shift):
    """A new Python may put a field of eight bytes before the owner; no other thread is named then."""
    world = World()
    lock = world.object(kind, fields[0], *[7] * shift, *fields[1:], 0, 0)
    reader = ThreadReader(Interpreter(None, 0, world.objects.layout), world.objects.read, 0, lambda: False)  # type: ignore[arg-type]
    reader._native_ids = {THREAD: 12}
    code = world.put(bytes(256))
    frame = PythonFrame(world.put(bytes(72) + struct.pack("<Q", lock)), code, code)
    struct.pack_into("<I", world._data, code + 72, 1)  # one variable
    stack = PythonStack(((0, (PythonPlace("work", "a.py", 1, 1),)),), True, (frame,))
    wait = reader.facts(stack, 1, FUTEX).wait
    problems = [text for text in reader.problems if "does not know" in text]
    assert wait is None or wait.owner == (0 if shift else 12)
    assert bool(problems) == bool(shift)


@pytest.mark.parametrize(("shift", "names"), [(0, ["crawler"]), (8, [])])
def test_tasks_whose_place_has_moved_are_not_named_but_said(shift, names):
    world = World()
    coroutine = world.object(b"coroutine", *[0] * 16)
    node = 160  # offsets in a task: name, coroutine, and node of the list of tasks
    task = world.object(b"_asyncio.Task", *[0] * 40)
    for at, value in ((120, world.string("crawler")), (128, coroutine)):
        struct.pack_into("<Q", world._data, task + at + shift, value)
    state = world.put(bytes(64))
    words = [200, 120, 0, 0, 0, 128, node, 0, 0, 0, 0, 0, 16]  # as the table states them
    struct.pack_into("<Q", world._data, state + 16, task + node)
    struct.pack_into("<Q", world._data, task + node, state + 16)
    reader = TaskReader(world.objects, world.put(struct.pack("<13Q", *words)))
    assert [each.name for each in reader.tasks([state], PythonStack((), True))] == names
    assert list(world.objects.odd) == ["asyncio.Task"] * (shift > 0)
