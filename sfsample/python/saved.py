"""What places the Python frames of a saved stack again: layout, thread states, and names as they were then.

The copies of memory are pieces of the saved stack itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sfsample.core.budget import CAPTURE_NS, Budget, CountedMemory
from sfsample.core.memory import Memory
from sfsample.core.stack import Frame
from sfsample.errors import BadInput
from sfsample.modules.location import PythonPlace
from sfsample.modules.module_map import ModuleMap
from sfsample.python.chain import PythonFrame
from sfsample.python.find import ReadMemory, find_interpreter
from sfsample.python.layout import MAX_TABLE_BYTES, Layout, layout_of
from sfsample.python.names import PythonStack
from sfsample.python.place import Placer
from sfsample.python.threads import thread_states

_NEW = PythonPlace("[python]", "", None, None)  # was not placed then
_OWN = PythonPlace("", "", None, None)  # the interpreter's own, which is not shown


class SavedPython(NamedTuple):
    """`table`: the start of `_PyRuntime`; `names`: by code object and instruction."""

    minor: int
    table: bytes
    states: tuple[int, ...]
    names: dict[tuple[int, int], PythonPlace]

    @property
    def layout(self) -> Layout:
        """Where the fields are.  Raises BadInput where the table is damaged."""
        return layout_of(3 << 24 | self.minor << 16 | 0xF0, self.table)

    def place(self, memory: Memory, frames: Sequence[Frame]) -> PythonStack:
        """Place the Python frames among native ones.  Raises BadInput."""
        counted = CountedMemory(memory.read, Budget(CAPTURE_NS))
        placed = Placer(self.layout).place(counted, frames, self.states)
        runs = [(index, [(frame, self.names.get(_key(frame), _NEW)) for frame in run])
                for index, run in placed.activations]  # fmt: skip
        return PythonStack(
            tuple((index, tuple(place for _, place in run if place.function)) for index, run in runs),
            placed.is_whole,
            tuple(frame for _, run in runs for frame, place in run if place.function),
        )


def save_python(
    modules: ModuleMap, read: ReadMemory, tid: int, stack: PythonStack,
    captured: tuple[Memory, Sequence[Frame]],
) -> SavedPython | None:  # fmt: skip
    """Return what places a stack again by its copy and its native frames; None: the thread has no Python."""
    try:
        found = find_interpreter(modules, read)
    except BadInput:
        return None
    states = tuple(thread_states(found, read).get(tid, ())) if found else ()
    if found is None or not states:
        return None
    places = (place for _, run in stack.activations for place in run)
    names = {_key(frame): place for frame, place in zip(stack.frames, places, strict=True)}
    placed = Placer(found.layout).place(*captured, states)
    own = {_key(frame): _OWN for _, run in placed.activations for frame in run} if names else {}
    table = read(found.runtime, MAX_TABLE_BYTES) or b""
    return SavedPython(found.layout.minor, table, states, own | names)


def _key(frame: PythonFrame) -> tuple[int, int]:
    return frame.code, frame.instruction
