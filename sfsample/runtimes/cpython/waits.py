"""Finds the wait of a Python thread, and the locks that the thread holds, in the objects of its frames.

A thread that waits for a lock sleeps on a futex word of this lock: on the lock's semaphore, or on the word
after a pointer to the lock's mutex (Python/parking_lot.c).  If a function of the standard library waits, the
function's name and its `self` tell the object of the wait.

Source: Modules/_threadmodule.c, _queuemodule.c, _multiprocessing/{multiprocessing.h,semaphore.c} and
Lib/{threading,queue,concurrent/futures,importlib/_bootstrap}.py of CPython 3.11 to 3.15.
"""

from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from sfsample.core.budget import DUMP_NS, Budget
from sfsample.core.memory import ReadMemory, word_in
from sfsample.core.wait_kind import WaitKind
from sfsample.runtimes.cpython.chain import TAGS, PythonFrame
from sfsample.runtimes.cpython.find import Interpreter
from sfsample.runtimes.cpython.objects import SELF, SET_USED, Objects, entered
from sfsample.runtimes.cpython.python_stack import PythonStack, Row, frames_in, is_in, rows_of
from sfsample.runtimes.cpython.tasks import Task, TaskReader
from sfsample.runtimes.cpython.threads import thread_states

_SYNC, _OWNER = 16, 24  # offsets: semaphore or mutex of a lock or queue; owner and count of an RLock
_MIN_IDENT = 1 << 20  # least `Thread.ident`, which is an address
_MAX_COUNT = 1 << 20  # times that a thread may have taken an RLock
_LAST_TAKEN = 24  # offset in a SemLock: thread that took the lock last; count and maximum (ints); kind
_REFERRED = 16  # offset of the object in a weak reference
_LIST = 32  # offset in a SimpleQueue up to 3.12: list of items; then: number of items already taken
_RING = 24  # offset in a SimpleQueue since 3.13: put position, get position, items, room, count
_HANDLE_BYTES = 128  # bytes of the largest ThreadHandle
MAX_QUEUED = 1000  # items of a queue that are read
NO_THREAD = -1  # "thread id" of an owner outside the process: an ended thread, or the owner before a fork
_MAX_USERS = 20  # innermost frames in which a Lock is searched
_MAX_FRAMES = 1000  # frames of a stack whose objects are read

_JOIN_BEFORE_3_13 = "Thread._wait_for_tstate_lock"
# File and function that waits for a Condition -> kind, text, True if servers wait for work in this function.
_WAITING = {
    ("queue.py", "Queue.get"): (WaitKind.QUEUE, "an item in {}, which is empty", True),
    ("queue.py", "Queue.put"): (WaitKind.QUEUE, "room in {}, which is full", False),
    ("queue.py", "Queue.join"): (WaitKind.QUEUE, "task_done for each item of {}", False),
    ("threading.py", "Event.wait"): (WaitKind.EVENT, "{} to be set", True),
    ("threading.py", "Semaphore.acquire"): (WaitKind.SEMAPHORE, "a release of {}", True),
    ("threading.py", "Barrier._wait"): (WaitKind.BARRIER, "the other threads at {}", False),
    ("futures/_base.py", "Future.result"): (WaitKind.FUTURE, "the result of {}", False),
    ("futures/_base.py", "Future.exception"): (WaitKind.FUTURE, "the result of {}", False),
    ("threading.py", "Condition.wait"): (WaitKind.CONDITION, "a notify of {}", True),
}


class PythonWait(NamedTuple):
    """The wait of a thread for an object."""

    kind: WaitKind
    what: str  # text that says what the thread waits for
    address: int  # address of the object
    # Id of the thread that has to act, in the target's pid namespace; 0: unknown.  For a Lock of
    # multiprocessing: the thread that took the Lock last.
    owner: int = 0
    is_usual: bool = False  # True: threads of healthy programs wait like this


class Pool(NamedTuple):
    """An executor of concurrent.futures, as one of its worker threads shows it."""

    queue: int  # address of its queue of calls
    workers: int  # number of its threads
    pending: frozenset[int]  # addresses of the futures whose calls are still queued


