"""Places the Python frames of a thread among its native frames, by address alone.

A run of Python frames belongs to the native frame in which its mark lies: `sp <= mark < cfa`.  This needs no
symbols.  So a program may be stripped, and the compiler may have split the evaluation loop.

The chain of Python frames breaks at a frame that was not copied.  Then all outer Python frames are missing.

Compiled functions have no mark.  sfsample places these functions at the innermost native frame that lies in
the program or in the interpreter, outside the activations that the functions have called.
"""

from collections.abc import Sequence
from itertools import dropwhile
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.core.stack import Frame
from sfsample.modules.mapping import Mapping
from sfsample.runtimes.cpython.chain import PythonFrame, Run, runs
from sfsample.runtimes.cpython.layout import Layout

_MAX_STATE_BYTES = 512  # bytes of a thread state of 3.11 or 3.12
_MAX_OUTSIDE = 8  # marks outside of all native frames; then sfsample gives up


class Placed(NamedTuple):
    """The Python frames of a stack, with their places among the native frames."""

    # For each activation, innermost first: index of its native frame, and its Python frames.
    activations: tuple[tuple[int, tuple[PythonFrame, ...]], ...]
    is_whole: bool  # True: no Python frame is missing


class Placer:
    """Places the Python frames of one process.  `code`: mappings in which compiled functions may lie."""

    def __init__(self, layout: Layout, code: Sequence[Mapping] = ()) -> None:
        self._layout, self._code = layout, code
        # bytes from the CFA down to the mark, equal in all frames of a program; None: not known yet
        self.distance: int | None = None

    def place(self, memory: Memory, frames: Sequence[Frame], states: Sequence[int]) -> Placed:
        """Place the frames of the thread that has these states; `memory` has the copies of its pause."""
        ends = _ends(frames)
        by_index: dict[int, tuple[PythonFrame, ...]] = {}
        is_whole = True
        for state in states:
            if len(states) > 1 and self._is_elsewhere(memory, frames, ends, state):
                continue
            index, outside = None, 0
            for run in runs(memory, self._layout, state):
                if run.is_compiled:
                    is_whole &= self._place_compiled(run, frames, 0 if index is None else index + 1, by_index)
                    break
                index = _index_of(run.mark, frames, ends, (index or 0))
                is_whole &= index is not None and index not in by_index
                if index is not None:
                    by_index[index] = run.frames
                    self.distance = ends[index] - run.mark
                elif (outside := outside + 1) == _MAX_OUTSIDE:
                    break
        return Placed(tuple(sorted(by_index.items())), is_whole)

    def _is_elsewhere(self, memory: Memory, frames: Sequence[Frame], ends: list[int], state: int) -> bool:
        """Return True if another thread runs a thread state: the `_PyCFrame` is on another stack."""
        cframe = memory.word(state + self._layout.thread_frame) if self._layout.has_cframes else None
        if cframe is None or state < cframe < state + _MAX_STATE_BYTES:  # no thread runs the state
            return False
        return _index_of(cframe, frames, ends, 0) is None

    def _place_compiled(
        self, run: Run, frames: Sequence[Frame], first: int, by_index: dict[int, tuple[PythonFrame, ...]]
    ) -> bool:
        """Add compiled functions to `by_index`; return False if their order among native frames is not sure.

        The outermost frame is left out: it is the start of the program.
        """
        inside = [any(code.start <= frame.pc < code.end for code in self._code) for frame in frames[first:-1]]
        index = first + inside.index(True) if True in inside else -1
        if index < 0 or index in by_index:
            return False
        by_index[index] = run.frames
        return not any(dropwhile(bool, inside[index - first :]))  # sure if compiled frames are adjacent


def _ends(frames: Sequence[Frame]) -> list[int]:
    """Return the end of each native frame: its CFA; if the CFA is unknown, the SP of the caller."""
    if not frames:
        return []
    begins = [frame.sp for frame in frames[1:]]
    return [frame.cfa or begin for frame, begin in zip(frames, (*begins, 0), strict=True)]


def _index_of(mark: int, frames: Sequence[Frame], ends: list[int], first: int) -> int | None:
    """Return the index (`first` or more) of the native frame in which an address lies; None: in no frame."""
    for index in range(first, len(frames) if mark else 0):
        if frames[index].sp <= mark < ends[index]:
            return index
    return None
