"""Lists the asyncio tasks of a thread that runs an event loop: where each is suspended, and what it awaits.

From 3.14 on the interpreter keeps a list of tasks for each thread, and states where.  Before, all tasks are
in a WeakSet of the module `asyncio.tasks`, which the frame of the loop leads to.  Only tasks of the C
implementation are known, which is the usual one.

Source: Modules/_asynciomodule.c, Objects/genobject.c and Lib/asyncio of CPython 3.11 to 3.15.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from sfsample.modules.location import PythonPlace
from sfsample.modules.module_map import ModuleMap
from sfsample.python.chain import PythonFrame
from sfsample.python.names import Names
from sfsample.python.objects import Objects
from sfsample.python.place import Placed

_SECTION = ".AsyncioDebug"
_TABLE = Struct("<13Q")  # _Py_AsyncioModuleDebugOffsets
_NODE, _HEAD = 6, 12  # words of it: asyncio_task_object.task_node, asyncio_thread_state.asyncio_tasks_head
_CORO = {11: 136, 12: 136, 13: 120}  # TaskObj.task_coro, from 3.14 on 128; task_name is behind it
_LOOP = 16  # FutureObj.fut_loop
_GENERATORS = ("coroutine", "generator", "async_generator")
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "_asyncio.FutureIter")  # of what is at 16
_OWNER_GENERATOR = 1
_SET_MASK, _SET_TABLE = 32, 40
_FUNCTION_QUALNAME = 40
_TAGS = 0b11
_MAX_TASKS = 1000
_MAX_DEPTH = 200  # coroutines that await each other
_MAX_SET = 1 << 16  # entries of a set
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
    ("asyncio/streams.py", "StreamReader._wait_for_data"): "data in a stream",
    ("asyncio/taskgroups.py", "TaskGroup.__aexit__"): "the tasks of its TaskGroup",
    ("asyncio/taskgroups.py", "TaskGroup._aexit"): "the tasks of its TaskGroup",
    ("asyncio/tasks.py", "_wait"): "other tasks, in asyncio.wait",
    ("asyncio/tasks.py", "wait_for"): "a task of its own, or a time-out, in asyncio.wait_for",
}


class Task(NamedTuple):
    """A task; `stack` has its coroutines, the innermost first.  Objects are stated by their addresses.

    `awaits`: what it waits for, "" where that is not known; `on`: the objects that it needs, each a task or a
    lock; `entered`: the locks that it is inside an `async with` of.
    """

    address: int
    name: str
    stack: tuple[PythonPlace, ...]
    awaits: str
    on: tuple[int, ...]
    entered: tuple[int, ...]

    @property
    def path(self) -> str:
        """Return its innermost functions: "f <- main"."""
        return " <- ".join(place.function for place in self.stack[:_MAX_PATH])


def find_table(modules: ModuleMap) -> int:
    """Return the address of asyncio's table of offsets; 0: there is none, as before 3.14."""
    for mapping in modules.mappings:
        name = mapping.path.rpartition("/")[2]
        module = modules.find(mapping.start) if mapping.executable and "python" in name else None
        if module is not None:
            for section in module.image.sections:
                if section.name == _SECTION:
                    return module.address(section.vaddr)
    return 0


