"""Lists the asyncio tasks of a thread that runs an event loop, with their coroutines and their waits.

From 3.14 on the interpreter keeps a list of tasks for each thread; `asyncio` has a table of offsets.  Before
3.14 all tasks are in a WeakSet of the module `asyncio.tasks`; the frame of the loop leads to this module.
sfsample lists only tasks of the C implementation, which is the default.  An asyncio.Lock does not note its
owner.  If only one task is inside an `async with` of the Lock, this task is the owner.

Source: Modules/_asynciomodule.c, Objects/genobject.c and Lib/asyncio of CPython 3.11 to 3.15.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from random import Random
from typing import NamedTuple

from sfsample.core.budget import TASKS_PER_LOOK
from sfsample.core.wait_kind import WaitClass
from sfsample.modules.location import Location, PythonPlace, WaitPlace, python_location
from sfsample.modules.module_map import ModuleMap
from sfsample.runtimes.cpython.chain import OWNER_GENERATOR, TAGS, PythonFrame
from sfsample.runtimes.cpython.objects import Objects, entered
from sfsample.runtimes.cpython.place import Placed
from sfsample.runtimes.cpython.python_stack import Names, PythonStack, Row, frames_in, is_in, rows_of

_SECTION = ".AsyncioDebug"
_TABLE_WORDS = 13  # words of _Py_AsyncioModuleDebugOffsets
# Indexes of words: task_name, task_coro, task_node, asyncio_tasks_head of a thread.
_NAME_AT, _CORO_AT, _NODE, _HEAD = 1, 5, 6, 12
_CORO = {11: 136, 12: 136, 13: 120}  # offset of TaskObj.task_coro by minor version; from 3.14 on 128
_LOOP, _CALLBACK = 16, 24  # offsets of FutureObj.fut_loop, and of fut_callback0: 0 when the future is done
_AWAITABLE = 16  # offset of the object in a wrapper or in a weak reference
_GENERATORS = ("coroutine", "generator", "async_generator")
_COROUTINES = ("coroutine", "generator")  # ends of type names; Nuitka has "compiled_coroutine"
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "_asyncio.FutureIter")
_ACQUIRING = 3  # innermost functions: Lock.acquire, __aenter__, and the function with the `async with`
_MAX_TASKS = 12_000  # tasks of a thread; the budget of a look is enough for this number
_MAX_DEPTH = 200  # coroutines of a task
_MAX_LISTED = 2000  # tasks of a thread from which `waiting` chooses
_LOOP_METHODS = {"run_forever", "run_until_complete"}  # names in code that runs an event loop
_DEFAULT_NAME = re.compile(r"Task-\d+")
# patterns for the cause in a text about a wait, without its name or address: "asyncio.Lock", "task", a type
_CAUSES = re.compile(r"asyncio\.\w+"), re.compile(r"^\w[\w.]*")
# (part of a cause, class of the wait); the first part that the cause contains decides
_CLASSES = (
    ("asyncio.sleep", WaitClass.SLEEP), ("asyncio.Lock", WaitClass.LOCK), ("asyncio.Future", WaitClass.OTHER),
    ("asyncio.", WaitClass.CONDITION), ("task", WaitClass.CONDITION), ("Stream", WaitClass.NETWORK),
    ("sock_", WaitClass.NETWORK), ("", WaitClass.OTHER),
)  # fmt: skip

# File and function of asyncio -> text about the wait of a task in this function; {}: address of `self`.
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
    """An asyncio task."""

    address: int
    name: str
    stack: tuple[PythonPlace, ...]  # places of its coroutines, the innermost first
    awaits: str  # text that says what the task waits for; "": unknown
    on: tuple[int, ...]  # addresses of the tasks that it needs, or address of a lock with unknown holder
    held_by: str = ""  # name of the task that holds the lock; "": unknown, or no lock


class WaitingTasks(NamedTuple):
    """Suspended tasks of a thread, as a profile shows them."""

    # Number of tasks by stack.  A stack begins with the wait of the task, and ends with the task's name.
    stacks: Counter[tuple[Location, ...]]
    scale: float  # number of all tasks / number of tasks that were read


def find_table(modules: ModuleMap) -> int:
    """Return the address of asyncio's table of offsets; 0: no table (always before 3.14)."""
    for mapping in modules.mappings:
        name = mapping.path.rpartition("/")[2]
        module = modules.find(mapping.start) if mapping.executable and "python" in name else None
        section = module and module.image.section(_SECTION)
        if module and section:
            return module.address(section.vaddr)
    return 0