class PythonFacts(NamedTuple):
    """The facts that the objects in a thread's frames show."""

    wait: PythonWait | None = None
    runs: tuple[int, ...] = ()  # addresses of the futures whose calls the thread runs
    pool: Pool | None = None  # executor whose worker the thread is
    entered: frozenset[int] = frozenset()  # addresses of the objects of the thread's `with` statements
    locals: tuple[tuple[tuple[str, str], ...], ...] = ()  # names and short texts of the locals of each frame
    tasks: tuple[Task, ...] = ()  # tasks of its event loop
    # addresses of the Locks in its frames; None: not searched, or the thread went on during the search
    uses: frozenset[int] | None = None


class ThreadReader:
    """Reads the facts of the threads of one process in one look; `read` reads the current memory.

    `asyncio` is the address of asyncio's table of offsets; 0: no table.  `should_stop` ends the look.
    """

    def __init__(
        self, interpreter: Interpreter, read: ReadMemory, asyncio: int, should_stop: Callable[[], bool]
    ) -> None:
        self._budget = Budget(DUMP_NS, should_stop)
        self._objects = Objects(interpreter.layout, read, self._budget)
        self._interpreter = interpreter
        self._tasks = TaskReader(self._objects, asyncio)
        self._pending = lru_cache(MAX_QUEUED)(self._read_pending)

    @property
    def problems(self) -> Iterator[str]:
        """Yield sentences about facts that were not read."""
        if why := self._budget.why:
            yield f"Python locks, futures, tasks and local variables of some threads were not read: {why}"
        if odd := self._objects.odd:
            yield (f"sfsample does not know some objects of this Python ({', '.join(odd)}): "
                   "owners and tasks are missing")  # fmt: skip

    def facts(self, stack: PythonStack, native_id: int, futex: int) -> PythonFacts:
        """Return the facts of a thread, without locals; `futex`: futex word of its sleep, or 0."""
        worker = next(frames_in([*chain.from_iterable(rows_of(stack))], "futures/thread.py", "_worker"), None)
        return self.holds(stack, futex)._replace(
            pool=worker and self._pool(worker),
            tasks=self._tasks.tasks(self._states.get(native_id, ()), stack),
        )

    def holds(self, stack: PythonStack, futex: int) -> PythonFacts:
        """Return the wait of a thread, the futures whose calls it runs, and its `with` statements."""
        objects, rows = self._objects, [*chain.from_iterable(rows_of(stack))]
        wait = self._wait(rows, futex) if futex and rows else None
        calls = frames_in(rows, "futures/thread.py", "_WorkItem.run")
        items = (objects.local(call, "self") for call in calls)
        by_hand = bool(rows) and objects.calls(rows[0][1], "acquire")  # True: the frame calls acquire()
        return PythonFacts(
            wait, tuple(objects.attribute(item, "future") for item in items),
            entered=entered(objects, rows[:_MAX_FRAMES], int(by_hand), wait.address if wait else 0),
        )  # fmt: skip

    def wait(self, stack: PythonStack, futex: int) -> PythonFacts:
        """Return only the wait of a thread, which sleeps on the futex word `futex`."""
        rows = [row for run in rows_of(stack) for row in run]
        return PythonFacts(self._wait(rows, futex) if rows else None)

    def name(self, stack: PythonStack) -> str:
        """Return the name of a `threading.Thread`; "": no name (the main thread, for example)."""
        rows = [row for run in rows_of(stack)[-1:] for row in run]
        first = next(frames_in(rows, "threading.py", "Thread._bootstrap_inner"), None)
        name = first and self._objects.attribute(self._objects.local(first, "self"), "_name")
        return (name and self._objects.text(name)) or ""

    def uses(self, stack: PythonStack) -> frozenset[int] | None:
        """Return the Locks that a thread's frames reach: variables, their attributes, and globals.

        A frame reaches the attributes and globals whose names are in its code.  None: the thread went on
        during the reading, or the budget is spent.
        """
        objects, found = self._objects, set[int]()
        frames = stack.frames[:_MAX_USERS]
        for frame in frames:
            variables, names = [*objects.locals(frame).values()], objects.names(frame)
            found.update(map(objects.value, variables))
            found.update(objects.item(objects.globals(frame), name) for name in names)
            found.update(objects.attribute(objects.value(slot), name) for slot in variables for name in names)
        locks = frozenset(address for address in found if objects.type_name(address) == "_thread.lock")
        return locks if all(map(self._is_there, frames)) and not self._budget.why else None

    def locals(self, stack: PythonStack) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Return names and texts of the locals of each frame; (): the frame went on during the reading."""
        frames = stack.frames[:_MAX_FRAMES]
        texts_of_frames = [tuple(self._objects.reprs(frame)) for frame in frames]
        return tuple(texts if self._is_there(frame) else ()
                     for texts, frame in zip(texts_of_frames, frames, strict=True))  # fmt: skip

    def _is_there(self, frame: PythonFrame) -> bool:
        layout = self._interpreter.layout
        data = self._objects.read(frame.address, layout.frame_bytes)
        code = word_in(data, layout.executable) & ~TAGS
        return (code, word_in(data, layout.instruction)) == (frame.code, frame.instruction)

    def _wait(self, rows: list[Row], futex: int) -> PythonWait | None:
        objects, (place, frame) = self._objects, rows[0]
        lock = next((slot for slot in self._candidates(frame) if self._is_slept_on(slot, futex)), 0)
        kind = objects.type_name(lock)
        if kind == "_thread.RLock":
            return PythonWait(WaitKind.RLOCK, f"threading.RLock {lock:#x}", lock, self._owner_of(lock))
        if kind == "_multiprocessing.SemLock":
            is_room = place.function.endswith("Queue.put")  # the lock is the semaphore `Queue._sem`
            return None if is_room else self._semlock(lock)
        if place.file == "<frozen importlib._bootstrap>" and place.function == "_ModuleLock.acquire":
            module = objects.local(frame, "self")
            owner = self._native_ids.get(objects.integer(objects.attribute(module, "owner")) or 0, 0)
            name = objects.text(objects.attribute(module, "name"))
            return PythonWait(WaitKind.RLOCK, f"the import lock of module {name}", module, owner)
        if kind == "_queue.SimpleQueue":
            what = f"an item in queue.SimpleQueue {lock:#x}, which is empty"
            return PythonWait(WaitKind.QUEUE, what, lock, is_usual=True)
        if is_in(place, "threading.py", "_shutdown"):
            return PythonWait(WaitKind.THREAD, "the end of all threads that are not daemons", 0)
        is_handle = kind == "_thread._ThreadHandle"
        if lock and is_in(place, "threading.py", "Thread.join" if is_handle else _JOIN_BEFORE_3_13):
            joined = objects.local(frame, "self")
            owner = objects.integer(objects.attribute(joined, "_native_id")) or 0
            return PythonWait(WaitKind.THREAD, f"the end of Thread {joined:#x}", joined, owner)
        if not lock or is_handle:
            return None
        if is_in(place, "threading.py", "Condition.wait") and objects.local(frame, "waiter") == lock:
            return self._condition(rows)
        return PythonWait(WaitKind.LOCK, f"threading.Lock {lock:#x}", lock)

    def _candidates(self, frame: PythonFrame) -> Iterator[int]:
        """Yield the addresses of the objects whose methods a frame may have called."""
        variables, stack = self._objects.slots(frame)
        for slot in filter(None, variables + stack):
            is_method = self._objects.type_name(slot) == "builtin_function_or_method"
            yield self._objects.word(slot + SELF) if is_method else slot

    def _is_slept_on(self, address: int, futex: int) -> bool:
        kind, sync = self._objects.type_name(address), self._objects.word(address + _SYNC)
        parked = self._objects.word(futex - 8)
        if kind == "_thread._ThreadHandle":
            return sync != 0 and sync <= parked < sync + _HANDLE_BYTES
        is_lock = kind in ("_thread.lock", "_thread.RLock", "_queue.SimpleQueue", "_multiprocessing.SemLock")
        return is_lock and (sync == futex or parked == address + _SYNC)

    def _owner_of(self, lock: int) -> int:
        """Return the thread that holds an RLock; 0: unknown, or the fields of the RLock are impossible."""
        ident, count = self._objects.words(lock + _OWNER, 2) or (0, 0)
        if 0 < ident < _MIN_IDENT or count >= _MAX_COUNT:
            self._objects.odd["RLock"] = None
            return 0
        return self._native_ids.get(ident, NO_THREAD if ident and self._native_ids else 0)

    def _semlock(self, lock: int) -> PythonWait | None:
        """Return the wait for a lock of multiprocessing; None: the SemLock is a semaphore.

        The count is the number of times that this process has taken the lock and not released it.  Only the
        owner may release an RLock.  Any process may release a Lock, so the last taker may no longer hold it.
        """
        last, counts, kind = self._objects.words(lock + _LAST_TAKEN, 3) or (0, 0, 0)
        kind, most, is_held = kind & 0xFFFFFFFF, counts >> 32, 0 < counts & 0xFFFFFFFF < 1 << 31
        is_lock = kind == 1
        if kind > 1 or most == 0 or (kind == 0 and most != 1) or (is_held and last < _MIN_IDENT):
            self._objects.odd["multiprocessing.SemLock"] = None
            return None
        if is_lock and most != 1:
            return None
        owner = self._native_ids.get(last, 0) if is_held else NO_THREAD
        name = f"multiprocessing.{'Lock' if is_lock else 'RLock'} {lock:#x}"
        return PythonWait(WaitKind.LOCK if is_lock else WaitKind.RLOCK, name, lock, owner)

    def _condition(self, rows: list[Row]) -> PythonWait | None:
        """Return the wait of a thread in Condition.wait; the next two callers may show its purpose."""
        for place, frame in (*rows[1:3], rows[0]):
            for where, (kind, what, is_usual) in _WAITING.items():
                if is_in(place, *where):
                    self_at = self._objects.local(frame, "self")
                    name = f"{self._objects.type_name(self_at)} {self_at:#x}"
                    if kind is WaitKind.BARRIER:
                        arrived, parties = (self._objects.integer(self._objects.attribute(self_at, count))
                                            for count in ("_count", "_parties"))  # fmt: skip
                        name += f": {arrived} of {parties} have arrived" * bool(arrived and parties)
                    return PythonWait(kind, what.format(name), self_at, is_usual=is_usual)
        return None

    def _pool(self, worker: PythonFrame) -> Pool:
        objects = self._objects
        queue = objects.local(worker, "work_queue")
        executor = objects.word(objects.local(worker, "executor_reference") + _REFERRED)
        workers = objects.word(objects.attribute(executor, "_threads") + SET_USED)
        return Pool(queue, workers, self._pending(queue))

    def _read_pending(self, queue: int) -> frozenset[int]:
        """Return the addresses of the futures of the next calls in an executor's queue."""
        objects, items = self._objects, tuple[int, ...]()
        if objects.type_name(queue) != "_queue.SimpleQueue":
            return frozenset()
        if self._interpreter.layout.minor < 13:
            items = objects.items(objects.word(queue + _LIST))[objects.word(queue + _LIST + 8) :]
        elif ring := objects.words(queue + _RING, 5):
            _, first, start, room, count = ring
            places = range(first, first + min(count, MAX_QUEUED)) if 0 < room < 1 << 32 else ()
            items = tuple(objects.word(start + place % room * 8) for place in places)
        return frozenset(objects.attribute(item, "future") for item in items if item)

    @cached_property
    def _native_ids(self) -> dict[int, int]:
        """Thread ids by Python's `Thread.ident`, the field before `native_thread_id`."""
        at = self._interpreter.layout.native_thread_id - 8
        by_tid = self._states.items()
        return {self._objects.word(state + at): tid for tid, states in by_tid for state in states if tid > 0}

    @cached_property
    def _states(self) -> dict[int, list[int]]:
        return thread_states(self._interpreter, self._objects.read)
