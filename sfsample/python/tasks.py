"""Lists the asyncio tasks of a thread that runs an event loop: where each is suspended, and what it awaits.

From 3.14 on the interpreter keeps a list of tasks for each thread, and states where.  Before, all tasks are
in a WeakSet of the module `asyncio.tasks`, which the frame of the loop leads to.  Only tasks of the C
implementation are known, which is the usual one.  An asyncio.Lock notes no owner: the one task that is inside
an `async with` of it holds it.

Source: Modules/_asynciomodule.c, Objects/genobject.c and Lib/asyncio of CPython 3.11 to 3.15.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from sfsample.modules.location import PythonPlace
from sfsample.modules.module_map import ModuleMap
from sfsample.python.chain import TAGS, PythonFrame
from sfsample.python.names import Names
from sfsample.python.objects import Objects
from sfsample.python.place import Placed
from sfsample.python.rows import Row, entered, frames_in, is_in, rows_of

_SECTION = ".AsyncioDebug"
_TABLE_WORDS = 13  # of _Py_AsyncioModuleDebugOffsets
_CORO_AT, _NODE, _HEAD = 5, 6, 12  # words of it: task_coro, task_node, asyncio_tasks_head of a thread
_CORO = {11: 136, 12: 136, 13: 120}  # TaskObj.task_coro, from 3.14 on 128; task_name is behind it
_LOOP = 16  # FutureObj.fut_loop
_AWAITABLE = 16  # in a wrapper: what it wraps; in a weak reference: what it refers to
_GENERATORS = ("coroutine", "generator", "async_generator")
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "_asyncio.FutureIter")
_OWNER_GENERATOR = 1
_SET_MASK, _SET_TABLE = 32, 40
_ACQUIRING = 3  # innermost functions: Lock.acquire, __aenter__, and the one that has the `async with`
_MAX_TASKS = 12_000  # of a thread: as many as the budget of a look is enough for
_MAX_DEPTH = 200  # coroutines that await each other
_MAX_SET = 1 << 20  # entries of a set
_MAX_CHILDREN = 100
_MAX_PATH = 3  # functions

# by file and function of asyncio: what the task waits for, {} is its `self`
_AWAITED = {
    ("asyncio/locks.py", "Lock.acquire"): "asyncio.Lock {}",
    ("asyncio/locks.py", "Event.wait"): "asyncio.Event {} to be set",
    ("asyncio/locks.py", "Condition.wait"): "a notify of asyncio.Condition {}",
    ("asyncio/locks.py", "Semaphore.acquire"): "a release of asyncio.Semaphore {}",
    ("asyncio/queues.py", "Queue.get"): "an item in asyncio.Queue {}, which is empty",
    ("asyncio/queues.py", "Queue.put"): "room in asyncio.Queue {}, which is full",
    ("asyncio/queues.py", "Queue.join"): "task_done for each item of asyncio.Queue {}",
}


class Task(NamedTuple):
    """A task; `stack` has its coroutines, the innermost first.  Objects are stated by their addresses.

    `awaits`: what it waits for, "" where that is not known; `on`: the tasks that it needs, or a lock of which
    no holder is known; `held_by`: the name of the task that holds the lock.
    """

    address: int
    name: str
    stack: tuple[PythonPlace, ...]
    awaits: str
    on: tuple[int, ...]
    held_by: str = ""

    @property
    def path(self) -> str:
        """Return its innermost functions: "f <- main"."""
        return " <- ".join(place.function for place in self.stack[:_MAX_PATH])


def find_table(modules: ModuleMap) -> int:
    """Return the address of asyncio's table of offsets; 0: there is none, as before 3.14."""
    for mapping in modules.mappings:
        name = mapping.path.rpartition("/")[2]
        module = modules.find(mapping.start) if mapping.executable and "python" in name else None
        section = module and module.image.section(_SECTION)
        if module and section:
            return module.address(section.vaddr)
    return 0