class TaskReader:
    """Reads the tasks of one process; `table` is the address of asyncio's table of offsets (0: no table)."""

    def __init__(self, objects: Objects, table: int) -> None:
        self._objects, self._random = objects, Random()  # noqa: S311 - a choice of tasks, not a secret
        read = objects.read
        self._names = Names(objects.layout, lambda pieces: [read(*piece) for piece in pieces])
        self._table = objects.words(table, _TABLE_WORDS) if table else ()
        minor = objects.layout.minor
        self._coro = self._table[_CORO_AT] if self._table else _CORO.get(minor, 128)
        self._name_at = self._table[_NAME_AT] if self._table else self._coro + 8
        self._frame = 80 if minor == 11 else 72  # offset of gi_iframe

    def tasks(self, states: Sequence[int], stack: PythonStack) -> tuple[Task, ...]:
        """Return the tasks of a thread; `stack`: its Python frames."""
        loop = self._loop(stack)
        listed = chain(*map(self._linked, states), self._referred(self._references(loop), loop))
        alive = [*dict.fromkeys(islice(filter(self._is_alive, listed), _MAX_TASKS))]
        _, rows, needs = self._read(alive, frozenset(alive))
        holders: dict[int, list[int]] = {}
        for task, run, (_, on) in zip(alive, rows, needs, strict=True):
            for lock in entered(self._objects, run, _ACQUIRING, on[0] if on else 0):
                holders.setdefault(lock, []).append(task)
        tasks = [self._task(*parts, holders) for parts in zip(alive, rows, needs, strict=True)]
        return tuple(sorted(tasks, key=lambda task: (len(task.name), task.name)))

    def waiting(self, states: Sequence[int], stack: PythonStack, has_run: Callable[[], bool]) -> WaitingTasks:
        """Return the suspended tasks of a thread; of many tasks, return a random choice.

        `has_run` returns True if the thread has run since the capture of `stack`.  If so, the tasks that went
        on during the reading are left out.
        """
        loop = self._loop(stack)
        linked = [*islice(chain(*map(self._linked, states)), _MAX_LISTED)]
        listed = linked or self._references(loop)
        some = self._random.sample(listed, min(len(listed), TASKS_PER_LOOK))
        chosen = [*filter(self._is_alive, some if linked else self._referred(some, loop))]
        chains, rows, needs = self._read(chosen, None)
        found, ran = Counter[tuple[Location, ...]](), has_run()
        for task, (frames, awaited), run, (text, _) in zip(chosen, chains, rows, needs, strict=True):
            # `awaited` is 0 if the task runs, or has not begun
            if awaited and not (ran and self._chain(task)[0] != frames):
                causes = [match[0] for pattern in _CAUSES if (match := pattern.search(text))]
                wait = [_wait(cause) for cause in causes[:1]]
                name = _DEFAULT_NAME.sub("Task", self._name(task))
                task_place = PythonPlace(f"[task {name}]", "", None, None)
                found[*wait, *(python_location(place) for place, _ in run), python_location(task_place)] += 1
        return WaitingTasks(found, len(listed) / max(1, len(some)))

    def _loop(self, stack: PythonStack) -> PythonFrame | None:
        runs = [run for run in rows_of(stack) if run]
        rows = [*chain.from_iterable(runs)]
        loop = next(frames_in(rows, "asyncio/base_events.py", "BaseEventLoop._run_once"), None)
        loop = loop or next(frames_in(rows, "asyncio/runners.py", "Runner.run"), None)  # with uvloop
        # else a frame that has called C code, and whose code has the name of a method that runs a loop
        outer = (f for (_, f), *_ in runs if not _LOOP_METHODS.isdisjoint(self._objects.names(f)))
        return loop or next(outer, None)

    def _chain(self, task: int) -> tuple[list[PythonFrame], int]:
        return self._follow(self._objects.word(task + self._coro))

    def _read(
        self, tasks: Sequence[int], alive: frozenset[int] | None
    ) -> tuple[list[tuple[list[PythonFrame], int]], list[list[Row]], list[tuple[str, tuple[int, ...]]]]:
        """Return the chains of tasks, their named frames, and their needs; `alive`: all tasks, if known."""
        chains = [*map(self._chain, tasks)]
        placed = Placed(tuple((at, tuple(frames)) for at, (frames, _) in enumerate(chains)), is_whole=True)
        rows = rows_of(self._names.named(placed))
        needs = [self._needs(run, awaited, alive) for run, (_, awaited) in zip(rows, chains, strict=True)]
        return chains, rows, needs

    def _task(
        self, address: int, rows: list[Row], needs: tuple[str, tuple[int, ...]], holders: dict[int, list[int]]
    ) -> Task:
        awaits, on = needs
        [holder] = held if len(held := holders.get(on[0], []) if on else []) == 1 else [0]
        places = tuple(place for place, _ in rows)
        held_by = self._name(holder) if holder else ""
        return Task(address, self._name(address), places, awaits, (holder,) if holder else on, held_by)

    def _is_alive(self, task: int) -> bool:
        """Return True if a task has not ended; from 3.14 on, the lists have no ended tasks."""
        at = self._objects.word(task + self._coro) + self._frame - 5  # gi_frame_state; 1 or more: ended
        return self._objects.layout.minor >= 14 or not 1 <= self._objects.word(at) & 0xFF < 0x80

    def _linked(self, state: int) -> Iterator[int]:
        """Yield the tasks in the list of a thread; this list is circular, and begins at its head."""
        if not self._table:
            return
        head, seen = state + self._table[_HEAD], {0}
        at = self._objects.word(head)
        while at != head and at not in seen:
            seen.add(at)
            task = at - self._table[_NODE]
            if self._objects.type_name(self._objects.word(task + self._coro)).endswith(_COROUTINES):
                yield task
            else:
                self._objects.odd["asyncio.Task"] = None
            at = self._objects.word(at)

    def _references(self, loop_frame: PythonFrame | None) -> tuple[int, ...]:
        """Return the references to tasks in the WeakSet of the module `asyncio.tasks`.

        The modules of `_run_once` and of `Runner.run` have this module as the global `tasks`.  Other code
        that runs a loop has the global `asyncio`, which has the attribute `tasks`.
        """
        if loop_frame is None:
            return ()
        objects = self._objects
        names = objects.globals(loop_frame)
        module = objects.attribute(objects.item(names, "asyncio"), "tasks") or objects.item(names, "tasks")
        name = "_all_tasks" if objects.layout.minor == 11 else "_scheduled_tasks"
        return objects.members(objects.attribute(objects.attribute(module, name), "data"))

    def _referred(self, references: Sequence[int], loop_frame: PythonFrame | None) -> Iterator[int]:
        """Yield the referenced tasks whose event loop is an object of the frame `loop_frame`."""
        if loop_frame is None:
            return
        objects = self._objects
        me = objects.local(loop_frame, "self")
        loops = {objects.attribute(me, "_loop") or me}  # loop of a Runner, or the loop itself
        loops.update(objects.value(slot) for slots in objects.slots(loop_frame) for slot in slots)
        for reference in references:
            task = objects.word(reference + _AWAITABLE)
            if task and objects.word(task + _LOOP) in loops and self._is_task(task):
                yield task

    def _name(self, address: int) -> str:
        name = self._objects.word(address + self._name_at)
        number = self._objects.integer(name)
        return f"Task-{number}" if number is not None else self._objects.text(name) or f"{address:#x}"

    def _follow(self, at: int) -> tuple[list[PythonFrame], int]:
        """Return the frames of a chain of coroutines, innermost first, and the object that ends the chain."""
        objects, layout, frames = self._objects, self._objects.layout, list[PythonFrame]()
        while len(frames) < _MAX_DEPTH and objects.type_name(at) in _GENERATORS:
            address = at + self._frame
            if objects.word(address + layout.owner) & 0xFF != OWNER_GENERATOR:
                break
            code = objects.word(address + layout.executable) & ~TAGS
            frames.insert(0, PythonFrame(address, code, objects.word(address + layout.instruction)))
            at = next((slot for slot in self._top(frames[0]) if slot), 0)
            if objects.type_name(at) in _WRAPPERS:
                at = objects.word(at + _AWAITABLE)
        return frames, at

    def _top(self, frame: PythonFrame) -> tuple[int, ...]:
        """Return the top two entries of the value stack of a suspended frame; (): the frame is running."""
        objects, minor = self._objects, self._objects.layout.minor
        variables, stack = objects.slots(frame)
        top = objects.word(frame.address + 64)
        if minor >= 14:
            top = (top - frame.address - objects.layout.frame_bytes) // 8
        count = (top & 0xFFFFFFFF) - len(variables)
        return stack[:count][:-3:-1] if 0 < count <= len(stack) else ()

    def _needs(
        self, rows: list[Row], awaited: int, alive: frozenset[int] | None
    ) -> tuple[str, tuple[int, ...]]:
        """Return a text about the wait of a task, and the addresses of the lock or tasks that it needs."""
        objects = self._objects
        for frame in frames_in(rows[:1], "asyncio/tasks.py", "sleep"):
            return f"{objects.repr(objects.local(frame, 'delay'))} s of asyncio.sleep", ()
        for what in (what for where, what in _AWAITED.items() if rows and is_in(rows[0][0], *where)):
            self_at = objects.local(rows[0][1], "self")
            return what.format(f"{self_at:#x}"), (self_at,) if "Lock" in what else ()
        kind = objects.type_name(awaited)
        children, function = self._children(rows, awaited)
        if children:
            left = tuple(child for child in children
                         if alive is None or child in alive or self._is_pending_future(child))  # fmt: skip
            nouns = "tasks" if all(map(self._is_task, left)) else "futures"
            what = self._noun(left[0]) if len(left) == 1 else f"{len(left)} {nouns}"
            done = f" ({len(children) - len(left)} of {len(children)} are done)" * (len(left) < len(children))
            needed = left if function != "asyncio.wait" else ()  # one task may be enough for asyncio.wait
            return f"{what}{done}, in {function}" if left else "", needed
        if self._is_task(awaited):
            return self._noun(awaited), (awaited,)
        if rows and "/asyncio/" in rows[0][0].file:
            return f"{rows[0][0].function} of asyncio", ()
        return (self._noun(awaited) if kind and kind not in _GENERATORS else ""), ()

    def _noun(self, at: int) -> str:
        return f"task {self._name(at)}" if self._is_task(at) else f"{self._objects.type_name(at)} {at:#x}"

    def _is_pending_future(self, child: int) -> bool:
        """Return True if a child of a gather is a pending future, which has the gather's callback."""
        objects, kind = self._objects, self._objects.type_name(child)
        return kind != "_asyncio.Task" and (kind != "_asyncio.Future" or objects.word(child + _CALLBACK) > 0)

    def _children(self, rows: list[Row], awaited: int) -> tuple[tuple[int, ...], str]:
        """Return the tasks and futures for which a function of asyncio waits, and the function's name."""
        objects, tasks, function = self._objects, tuple[int, ...](), ""
        if objects.type_name(awaited) == "_GatheringFuture":
            return objects.items(objects.attribute(awaited, "_children")), "asyncio.gather"
        for place, frame in rows[:1]:
            if place.file.endswith("/asyncio/taskgroups.py"):
                group = objects.local(frame, "self")
                tasks, function = objects.members(objects.attribute(group, "_tasks")), "asyncio.TaskGroup"
            elif is_in(place, "asyncio/tasks.py", "_wait"):
                tasks, function = objects.members(objects.local(frame, "fs")), "asyncio.wait"
            elif is_in(place, "asyncio/tasks.py", "wait_for"):
                tasks, function = (objects.local(frame, "fut"),), "asyncio.wait_for"
        return tuple(filter(self._is_task, tasks)), function

    def _is_task(self, address: int) -> bool:
        return self._objects.type_name(address) == "_asyncio.Task"


def _wait(cause: str) -> Location:
    kind = next(name for part, name in _CLASSES if part in cause)
    return Location(None, 0, 0, found="wait", wait=WaitPlace(cause, kind))
