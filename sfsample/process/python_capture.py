"""Captures the Python frames of the threads of a live process, together with their stacks.

The interpreter is looked for when the process is first captured, and again when its modules have changed: a
program may load libpython later, or become another one.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sfsample.core.memory import Memory, Span
from sfsample.core.stack import Frame
from sfsample.errors import BadInput
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.process.beside import Beside, Room
from sfsample.process.process import LiveProcess
from sfsample.process.thread import Thread
from sfsample.process.vm import Pieces, read_memory
from sfsample.python.find import Interpreter, find_interpreter
from sfsample.python.names import PythonStack
from sfsample.python.runtime import Gil, PythonRuntime
from sfsample.python.threads import thread_states

_MAX_PIECES = 200


def runs_python(process: LiveProcess) -> bool:
    """Whether a process has an interpreter of a version that is known."""
    with suppress(BadInput):
        return find_interpreter(process.modules, partial(read_memory, process.proc.anchor())) is not None
    return False


class PythonCapture:
    """Python in one process; `problem` says why its frames are not shown, "" where they are."""

    def __init__(self, process: LiveProcess) -> None:
        self._process = process
        self._pid = process.pid
        self._generation = -1
        self._room = Room()
        self._tid = process.pid  # of a thread by which memory is read
        self._pieces: dict[tuple[Span, ...], Pieces] = {}  # that were read last
        self._runtime: PythonRuntime | None = None
        self.interpreter: Interpreter | None = None
        self._mapping: Mapping | None = None  # of the interpreter's code
        self._id_before_fork: int | None = (
            None  # of the main thread, in the interpreter; 0: none
        )
        self._without: set[Module] = set()  # modules that have no interpreter
        self._in_namespace = process.root.pid != process.pid
        self.problem = ""

    def prepare(self, thread: Thread) -> None:
        """Have the next capture of a thread copy what its Python frames need."""
        if self._process.modules.generation != self._generation:
            self._find()
        runtime, known = self._runtime, thread.beside
        plan = None if runtime is None else runtime.plan(self._native_id(thread))
        if plan is None and runtime is not None and self._id_before_fork is None and thread.tid == self._pid:
            self._id_before_fork = self._find_id_before_fork()
            plan = runtime.plan(self._native_id(thread))
        if plan is None:
            thread.beside = None
        elif known is None or known.plan is not plan or known.groups is not plan.groups:
            thread.beside = Beside(plan, self._room, self._process.arch.byteorder)

    def stack(self, thread: Thread, memory: Memory, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread by what was captured; None: it has none."""
        if self._runtime is None or thread.beside is None:
            return None
        return self._runtime.stack(self._native_id(thread), memory, frames)

    def is_doubtful(self, stack: PythonStack | None) -> bool:
        """Whether another capture of a thread may show Python frames that this one, `stack`, has not."""
        if stack is None:
            return self._runtime is not None and self._runtime.is_torn
        return not stack.is_whole

    def gil(self, thread: Thread) -> Gil | None:
        """Return the GIL of a thread; None: it is unknown, or there is none."""
        gil = None if self._runtime is None else self._runtime.gil(self._native_id(thread))
        if gil is not None and gil.holder and gil.holder == self._id_before_fork:
            gil = gil._replace(holder=self._own_id(self._pid))
        return gil

    def _find(self) -> None:
        process = self._process
        self._generation = process.modules.generation
        if process.arch.byteorder != "little" or self._mapping in process.modules.mappings:
            return
        self._mapping, self._runtime, self.interpreter, self.problem = None, None, None, ""
        self._id_before_fork = None
        try:
            found = find_interpreter(process.modules, self._read, self._without)
        except BadInput as unknown:
            self.problem = f"no Python frames: {unknown}"
            return
        if found is not None:
            self._mapping, self.interpreter = found.mapping, found
            self._runtime = PythonRuntime(found, self._read, self._read_many)

    def _find_id_before_fork(self) -> int:
        """Return the thread id that the main thread had in the parent, where C code has forked; 0: none.

        Without PyOS_AfterFork_Child the interpreter still has it: uWSGI forks its workers so.
        """
        assert self.interpreter is not None  # noqa: S101 - the caller has looked
        own = {0, *map(self._own_id, self._process.proc.threads())}
        known = thread_states(self.interpreter, self._read)
        return next((tid for tid in reversed(known) if tid > 0 and tid not in own), 0)

    def _native_id(self, thread: Thread) -> int:
        """Return the id by which the interpreter knows a thread."""
        if thread.tid == self._pid and self._id_before_fork:
            return self._id_before_fork
        return self._own_id(thread.tid)

    def _own_id(self, tid: int) -> int:
        """Return the id of a thread in the pid namespace of the process (proc(5), NSpid)."""
        if not self._in_namespace:
            return tid
        return int((self._process.proc.status(tid).get("NSpid") or "0").split()[-1])

    def _read(self, address: int, size: int) -> bytes | None:
        data = read_memory(self._tid, address, size)
        if data is None and (other := self._process.proc.anchor()) != self._tid:
            self._tid = other
            data = read_memory(other, address, size)
        return data

    def _read_many(self, pieces: Sequence[Span]) -> list[bytes | None]:
        """Read pieces in one call; where that fails, one by one."""
        wanted = tuple(pieces)
        if not wanted:
            return []
        if len(self._pieces) >= _MAX_PIECES:
            self._pieces.clear()
        joint = self._pieces.get(wanted) or self._pieces.setdefault(wanted, Pieces(wanted))
        if joint.read(self._tid):
            return [bytes(joint.view(number)) for number in range(len(wanted))]
        return [self._read(*piece) for piece in wanted]
