"""Captures the Python frames of the threads of a live process, together with their stacks."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial

from sfsample.core.budget import CAPTURE_NS, READ_NS, TASKS_NS, Budget
from sfsample.core.memory import Memory, Span
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Frame, Stack, StopReason
from sfsample.errors import BadInput
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.process.beside import Beside, Room
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.thread import Thread
from sfsample.process.vm import Pieces, read_memory
from sfsample.runtimes.cpython.find import Interpreter, NotStarted, find_interpreter
from sfsample.runtimes.cpython.objects import Objects
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.runtime import PythonRuntime
from sfsample.runtimes.cpython.tasks import TaskReader, WaitingTasks, find_table
from sfsample.runtimes.cpython.threads import Gil, thread_states

Resume = Callable[[ThreadSnapshot, Stack, int], Stack]  # type of `Unwinder.resume`

_MAX_PIECES = 200  # lists of pieces in the cache; only headers and names of code objects are read together
_DISTANCES = range(64, 320, 8)  # bytes from the mark of an activation to its CFA: 144 to 176 in known builds
_MAX_GUESSES = 20  # attempts to guess this distance
_MAX_BREAKS = 64  # times that the walk of one stack resumes after a break in its native frames


def runs_python(process: LiveProcess) -> bool:
    """Return True if a process has an interpreter of a known version."""
    with suppress(BadInput):
        return find_interpreter(process.modules, partial(read_memory, process.proc.anchor())) is not None
    return False


def _own_directories(proc: ProcFs) -> list[str]:
    """Return the likely directories of the program's own code: the script's, and the working directory."""
    cwd = proc.link("cwd") or "/"
    words = os.fsdecode(proc.read("cmdline", chunks=1) or b"").split("\0")
    scripts = [os.path.join(cwd, word) for word in words[1:] if word.endswith(".py")][:1]
    directories = {cwd, *(os.path.normpath(os.path.dirname(script)) for script in scripts)} - {"/"}
    return sorted(directories, key=len, reverse=True)


class PythonCapture:
    """Captures the Python frames of one process."""

    def __init__(self, process: LiveProcess, *, with_gil: bool = False) -> None:
        self._process, self._with_gil = process, with_gil
        self._pid = process.pid
        self._generation = -1
        self._room, self._budget = Room(), Budget(CAPTURE_NS)
        self._guesses = 0
        self._tid = process.pid  # id of the thread through which sfsample reads the memory
        self._pieces = lru_cache(_MAX_PIECES)(Pieces)
        self._runtime: PythonRuntime | None = None
        self.interpreter: Interpreter | None = None
        self._mapping: Mapping | None = None  # mapping of the interpreter's code
        self._id_before_fork: int | None = None  # see `_find_id_before_fork`; None: not searched for yet
        self._without: set[Module] = set()  # modules that have no interpreter
        self._tasks: TaskReader | None = None
        self._tasks_budget = Budget(TASKS_NS)
        self.problem = ""  # reason why Python frames are missing; "": there is none

    def prepare(self, thread: Thread) -> None:
        """Let the next capture of a thread copy the memory that its Python frames need."""
        self._budget.begin()
        if self._process.modules.generation != self._generation:
            self._find()
        runtime, last = self._runtime, thread.beside
        plan = None if runtime is None else runtime.plan(self._native_id(thread))
        before = self._id_before_fork
        # A forked child may list its main thread by an old id (`_find_id_before_fork`).  Look for the old id
        # again at each capture: freed memory may still look like the thread state with the old id.
        if runtime is not None and thread.tid == self._pid and (before or (before is None and plan is None)):
            self._id_before_fork = self._find_id_before_fork()
            if before and before != self._id_before_fork:  # the child has called PyOS_AfterFork_Child
                runtime = self._runtime = self._new_runtime()
            plan = runtime.plan(self._native_id(thread))
        if self._has_spent("its interpreters, threads and frames need") or plan is None:
            thread.beside = None
        elif last is None or last.plan is not plan or last.groups is not plan.groups:
            thread.beside = Beside(plan, self._room, self._process.arch.byteorder)

    def stack(self, thread: Thread, memory: Memory, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread from its capture; None: no Python frames."""
        if self._runtime is None or thread.beside is None:
            return None
        python = self._runtime.stack(self._native_id(thread), memory, frames)
        if self._has_spent(f"the frames of thread {thread.tid} need"):
            return None
        if python is None or python.is_whole or python.activations or self._mapping is None:
            return python
        find = self._process.modules.find
        interpreter = find(self._mapping.start)
        # a thread that begins or ends has no native frame in the interpreter
        return python if any(find(frame.pc) is interpreter for frame in frames) else None

    def has_gil(self, thread: Thread, memory: Memory, frames: Sequence[Frame]) -> bool | None:
        """Return True if a thread held its GIL at its capture; None: unknown.  Without --gil, return True."""
        if not self._with_gil or self._runtime is None:
            return not self._with_gil
        stack = (frames[0].sp, frames[-1].cfa or frames[-1].sp) if frames else (0, 0)
        return self._runtime.has_gil(self._native_id(thread), memory, stack)

    def over_breaks(self, thread: Thread, snapshot: ThreadSnapshot, stack: Stack, resume: Resume) -> Stack:
        """Walk on from a stack that ends too early; return the longer stack, or `stack` if the walk fails.

        The walk resumes at the CFA of the next native frame of the interpreter's loop.  `loop_marks` finds a
        mark in this frame; the distance from the mark to the CFA is always the same.
        """
        longer = stack
        for _ in range(_MAX_BREAKS if self._runtime is not None and thread.beside is not None else 0):
            ends = self._loop_ends(thread, snapshot.memory, longer.frames[-1].sp)
            stacks = [resume(snapshot, longer, cfa) for cfa in ends]
            whole = [other for other in stacks if other.stop_reason is StopReason.OUTERMOST]
            if len(whole) == 1:
                return whole[0]
            if len(stacks) != 1 or stacks[0] is longer or stacks[0].stop_reason is StopReason.MAX_FRAMES:
                break
            [longer] = stacks
        return stack

    def _loop_ends(self, thread: Thread, memory: Memory, sp: int) -> Sequence[int]:
        runtime = self._runtime
        if runtime is None:
            return ()
        marks, distance = runtime.loop_marks(self._native_id(thread), memory, sp)
        if distance is not None or not marks or self._guesses > _MAX_GUESSES:
            return [min(marks) + distance] if marks and distance is not None else ()
        self._guesses += 1  # at the right distance, each mark has a return address at CFA - 8
        modules = self._process.modules
        words = {guess: [memory.word(mark + guess - 8) or 0 for mark in marks] for guess in _DISTANCES}
        return [min(marks) + guess for guess, returns in words.items()
                if all(modules.is_code(a) and modules.may_be_returned_to(a) for a in returns)]  # fmt: skip

    def is_doubtful(self, stack: PythonStack | None) -> bool:
        """Return True if another capture of the thread may show Python frames that `stack` lacks."""
        if stack is None:
            return self._runtime is not None and self._runtime.is_torn
        return not stack.is_whole

    def waiting_tasks(self, thread: Thread, stack: PythonStack, has_run: Callable[[], bool]) -> WaitingTasks:
        """Return the suspended asyncio tasks of a thread; see `TaskReader.waiting`."""
        if self._runtime is None or self.interpreter is None or self.interpreter.layout.free_threaded:
            return WaitingTasks(Counter(), 1.0)
        self._tasks_budget.renew()
        if self._tasks is None:
            objects = Objects(
                self.interpreter.layout,
                lambda address, size: read_memory(self._tid, address, size),
                self._tasks_budget,
            )
            self._tasks = TaskReader(objects, find_table(self._process.modules))
        return self._tasks.waiting(self._runtime.listed(self._native_id(thread)), stack, has_run)

    def gil(self, thread: Thread) -> Gil | None:
        """Return the GIL of a thread; None: unknown, or no GIL."""
        gil = None if self._runtime is None else self._runtime.gil(self._native_id(thread))
        if gil is not None and gil.holder and gil.holder == self._id_before_fork:
            gil = gil._replace(holder=self._process.own_id(self._pid))
        return gil

    def _find(self) -> None:
        process = self._process
        self._generation, self._tasks = process.modules.generation, None
        if process.arch.byteorder != "little" or self._mapping in process.modules.mappings:
            return
        self._mapping, self._runtime, self.interpreter, self.problem = None, None, None, ""
        self._id_before_fork = None
        try:
            interpreter = find_interpreter(process.modules, self._read, self._without)
        except BadInput as unknown:
            self.problem = f"no Python frames: {unknown}"
            if isinstance(unknown, NotStarted):
                self._generation = -1  # no map has this generation, so `prepare` searches again
            return
        if interpreter is not None:
            self._mapping, self.interpreter = interpreter.mapping, interpreter
            self._runtime = self._new_runtime()

    def _has_spent(self, what: str) -> bool:
        """Return True if a look has spent its budget; then sfsample reads no more frames of this program."""
        if self._budget.why:
            self._runtime, self.interpreter = None, None
            self.problem = (f"no Python frames of process {self._pid}: {what} more than "
                            f"{CAPTURE_NS // READ_NS:,} reads of its memory")  # fmt: skip
        return bool(self._budget.why)

    def _new_runtime(self) -> PythonRuntime:
        assert self.interpreter is not None  # noqa: S101 - the caller has checked
        directories = _own_directories(self._process.proc)
        return PythonRuntime(
            self.interpreter, self._read, self._read_many, self._budget, directories, with_gil=self._with_gil
        )

    def _find_id_before_fork(self) -> int:
        """Return the old id by which the interpreter of a forked child lists its main thread; 0: none.

        The old id is the id of the forking thread in the parent.  PyOS_AfterFork_Child replaces the old id,
        but not all C code calls this function: the workers of uWSGI do not.
        """
        assert self.interpreter is not None  # noqa: S101 - the caller has checked
        listed = thread_states(self.interpreter, self._read)
        running = set(map(self._process.own_id, self._process.proc.threads()))
        others = [tid for tid in listed if tid > 0 and tid not in running]
        return 0 if self._process.own_id(self._pid) in listed or not others else others[-1]

    def _native_id(self, thread: Thread) -> int:
        """Return the id by which the interpreter lists a thread."""
        if thread.tid == self._pid and self._id_before_fork:
            return self._id_before_fork
        return self._process.own_id(thread.tid)

    def _read(self, address: int, size: int) -> bytes | None:
        if not self._budget.permits(size):
            return None
        data = read_memory(self._tid, address, size)
        if data is None and (other := self._process.proc.anchor()) != self._tid:
            self._tid = other
            data = read_memory(other, address, size)
        return data

    def _read_many(self, pieces: Sequence[Span]) -> list[bytes | None]:
        """Read pieces in one call; if the call fails, read them one by one."""
        is_joint = len(pieces) > 1 and all(self._budget.permits(size) for _, size in pieces)
        joint = self._pieces(tuple(pieces)).read_each(self._tid) if is_joint else None
        return joint or [self._read(*piece) for piece in pieces]
