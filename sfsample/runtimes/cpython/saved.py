"""Saves what is needed to place the Python frames of a saved stack again: layout, thread states and names.

The names are those of the time of the capture.  The copies of memory are pieces of the saved stack itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sfsample.core.budget import CAPTURE_NS, Budget, CountedMemory
from sfsample.core.memory import Memory, ReadMemory
from sfsample.core.stack import Frame
from sfsample.errors import BadInput
from sfsample.modules.location import PythonPlace
from sfsample.modules.module_map import ModuleMap
from sfsample.runtimes.cpython.chain import PythonFrame
from sfsample.runtimes.cpython.find import find_interpreter
from sfsample.runtimes.cpython.layout import MAX_TABLE_BYTES, Layout, layout_of
from sfsample.runtimes.cpython.place import Placer
from sfsample.runtimes.cpython.python_stack import UNNAMED, PythonStack
from sfsample.runtimes.cpython.threads import shared_states, thread_states

_OWN = PythonPlace("", "", None, None)  # place of the interpreter's own frame, which is not shown


class SavedPython(NamedTuple):
    """The Python part of a saved stack."""

    minor: int  # minor version of Python
    table: bytes  # start of `_PyRuntime`, with the table of offsets
    states: tuple[int, ...]  # addresses of the thread states
    names: dict[tuple[int, int], PythonPlace]  # places by address of code object and of instruction

    @property
    def layout(self) -> Layout:
        """Return the layout.  Raises BadInput if the table is damaged."""
        return layout_of(3 << 24 | self.minor << 16 | 0xF0, self.table)

    def place(self, memory: Memory, frames: Sequence[Frame]) -> PythonStack:
        """Place the Python frames among the native frames.  Raises BadInput if the table is damaged."""
        counted = CountedMemory(memory.read, Budget(CAPTURE_NS))
        placed = Placer(self.layout).place(counted, frames, self.states)
        runs = [(index, [(frame, self.names.get(_key(frame), UNNAMED)) for frame in run])
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
    """Return the Python part of a stack, with its copy and native frames; None: the thread has no Python."""
    try:
        python = find_interpreter(modules, read)
    except BadInput:
        return None
    states = tuple(thread_states(python, read).get(tid, ())) if python else ()
    if python is None or not states:
        return None
    states = tuple(dict.fromkeys([*states, *shared_states(python, read)]))
    places = (place for _, run in stack.activations for place in run)
    names = {_key(frame): place for frame, place in zip(stack.frames, places, strict=True)}
    placed = Placer(python.layout, python.code).place(*captured, states)
    unnamed = {_key(frame): _OWN for _, run in placed.activations for frame in run} if names else {}
    table = read(python.runtime, MAX_TABLE_BYTES) or b""
    return SavedPython(python.layout.minor, table, states, unnamed | names)


def _key(frame: PythonFrame) -> tuple[int, int]:
    return frame.code, frame.instruction
