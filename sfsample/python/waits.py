"""Finds what a thread in Python waits for, and what it holds, from the objects that its frames have.

A lock is believed only if the memory that the thread sleeps on is that of the lock: the futex word of its
semaphore, or the address that the interpreter notes in front of it (Python/parking_lot.c).  What a function
of the standard library waits for is taken from its name and its `self`.

Source: Modules/_threadmodule.c, Modules/_queuemodule.c and Lib/{threading,queue,concurrent/futures}.py of
CPython 3.11 to 3.15.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from sfsample.modules.location import PythonPlace
from sfsample.python.chain import PythonFrame
from sfsample.python.find import Interpreter, ReadMemory
from sfsample.python.layout import word_in
from sfsample.python.names import Names, PythonStack
from sfsample.python.objects import Objects
from sfsample.python.tasks import Task, TaskReader
from sfsample.python.threads import thread_states

_TAGS = 0b11  # of the pointer to a code object
_SYNC, _OWNER = 16, 24  # in a lock or queue: its semaphore or mutex; in an RLock: the thread that holds it
_RING = 24  # in a SimpleQueue since 3.13: where the next item comes, which is next, the items, and two sizes
_HANDLE_BYTES = 128  # of a ThreadHandle, at most
_METHOD_SELF = 24  # in a builtin_function_or_method
_MAX_JOINT_BYTES = 1 << 15  # of frames, that are read at once
_MAX_QUEUED = 1000
_MAX_RUNNING = 100  # calls of executors inside each other
_MAX_LOCAL_FRAMES = 1000  # of a stack, whose locals are read

# by file and function that waits for a Condition: kind, what for, whether that is how servers wait for work
_WAITING = {
    ("queue.py", "Queue.get"): ("queue", "an item in {}, which is empty", True),
    ("queue.py", "Queue.put"): ("queue", "room in {}, which is full", False),
    ("queue.py", "Queue.join"): ("queue", "task_done for each item of {}", False),
    ("threading.py", "Event.wait"): ("event", "{} to be set", True),
    ("threading.py", "Semaphore.acquire"): ("semaphore", "a release of {}", True),
    ("threading.py", "Barrier._wait"): ("barrier", "the other threads at {}", False),
    ("futures/_base.py", "Future.result"): ("future", "the result of {}", False),
    ("futures/_base.py", "Future.exception"): ("future", "the result of {}", False),
}
_JOIN_BEFORE_3_13 = "Thread._wait_for_tstate_lock"
_NOTIFIED = ("condition", "a notify of {}", True)


class PythonWait(NamedTuple):
    """What a thread waits for; `owner` is the id of the thread that has to act, in the target's namespace.

    0: it is not known.  `address` is that of the object.
    """

    kind: str
    what: str
    address: int
    owner: int = 0
    idle: bool = False


class PythonFacts(NamedTuple):
    """What the objects of a thread's frames say.  Objects are stated by their addresses.

    `runs`: the futures whose calls it runs; `pool`: the queue of the executor whose worker it is, and
    `pending` the futures of the calls in it; `entered`: what it is inside a `with` of; `locals` has for each
    frame the names and short texts.
    """

    wait: PythonWait | None = None
    runs: tuple[int, ...] = ()
    pool: int = 0
    pending: frozenset[int] = frozenset()
    entered: frozenset[int] = frozenset()
    locals: tuple[tuple[tuple[str, str], ...], ...] = ()
    tasks: tuple[Task, ...] = ()  # of the event loop that it runs


_Row = tuple[PythonPlace, PythonFrame]


class ThreadReader:
    """Reads the facts of threads of one process, at one look.  `read` reads its memory now.

    `asyncio` is the address of the table of asyncio; 0: it has none.
    """

    def __init__(self, interpreter: Interpreter, read: ReadMemory, asyncio: int) -> None:
        self.objects = Objects(interpreter.layout, read)
        self._interpreter, self._read = interpreter, read
        names = Names(interpreter.layout, lambda pieces: [read(*piece) for piece in pieces])
        self._tasks = TaskReader(self.objects, names, asyncio)

    def facts(self, stack: PythonStack, native_id: int, futex: int) -> PythonFacts:
        """Return the facts of a thread that sleeps on a futex word (0: on none); its locals are not read."""
        rows = _rows(stack)
        wait = self._wait(rows, futex) if futex and rows else None
        pool = next((self.objects.local(frame, "work_queue") for place, frame in rows
                     if _is(place, "futures/thread.py", "_worker")), 0)  # fmt: skip
        return PythonFacts(
            wait, tuple(self._runs(rows)), pool,
            frozenset(self._pending(pool)) if pool else frozenset(),
            frozenset(self._entered(rows[:_MAX_LOCAL_FRAMES], wait.address if wait else 0)),
            tasks=self._tasks_of(rows, native_id),
        )  # fmt: skip

    def _entered(self, rows: list[_Row], waited: int) -> set[int]:
        """Return the locks that a thread is inside a `with` of, but for those that it has released there."""
        objects = self.objects
        found = {lock for _, frame in rows for lock in objects.entered(frame)}
        if rows and waited in objects.entered(rows[0][1]):  # release, and acquire again
            found.discard(waited)
        waits = (frame for place, frame in rows if _is(place, "threading.py", "Condition.wait"))
        return found - {objects.attribute(objects.local(frame, "self"), "_lock") for frame in waits}

    def _tasks_of(self, rows: list[_Row], native_id: int) -> tuple[Task, ...]:
        loop = next((frame for place, frame in rows
                     if _is(place, "asyncio/base_events.py", "BaseEventLoop._run_once")), None)  # fmt: skip
        return self._tasks.tasks(self._states.get(native_id, ()), loop)

    def locals(self, stack: PythonStack) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Return the locals of each frame; those of a frame that has gone on meanwhile are empty."""
        found = [tuple(self.objects.reprs(frame)) for frame in stack.frames[:_MAX_LOCAL_FRAMES]]
        return tuple(one if self._is_there(frame) else ()
                     for one, frame in zip(found, stack.frames, strict=False))  # fmt: skip

    def is_there(self, stack: PythonStack) -> bool:
        """Whether each frame is where it was when the thread was captured."""
        size, frames = self._interpreter.layout.frame_bytes, stack.frames
        start = min((frame.address for frame in frames), default=0)
        length = max((frame.address for frame in frames), default=0) + size - start
        joint = self._read(start, length) if length <= _MAX_JOINT_BYTES else None  # most lie in one chunk
        if joint is None:
            return all(map(self._is_there, frames))
        return all(self._is_in(frame, joint[frame.address - start :][:size]) for frame in frames)

    def _is_there(self, frame: PythonFrame) -> bool:
        return self._is_in(frame, self._read(frame.address, self._interpreter.layout.frame_bytes))

    def _is_in(self, frame: PythonFrame, data: bytes | None) -> bool:
        layout = self._interpreter.layout
        code = word_in(data, layout.executable) & ~_TAGS
        return (code, word_in(data, layout.instruction)) == (frame.code, frame.instruction)

    def _wait(self, rows: list[_Row], futex: int) -> PythonWait | None:
        place, frame = rows[0]
        objects = self.objects
        lock = next((slot for slot in self._candidates(frame) if self._is_slept_on(slot, futex)), 0)
        kind = objects.type_name(lock) if lock else ""
        if kind == "_thread.RLock":
            owner = self._native_ids.get(objects.word(lock + _OWNER), 0)
            return PythonWait("rlock", f"threading.RLock {lock:#x}", lock, owner)
        if kind == "_queue.SimpleQueue":
            what = f"an item in queue.SimpleQueue {lock:#x}, which is empty"
            return PythonWait("queue", what, lock, idle=True)
        if _is(place, "threading.py", "_shutdown"):
            return PythonWait("thread", "the end of all threads that are not daemons", 0)
        is_handle = kind == "_thread._ThreadHandle"
        if lock and _is(place, "threading.py", "Thread.join" if is_handle else _JOIN_BEFORE_3_13):
            joined = objects.local(frame, "self")
            owner = self._native_id(joined)
            return PythonWait("thread", "the end of" if owner else f"Thread {joined:#x}", joined, owner)
        if not lock or is_handle:
            return None
        if _is(place, "threading.py", "Condition.wait") and objects.local(frame, "waiter") == lock:
            return self._condition(rows)
        return PythonWait("lock", f"threading.Lock {lock:#x}", lock)

    def _candidates(self, frame: PythonFrame) -> Iterator[int]:
        """Yield the objects that a frame may have called a method of."""
        for slot in filter(None, self.objects.slots(frame)):
            is_method = self.objects.type_name(slot) == "builtin_function_or_method"
            yield self.objects.word(slot + _METHOD_SELF) if is_method else slot

    def _is_slept_on(self, address: int, futex: int) -> bool:
        objects = self.objects
        kind, own = objects.type_name(address), objects.word(address + _SYNC)
        parked = objects.word(futex - 8)
        if kind == "_thread._ThreadHandle":
            return own != 0 and own <= parked < own + _HANDLE_BYTES
        is_lock = kind in ("_thread.lock", "_thread.RLock", "_queue.SimpleQueue")
        return is_lock and (own == futex or parked == address + _SYNC)

    def _condition(self, rows: list[_Row]) -> PythonWait:
        """Return what a thread in Condition.wait waits for, as one of the next callers says."""
        for place, frame in rows[1:3]:
            for where, (kind, what, idle) in _WAITING.items():
                if _is(place, *where):
                    return self._notified(frame, kind, what, idle=idle)
        kind, what, idle = _NOTIFIED
        return self._notified(rows[0][1], kind, what, idle=idle)

    def _notified(self, frame: PythonFrame, kind: str, what: str, *, idle: bool) -> PythonWait:
        own = self.objects.local(frame, "self")
        return PythonWait(kind, what.format(f"{self.objects.type_name(own)} {own:#x}"), own, idle=idle)

    def _runs(self, rows: list[_Row]) -> Iterator[int]:
        """Yield the futures whose calls a worker runs."""
        frames = [frame for place, frame in rows if _is(place, "futures/thread.py", "_WorkItem.run")]
        for frame in frames[:_MAX_RUNNING]:
            yield self.objects.attribute(self.objects.local(frame, "self"), "future")

    def _pending(self, queue: int) -> Iterator[int]:
        """Yield the futures of the calls that no worker of an executor has begun yet."""
        objects, items = self.objects, tuple[int, ...]()
        if objects.type_name(queue) != "_queue.SimpleQueue":
            return
        if self._interpreter.layout.minor < 13:
            items = objects.items(objects.word(queue + 32))[objects.word(queue + 40) :]
        elif ring := objects.words(queue + _RING, 5):
            _, first, start, room, count = ring
            places = range(first, first + min(count, _MAX_QUEUED)) if 0 < room < 1 << 32 else ()
            items = tuple(objects.word(start + place % room * 8) for place in places)
        yield from (objects.attribute(item, "future") for item in items if item)

    def _native_id(self, thread: int) -> int:
        value = self.objects.attribute(thread, "_native_id")
        return (self.objects.integer(value) if value else None) or 0

    @cached_property
    def _native_ids(self) -> dict[int, int]:
        """The thread ids by what the threads are to Python (`ident`), which is in front of them."""
        at = self._interpreter.layout.native_thread_id - 8
        states = self._states.items()
        return {self.objects.word(state + at): tid for tid, own in states for state in own if tid}

    @cached_property
    def _states(self) -> dict[int, list[int]]:
        return thread_states(self._interpreter, self._read)


def _rows(stack: PythonStack) -> list[_Row]:
    places = [place for _, run in stack.activations for place in run]
    return list(zip(places, stack.frames, strict=True)) if len(places) == len(stack.frames) else []


def _is(place: PythonPlace, file: str, function: str) -> bool:
    return place.function == function and place.file.endswith(f"/{file}")