class TaskReader:
    """Reads the tasks of one process.  `table` is the address of asyncio's offsets, 0: it has none."""

    def __init__(self, objects: Objects, names: Names, table: int) -> None:
        self._objects, self._names = objects, names
        self._table = objects.words(table, 13)
        minor = objects.layout.minor
        self._coro = self._table[5] if self._table else _CORO.get(minor, 128)
        self._frame = 80 if minor == 11 else 72  # gi_iframe

    def tasks(self, states: Sequence[int], loop_frame: PythonFrame | None) -> tuple[Task, ...]:
        """Return the tasks of a thread, by its thread states, and by the frame of `_run_once` of its loop."""
        linked = [task for state in states for task in self._linked(state)]
        found = dict.fromkeys([*linked, *(self._weakly(loop_frame) if loop_frame else ())])
        tasks = map(self._task, filter(self._is_alive, [*found][:_MAX_TASKS]))
        return tuple(sorted(tasks, key=lambda task: (len(task.name), task.name)))

    def _is_alive(self, task: int) -> bool:
        """Whether a task has not ended; the lists of 3.14 and later have no others."""
        at = self._objects.word(task + self._coro) + self._frame - 5  # gi_frame_state: 1 and more have ended
        return self._objects.layout.minor >= 14 or not 1 <= self._objects.word(at) & 0xFF < 0x80

    def _linked(self, state: int) -> Iterator[int]:
        """Yield the tasks of the list of a thread, which is a circle around its head."""
        if not self._table:
            return
        head, seen = state + self._table[_HEAD], set[int]()
        at = self._objects.word(head)
        while at not in (0, head) and at not in seen and len(seen) < _MAX_TASKS:
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
        for at in range(table, table + 16 * count, 16):
            reference = objects.word(at)
            task = objects.word(reference + 16) if reference else 0
            if task and objects.word(task + _LOOP) == loop and objects.type_name(task) == "_asyncio.Task":
                yield task

    def _task(self, address: int) -> Task:
        objects = self._objects
        frames, awaited = self._follow(objects.word(address + self._coro))
        stack = self._names.named(Placed(((0, tuple(frames)),), is_whole=True))
        places = tuple(place for _, run in stack.activations for place in run)
        awaits, on = self._awaits(list(zip(places, stack.frames, strict=True)), awaited)
        entered = tuple(lock for frame in frames for lock in self._entered(frame) if lock not in on)
        return Task(address, self._name(address), places, awaits, on, entered)

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
            code = objects.word(address + layout.executable) & ~_TAGS
            frames.insert(0, PythonFrame(address, code, objects.word(address + layout.instruction)))
            at = next((slot for slot in self._stack(frames[0])[:-3:-1] if slot), 0)
            if objects.type_name(at) in _WRAPPERS:
                at = objects.word(at + 16)
        return frames, at

    def _stack(self, frame: PythonFrame) -> tuple[int, ...]:
        """Return the value stack of a frame that is suspended; empty: it runs."""
        objects, minor = self._objects, self._objects.layout.minor
        top = objects.word(frame.address + 64)
        if minor >= 14:
            top = (top - frame.address - objects.layout.frame_bytes) // 8
        else:
            top &= 0xFFFFFFFF
        slots = objects.slots(frame)
        return slots[objects.variables(frame) : top] if 0 < top <= len(slots) else ()

    def _awaits(
        self, rows: list[tuple[PythonPlace, PythonFrame]], awaited: int
    ) -> tuple[str, tuple[int, ...]]:
        """Return what a task waits for, and the objects that it needs."""
        objects = self._objects
        for place, frame in rows[:1]:
            if place.function == "sleep" and place.file.endswith("/asyncio/tasks.py"):
                return f"{objects.repr(objects.local(frame, 'delay'))} s of asyncio.sleep", ()
            for (file, function), what in _AWAITED.items():
                if place.function == function and place.file.endswith(f"/{file}"):
                    own = objects.local(frame, "self")
                    return what.format(f"{own:#x}"), (own,) if "Lock" in what else ()
        kind = objects.type_name(awaited) if awaited else ""
        if kind == "_asyncio.Task":
            return f"task {self._name(awaited)}", (awaited,)
        if kind == "_GatheringFuture":
            children = objects.items(objects.attribute(awaited, "_children"))[:_MAX_CHILDREN]
            return f"{len(children)} tasks, in asyncio.gather", children
        return (f"{kind} {awaited:#x}" if kind and kind not in _GENERATORS else ""), ()

    def _entered(self, frame: PythonFrame) -> Iterator[int]:
        """Yield what a suspended frame is inside an `async with` of: its stack has the `__aexit__`."""
        objects, before = self._objects, ""
        for slot in filter(None, self._stack(frame)):
            kind = objects.type_name(slot)
            if before.endswith("__aexit__"):  # 3.14: function and self
                yield slot
            before = ""
            if kind == "method" and self._qualname(objects.word(slot + 16)).endswith("__aexit__"):
                yield objects.word(slot + 24)
            elif kind == "function":
                before = self._qualname(slot)

    def _qualname(self, function: int) -> str:
        return self._objects.text(self._objects.word(function + _FUNCTION_QUALNAME)) or ""
