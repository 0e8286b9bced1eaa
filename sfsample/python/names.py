"""Names the Python frames of a stack, once it is known where they lie among the native ones."""

from collections.abc import Sequence
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.modules.location import PythonPlace
from sfsample.python.chain import PythonFrame
from sfsample.python.code_objects import Code, CodeObjects, ReadMany
from sfsample.python.layout import Layout
from sfsample.python.place import Placed

_MAX_PLACES = 100_000
_GONE = PythonPlace("[python]", "", None, None)  # its code object was freed before it had been read


class PythonStack(NamedTuple):
    """For each activation of the evaluation loop the index of its native frame, and its frames with names.

    The innermost comes first.  `is_whole`: no frame is missing.  `frames` says where each named frame lies.
    """

    activations: tuple[tuple[int, tuple[PythonPlace, ...]], ...]
    is_whole: bool
    frames: tuple[PythonFrame, ...] = ()


class Names:
    """The names and lines of the code objects of one process.  `read` reads its memory now."""

    def __init__(self, layout: Layout, read: ReadMany) -> None:
        self._layout = layout
        self._codes = CodeObjects(layout, read)
        self.trusted = self._codes.trusted
        self._places: dict[tuple[Code, int], PythonPlace] = {}

    def look_up(self, codes: Sequence[int]) -> None:
        """Learn the names that code objects have now."""
        self._codes.look_up(codes)

    def named(self, placed: Placed, paused: Memory | None = None) -> PythonStack:
        """Return the frames of a stack with their names; `paused`: see `CodeObjects.look_up`."""
        addresses = [*dict.fromkeys(frame.code for _, run in placed.activations for frame in run)]
        codes = dict(zip(addresses, self._codes.look_up(addresses, paused), strict=True))
        if len(self._places) > _MAX_PLACES:
            self._places.clear()
        shown = [(index, [frame for frame in run if (code := codes[frame.code]) is None or code.qualname])
                 for index, run in placed.activations]  # fmt: skip
        return PythonStack(
            tuple(
                (index, tuple(self._place(frame, codes[frame.code]) for frame in run)) for index, run in shown
            ),
            placed.is_whole,
            tuple(frame for _, run in shown for frame in run),
        )

    def _place(self, frame: PythonFrame, code: Code | None) -> PythonPlace:
        if code is None:
            return _GONE
        unit = (frame.instruction - frame.code - self._layout.code_bytes) // 2
        place = self._places.get((code, unit))
        if place is None:
            place = self._places[code, unit] = PythonPlace(
                code.qualname, code.filename, code.line(unit), code.first_line)  # fmt: skip
        return place
