"""Adds names and lines to the placed Python frames of a stack, and finds functions among the frames."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sfsample.core.memory import Memory, ReadMany
from sfsample.modules.location import PythonPlace, import_path
from sfsample.runtimes.cpython.chain import PythonFrame
from sfsample.runtimes.cpython.code_objects import Code, CodeObjects
from sfsample.runtimes.cpython.layout import Layout
from sfsample.runtimes.cpython.place import Placed

Row = tuple[PythonPlace, PythonFrame]  # name and lines of a frame, and the frame of the interpreter
_MAX_PLACES = 100_000  # cached places
UNNAMED = PythonPlace("[python]", "", None, None)  # place of a frame whose code object is unknown or freed


class PythonStack(NamedTuple):
    """The Python frames of a stack, with their names."""

    # For each activation, innermost first: index of its native frame, and its named Python frames.
    activations: tuple[tuple[int, tuple[PythonPlace, ...]], ...]
    is_whole: bool  # True: no frame is missing
    frames: tuple[PythonFrame, ...] = ()  # frames of the interpreter, in the order of `activations`


class Names:
    """The names and lines of the code objects of one process.  `directories`: see `import_path`."""

    def __init__(self, layout: Layout, read: ReadMany, directories: Sequence[str] = ()) -> None:
        self._layout, self._directories = layout, directories
        self.codes = CodeObjects(layout, read)
        self._places: dict[tuple[Code, int], PythonPlace] = {}

    def named(self, placed: Placed, paused: Memory | None = None) -> PythonStack:
        """Return the frames of a stack with their names; `paused`: see `CodeObjects.look_up`."""
        addresses = [*dict.fromkeys(frame.code for _, run in placed.activations for frame in run)]
        codes = dict(zip(addresses, self.codes.look_up(addresses, paused), strict=True))
        if len(self._places) > _MAX_PLACES:
            self._places.clear()
        shown = [(index, [frame for frame in run if (code := codes[frame.code]) is None or code.qualname])
                 for index, run in placed.activations]  # fmt: skip
        named = [(at, tuple(self._place(frame, codes[frame.code]) for frame in run)) for at, run in shown]
        frames = tuple(frame for _, run in shown for frame in run)
        return PythonStack(tuple(named), placed.is_whole, frames)

    def _place(self, frame: PythonFrame, code: Code | None) -> PythonPlace:
        if code is None:
            return UNNAMED
        unit = (frame.instruction - frame.code - self._layout.code_bytes) // 2
        place = self._places.get((code, unit))
        if place is None:
            place = self._places[code, unit] = PythonPlace(
                code.qualname, code.filename, code.line(unit), code.first_line,
                import_path(code.filename, self._directories))  # fmt: skip
        return place


def rows_of(stack: PythonStack) -> list[list[Row]]:
    """Return the named frames of each activation of a stack."""
    frames = iter(stack.frames)
    return [list(zip(places, frames, strict=False)) for _, places in stack.activations]


def is_in(place: PythonPlace, file: str, function: str) -> bool:
    """Return True if a place is in this function of Python's library."""
    return place.function == function and place.file.endswith(f"/{file}")


def frames_in(rows: Sequence[Row], file: str, function: str) -> Iterator[PythonFrame]:
    """Yield the frames of a function of Python's library, innermost first."""
    return (frame for place, frame in rows if is_in(place, file, function))
