"""Finds the Python frames of the threads in a core file.

One budget limits what sfsample reads for all threads together.
"""

from collections.abc import Sequence
from functools import partial

from sfsample.core.budget import DUMP_NS, Budget, CountedMemory
from sfsample.core.stack import Frame
from sfsample.errors import BadInput
from sfsample.process.core_process import CoreProcess
from sfsample.runtimes.cpython.code_objects import read_each
from sfsample.runtimes.cpython.find import Interpreter, find_interpreter
from sfsample.runtimes.cpython.place import Placer
from sfsample.runtimes.cpython.python_stack import Names, PythonStack
from sfsample.runtimes.cpython.threads import SHARED, Gil, read_gil, thread_states

_UNLISTED = "no Python frames: the core file has no list of Python's threads"
_SPENT = "Python frames are missing: the core file has more than sfsample reads"


class CorePython:
    """Python in a core file.  A `tid` is a thread's id in the pid namespace of the process."""

    def __init__(self, core: CoreProcess) -> None:
        self._budget = Budget(DUMP_NS)
        self._memory = CountedMemory(core.memory.read, self._budget)
        self._problem = ""
        self._interpreter = self._find(core)
        if self._interpreter is not None:
            self._states = thread_states(self._interpreter, self._memory.read)
            self._names = Names(self._interpreter.layout, partial(read_each, self._memory))
            self._placer = Placer(self._interpreter.layout, self._interpreter.code)
            self._problem = "" if self._states else _UNLISTED

    def _find(self, core: CoreProcess) -> Interpreter | None:
        if core.arch.byteorder == "little":
            try:
                return find_interpreter(core.modules, self._memory.read)
            except BadInput as unknown:
                self._problem = f"no Python frames: {unknown}"
        return None

    @property
    def problems(self) -> tuple[str, ...]:
        """The reason why Python frames are missing; (): no frame is missing."""
        problem = self._problem or _SPENT * bool(self._budget.why)
        return (problem,) if problem else ()

    def stack(self, tid: int, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread with the native frames `frames`; None: it has none."""
        states = () if self._interpreter is None else self._states.get(tid, ())
        if not states:
            return None
        shared = self._states.get(SHARED, ())
        placed = self._placer.place(self._memory, frames, [*dict.fromkeys([*states, *shared])])
        return self._names.named(placed) if placed.activations or not placed.is_whole else None

    def gil(self, tid: int) -> Gil | None:
        """Return the GIL of a thread; None: it is unknown, or there is none."""
        if self._interpreter is None or not (states := self._states.get(tid)):
            return None
        return read_gil(self._interpreter, states[0], self._memory.read)
