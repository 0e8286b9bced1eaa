"""The outer part of a deep stack, which seldom changes and is not walked again.

Law: a part of an earlier walk of a thread is taken again only where the walk comes to a place that was passed
then (pc, sp and fp), and the stack from a little below it up to its end holds the same bytes.  It holds for
plain rows, those of the fast lane: their answer depends on nothing else.  The frames are the same objects
then, so that others need not look at them again either (`common_tail`).
"""

from typing import NamedTuple

from sfsample.memory import Words
from sfsample.model import Frame
from sfsample.unwind.lane import FastLane

_STRIDE = 64  # frames between two places that are remembered
_DEEP = 8 * _STRIDE  # what is not deeper is walked in no time
_BELOW = 256  # bytes below sp in which a row may look (the red zone)

_Place = tuple[int, int, int]  # pc, sp, fp


class Outer(NamedTuple):
    """A run of frames to the outermost one, the bytes of the stack then, and some of the places passed."""

    frames: tuple[Frame, ...]
    end: int
    data: bytes
    places: dict[_Place, int]

    def unchanged_from(self, words: Words) -> int:
        """Return the address from which on the stack is as it was; the end if it is another stack."""
        base, view = words
        if base + 8 * len(view) != self.end:
            return self.end
        now, before = view.tobytes(), self.data
        same, limit = 0, min(len(now), len(before))
        while limit - same > _BELOW:  # the last `same` bytes are equal, more than `limit` are not
            middle = (same + limit) // 2
            equal = (
                now[len(now) - middle : len(now) - same] == before[len(before) - middle : len(before) - same]
            )
            same, limit = (middle, limit) if equal else (same, middle)
        return self.end - same + _BELOW


class Run(NamedTuple):
    """Frames passed, and the one reached; `again`: how many of them were taken from an earlier walk."""

    passed: list[Frame]
    frame: Frame
    again: int
    places: dict[_Place, int]


def run(lane: FastLane, frame: Frame, fp: int | None, words: Words, *, room: int, outer: Outer | None) -> Run:
    """Go on in the lane from `frame`, at most `room` frames, and take the rest of `outer` where it fits."""
    unchanged = outer.unchanged_from(words) if outer else 0
    passed: list[Frame] = []
    places: dict[_Place, int] = {}
    while True:
        near = outer is not None and frame.sp >= unchanged
        some, frame, fp = lane.run(frame, fp, words, min(1 if near else _STRIDE, room - len(passed)))
        passed += some
        if not some:
            return Run(passed, frame, 0, places)
        at = outer.places.get((frame.pc, frame.sp, fp)) if outer and near else None
        if outer and at is not None and len(passed) + len(outer.frames) - at <= room:
            passed.append(frame._replace(cfa=outer.frames[at].cfa))
            return Run(
                passed + list(outer.frames[at + 1 : -1]), outer.frames[-1], len(outer.frames) - at, places
            )
        places[frame.pc, frame.sp, fp] = len(passed)


def remembered(found: Run, words: Words, before: Outer | None) -> Outer | None:
    """Return what to keep of a run that has reached the outermost frame, for the next walk of the thread."""
    total = len(found.passed)
    if total < _DEEP:
        return None
    if found.again:
        return before if 2 * found.again > total else None
    base, view = words
    places = {place: at for place, at in found.places.items() if at < total}
    return Outer((*found.passed, found.frame), base + 8 * len(view), view.tobytes(), places)