class TaskReader:
    """Reads the tasks of one process.  `table` is the address of asyncio's offsets, 0: it has none."""

    def __init__(self, objects: Objects, table: int) -> None:
        self._objects = objects
        read = objects.read
        self._names = Names(objects.layout, lambda pieces: [read(*piece) for piece in pieces])
        self._table = objects.words(table, _TABLE_WORDS) if table else ()
        minor = objects.layout.minor
        self._coro = self._table[_CORO_AT] if self._table else _CORO.get(minor, 128)
        self._frame = 80 if minor == 11 else 72  # gi_iframe

    def tasks(self, states: Sequence[int], loop_frame: PythonFrame | None) -> tuple[Task, ...]:
        """Return the tasks of a thread, by its thread states, and by the frame of `_run_once` of its loop."""
        found = chain(*map(self._linked, states), self._weakly(loop_frame) if loop_frame else ())
        alive = [*dict.fromkeys(islice(filter(self._is_alive, found), _MAX_TASKS))]
        chains = [self._follow(self._objects.word(task + self._coro)) for task in alive]
        placed = Placed(tuple((at, tuple(frames)) for at, (frames, _) in enumerate(chains)), is_whole=True)
        rows = rows_of(self._names.named(placed))
        needs = [self._needs(run, awaited) for run, (_, awaited) in zip(rows, chains, strict=True)]
        holders: dict[int, list[int]] = {}
        for task, run, (_, on) in zip(alive, rows, needs, strict=True):
            for lock in entered(self._objects, run, _ACQUIRING, on[0] if on else 0):
                holders.setdefault(lock, []).append(task)
        tasks = [self._task(*each, holders) for each in zip(alive, rows, needs, strict=True)]
        return tuple(sorted(tasks, key=lambda task: (len(task.name), task.name)))

    def _task(
        self, address: int, rows: list[Row], needs: tuple[str, tuple[int, ...]], holders: dict[int, list[int]]
    ) -> Task:
        awaits, on = needs
        [holder] = held if len(held := holders.get(on[0], []) if on else []) == 1 else [0]
        places = tuple(place for place, _ in rows)
        held_by = self._name(holder) if holder else ""
        return Task(address, self._name(address), places, awaits, (holder,) if holder else on, held_by)

    def _is_alive(self, task: int) -> bool:
        """Whether a task has not ended; the lists of 3.14 and later have no others."""
        at = self._objects.word(task + self._coro) + self._frame - 5  # gi_frame_state: 1 and more have ended
        return self._objects.layout.minor >= 14 or not 1 <= self._objects.word(at) & 0xFF < 0x80

    def _linked(self, state: int) -> Iterator[int]:
        """Yield the tasks of the list of a thread, which is a circle around its head."""
        if not self._table:
            return
        head, seen = state + self._table[_HEAD], {0}
        at = self._objects.word(head)
        while at != head and at not in seen:
            seen.add(at)
            yield at - self._table[_NODE]
            at = self._objects.word(at)

    def _weakly(self, loop_frame: PythonFrame) -> Iterator[int]:
        """Yield the tasks of a loop from the WeakSet in the module."""
        objects, minor = self._objects, self._objects.layout.minor
        loop = objects.local(loop_frame, "self")
        frame_globals = objects.word(loop_frame.address + (8 if minor == 11 else 24))
        module = objects.item(frame_globals, "tasks")
        name = "_all_tasks" if minor == 11 else "_scheduled_tasks"
        data = objects.attribute(objects.attribute(module, name), "data")
        count = objects.word(data + _SET_MASK) + 1
        if objects.type_name(data) != "set" or count > _MAX_SET:
            return
        table = objects.word(data + _SET_TABLE)
        for reference in map(objects.word, range(table, table + 16 * count, 16)):
            task = objects.word(reference + _AWAITABLE) if reference else 0
            if task and objects.word(task + _LOOP) == loop and objects.type_name(task) == "_asyncio.Task":
                yield task

    def _name(self, address: int) -> str:
        name = self._objects.word(address + self._coro + 8)
        number = self._objects.integer(name)
        return f"Task-{number}" if number is not None else self._objects.text(name) or f"{address:#x}"

    def _follow(self, at: int) -> tuple[list[PythonFrame], int]:
        """Return the frames of the coroutines that await each other, innermost first, and what it awaits."""
        objects, layout, frames = self._objects, self._objects.layout, list[PythonFrame]()
        while len(frames) < _MAX_DEPTH and objects.type_name(at) in _GENERATORS:
            address = at + self._frame
            if objects.word(address + layout.owner) & 0xFF != _OWNER_GENERATOR:
                break
            code = objects.word(address + layout.executable) & ~TAGS
            frames.insert(0, PythonFrame(address, code, objects.word(address + layout.instruction)))
            at = next((slot for slot in self._top(frames[0]) if slot), 0)
            if objects.type_name(at) in _WRAPPERS:
                at = objects.word(at + _AWAITABLE)
        return frames, at

    def _top(self, frame: PythonFrame) -> tuple[int, ...]:
        """Return the uppermost entries of the value stack of a suspended frame; none: it runs."""
        objects, minor = self._objects, self._objects.layout.minor
        variables, stack = objects.slots(frame)
        top = objects.word(frame.address + 64)
        if minor >= 14:
            top = (top - frame.address - objects.layout.frame_bytes) // 8
        count = (top & 0xFFFFFFFF) - len(variables)
        return stack[:count][:-3:-1] if 0 < count <= len(stack) else ()

    def _needs(self, rows: list[Row], awaited: int) -> tuple[str, tuple[int, ...]]:
        """Return what a task waits for, and the lock or the tasks that it needs."""
        objects = self._objects
        for frame in frames_in(rows[:1], "asyncio/tasks.py", "sleep"):
            return f"{objects.repr(objects.local(frame, 'delay'))} s of asyncio.sleep", ()
        for place, frame in rows[:1]:
            for where, what in _AWAITED.items():
                if is_in(place, *where):
                    own = objects.local(frame, "self")
                    return what.format(f"{own:#x}"), (own,) if "Lock" in what else ()
        kind = objects.type_name(awaited)
        if kind == "_asyncio.Task":
            return f"task {self._name(awaited)}", (awaited,)
        if kind == "_GatheringFuture":
            children = objects.items(objects.attribute(awaited, "_children"))[:_MAX_CHILDREN]
            return f"{len(children)} tasks, in asyncio.gather", children
        if rows and "/asyncio/" in rows[0][0].file:
            return f"{rows[0][0].function} of asyncio", ()
        return (f"{kind} {awaited:#x}" if kind and kind not in _GENERATORS else ""), ()
