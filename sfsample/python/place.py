"""Places the Python frames of a thread among its native frames, by address alone.

A run of Python frames belongs to the native frame in which its mark lies: `sp <= mark < cfa`.  No symbol is
needed, so this holds in stripped programs, and where the compiler has split the evaluation loop.

In one program the distance from the CFA of such a native frame to its mark is the same each time.  Where the
chain breaks (a frame was in no copy), it goes on at the next native frame that has a sentinel there.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.core.stack import Frame
from sfsample.python.chain import PythonFrame, base, resumed, runs
from sfsample.python.layout import Layout

_MAX_TRIED = 8  # native frames behind a break that seem to have a sentinel; marks that are in no native frame


class Placed(NamedTuple):
    """The Python frames of a stack: for each activation the index of its native frame, and its frames.

    The innermost activation comes first; so does the innermost frame of each.  `is_whole`: none is missing.
    """

    activations: tuple[tuple[int, tuple[PythonFrame, ...]], ...]
    is_whole: bool


class Placer:
    """Places the frames of one process, and learns what is the same at all its activations."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.distance: int | None = None  # from the CFA down to the mark

    def place(self, memory: Memory, frames: Sequence[Frame], states: Iterable[int]) -> Placed:
        """Place the frames of the thread states of a thread; `memory` has what was copied in its pause."""
        ends = _ends(frames)
        found: dict[int, tuple[PythonFrame, ...]] = {}
        is_whole = True
        for state in states:
            index, outside = None, 0
            for run in runs(memory, self._layout, state):
                index = _index_of(run.mark, frames, ends, (index or 0))
                is_whole &= index is not None and index not in found
                if index is not None:
                    found[index] = run.frames
                    self.distance = ends[index] - run.mark
                elif not run.mark:
                    self._resume(memory, frames, ends, found, base(memory, self._layout, state))
                elif (outside := outside + 1) == _MAX_TRIED:
                    break
        return Placed(tuple(sorted(found.items())), is_whole)

    def _resume(
        self,
        memory: Memory,
        frames: Sequence[Frame],
        ends: list[int],
        found: dict[int, tuple[PythonFrame, ...]],
        base_frame: int,
    ) -> None:
        """Go on behind a break: at the activation outside of those that are placed."""
        layout, distance = self._layout, self.distance
        if distance is None or not layout.sentinel_owners:
            return
        first, tried = max(found, default=-1) + 1, 0
        for end in ends[first:]:
            sentinel = end - distance
            data = memory.read(sentinel, layout.frame_bytes)
            if data is None or data[layout.owner] not in layout.sentinel_owners:
                continue
            if (tried := tried + 1) > _MAX_TRIED:
                return
            placed = [(_index_of(run.mark, frames, ends, first), run)
                      for run in resumed(memory, layout, sentinel, base_frame)]  # fmt: skip
            if placed and placed[0][0] is not None:
                found |= {index: run.frames for index, run in placed if index is not None}
                return


def _ends(frames: Sequence[Frame]) -> list[int]:
    """Return where each native frame ends: its CFA; of one without, the begin of its caller's frame."""
    if not frames:
        return []
    begins = [frame.sp for frame in frames[1:]]
    return [frame.cfa or begin for frame, begin in zip(frames, (*begins, 0), strict=True)]


def _index_of(mark: int, frames: Sequence[Frame], ends: list[int], first: int) -> int | None:
    """Return the index of the native frame in which an address lies, from `first` on."""
    for index in range(first, len(frames) if mark else 0):
        if frames[index].sp <= mark < ends[index]:
            return index
    return None
