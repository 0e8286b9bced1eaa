"""Captures the Python frames of the threads of a live process, together with their stacks.

The interpreter is looked for when the process is first captured, and again when its modules have changed: a
program may load libpython later, or become another one.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from sfsample.core.budget import CAPTURE_NS, READ_NS, Budget
from sfsample.core.memory import Memory, Span
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Frame, Stack, StopReason
from sfsample.errors import BadInput
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.process.beside import Beside, Room
from sfsample.process.process import LiveProcess
from sfsample.process.thread import Thread
from sfsample.process.vm import Pieces, read_memory
from sfsample.python.find import Interpreter, find_interpreter
from sfsample.python.gil import Gil
from sfsample.python.names import PythonStack
from sfsample.python.runtime import PythonRuntime
from sfsample.python.threads import thread_states

Resume = Callable[[ThreadSnapshot, Stack, int], Stack]  # see `Unwinder.resume`

_MAX_PIECES, _MAX_KEPT_BYTES = 200, 1 << 16  # that are kept, and bytes of each
_DISTANCES = range(64, 320, 8)  # bytes from the mark of an activation to its CFA: 144 to 176 in known builds
_MAX_GUESSES = 20  # of such a distance
_MAX_BREAKS = 64  # in one stack, where the native frames are lost and found again


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
        self._room, self._budget = Room(), Budget(CAPTURE_NS)
        self._guesses = 0
        self._tid = process.pid  # of a thread by which memory is read
        self._pieces: dict[tuple[Span, ...], Pieces] = {}  # that were read last
        self._runtime: PythonRuntime | None = None
        self.interpreter: Interpreter | None = None
        self._mapping: Mapping | None = None  # of the interpreter's code
        self._id_before_fork: int | None = None  # of the main thread, in the interpreter; 0: none
        self._without: set[Module] = set()  # modules that have no interpreter
        self._in_namespace = process.root.pid != process.pid
        self.problem = ""

    def prepare(self, thread: Thread) -> None:
        """Have the next capture of a thread copy what its Python frames need; begin its look."""
        self._budget.begin()
        if self._process.modules.generation != self._generation:
            self._find()
        runtime, known = self._runtime, thread.beside
        plan = None if runtime is None else runtime.plan(self._native_id(thread))
        before = self._id_before_fork
        # once found, it is looked for each time: a state that the child has freed may look as before
        if runtime is not None and thread.tid == self._pid and (before or (before is None and plan is None)):
            self._id_before_fork = self._find_id_before_fork()
            if before and before != self._id_before_fork:  # PyOS_AfterFork_Child has set all anew
                runtime = self._runtime = self._new_runtime()
            plan = runtime.plan(self._native_id(thread))
        if self._has_spent("its interpreters, threads and frames are") or plan is None:
            thread.beside = None
        elif known is None or known.plan is not plan or known.groups is not plan.groups:
            thread.beside = Beside(plan, self._room, self._process.arch.byteorder)

    def stack(self, thread: Thread, memory: Memory, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread by what was captured; None: it has none."""
        if self._runtime is None or thread.beside is None:
            return None
        found = self._runtime.stack(self._native_id(thread), memory, frames)
        if self._has_spent(f"the frames of thread {thread.tid} are"):
            return None
        is_lost = found is not None and not found.is_whole and not found.activations
        return None if is_lost and not self._is_in_interpreter(frames) else found

    def _is_in_interpreter(self, frames: Sequence[Frame]) -> bool:
        """Whether any native frame is one of the interpreter: a thread that begins or ends has none."""
        find, mapping = self._process.modules.find, self._mapping
        own = None if mapping is None else find(mapping.start)
        return any(find(frame.pc) is own for frame in frames)

    def over_breaks(self, thread: Thread, snapshot: ThreadSnapshot, stack: Stack, resume: Resume) -> Stack:
        """Return a stack that ends too early continued behind Python's evaluation loop, or as it is.

        That loop has its mark on the C stack, at the same distance from its CFA each time.
        """
        longer = stack
        for _ in range(_MAX_BREAKS if self._runtime is not None and thread.beside is not None else 0):
            ends = self._loop_ends(thread, snapshot.memory, longer.frames[-1].sp)
            found = [resume(snapshot, longer, cfa) for cfa in ends]
            whole = [each for each in found if each.stop_reason is StopReason.OUTERMOST]
            if len(whole) == 1:
                return whole[0]
            if len(found) != 1 or found[0] is longer or found[0].stop_reason is StopReason.MAX_FRAMES:
                break
            [longer] = found
        return stack

    def _loop_ends(self, thread: Thread, memory: Memory, sp: int) -> Sequence[int]:
        runtime = self._runtime
        if runtime is None:
            return ()
        marks, distance = runtime.loop_marks(self._native_id(thread), memory, sp)
        if distance is not None or not marks or self._guesses > _MAX_GUESSES:
            return [min(marks) + distance] if marks and distance is not None else ()
        self._guesses += 1  # no activation was placed yet: each must end behind a return address
        words = {each: [memory.word(mark + each - 8) or 0 for mark in marks] for each in _DISTANCES}
        return [min(marks) + each for each, found in words.items() if all(map(self._is_return, found))]

    def _is_return(self, address: int) -> bool:
        modules = self._process.modules
        return modules.is_code(address) and modules.may_be_returned_to(address)

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
            self._runtime = self._new_runtime()

    def _has_spent(self, what: str) -> bool:
        """Whether a look has spent its budget; then there are no Python frames of this program any more."""
        if self._budget.why:
            self._runtime, self.interpreter = None, None
            self.problem = (f"no Python frames of process {self._pid}: {what} more than "
                            f"{CAPTURE_NS // READ_NS:,} reads of its memory")  # fmt: skip
        return bool(self._budget.why)

    def _new_runtime(self) -> PythonRuntime:
        assert self.interpreter is not None  # noqa: S101 - the caller has looked
        return PythonRuntime(self.interpreter, self._read, self._read_many, self._budget)

    def _find_id_before_fork(self) -> int:
        """Return the thread id that the main thread had in the parent, where C code has forked; 0: none.

        Until PyOS_AfterFork_Child is called the interpreter still has it.  uWSGI forks its workers without.
        """
        assert self.interpreter is not None  # noqa: S101 - the caller has looked
        known = thread_states(self.interpreter, self._read)
        own = set(map(self._own_id, self._process.proc.threads()))
        others = [tid for tid in known if tid > 0 and tid not in own]
        return 0 if self._own_id(self._pid) in known or not others else others[-1]

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
        if not self._budget.permits(size):
            return None
        data = read_memory(self._tid, address, size)
        if data is None and (other := self._process.proc.anchor()) != self._tid:
            self._tid = other
            data = read_memory(other, address, size)
        return data

    def _read_many(self, pieces: Sequence[Span]) -> list[bytes | None]:
        """Read pieces in one call; where that fails, one by one."""
        wanted = tuple(pieces)
        if not wanted or not all(self._budget.permits(size) for _, size in wanted):
            return [None] * len(wanted)
        if len(self._pieces) >= _MAX_PIECES:
            self._pieces.clear()
        joint = self._pieces.get(wanted) or Pieces(wanted)
        if joint.size <= _MAX_KEPT_BYTES:
            self._pieces[wanted] = joint
        if joint.read(self._tid):
            return [bytes(joint.view(number)) for number in range(len(wanted))]
        return [self._read(*piece) for piece in wanted]
