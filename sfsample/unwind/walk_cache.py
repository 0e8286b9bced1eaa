"""Stretches of stack that were walked before, and are passed at once when they come again.

Law: the walk from a frame is settled by its pc, sp and fp and by the words of the stack that the rows read:
return addresses, and those saved frame pointers from which a CFA was found.  A stretch keeps just these
words, and is passed only where each of them is what it was; nothing else is assumed, of threads or of time.
It consists of plain rows, those of the fast lane, and is forgotten with them.  Where a word has changed it is
cut before the frame that has read it; from such a fork on, the lane goes its steps.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sfsample.core.memory import Words
from sfsample.core.stack import Frame
from sfsample.unwind.plain_row import PlainRow

LONGEST = 64  # frames
_MOST_FRAMES = 1 << 16  # in all stretches together
_MOST_PLACES = 1 << 14

Place = tuple[int, int]  # pc and sp of a frame that has called
Start = tuple[int, int]  # how many frames a walk had passed, and the fp then


class CachedWalk(NamedTuple):
    """Frames, the one that comes after them, and the words that say so."""

    found: str  # label of the first frame
    fp: int | None  # the fp that is needed at the first frame; None: any
    unpack: Callable[[memoryview, int], tuple[int, ...]]  # gives the words that are there now
    words: tuple[int, ...]  # that were read
    readers: tuple[int, ...]  # the first frame that each word matters to
    frames: tuple[Frame, ...]
    end: Frame
    fp_at: int | None  # where the fp at the end is saved; None: unchanged


_EMPTY: Final = struct.Struct("").unpack_from
_NONE: Final = CachedWalk("", None, _EMPTY, (), (), (), Frame(0, 0, None, "", exact=False), None)
# places: never met, met once, met twice, where ways part
NEW, ONCE, TWICE, FORK = (_NONE._replace(fp_at=n) for n in range(4))


class WalkCache:
    """Those of one lane, whose plain rows are `plans`, by the place where they begin."""

    def __init__(self, plans: Mapping[int, PlainRow]) -> None:
        self.at: dict[Place, CachedWalk] = {}
        self._plans = plans
        self._frames = 0

    def clear(self) -> None:
        """Forget them all."""
        self.at.clear()
        self._frames = 0

    def fitting(self, stretch: CachedWalk, fp: int, words: Words) -> CachedWalk | None:
        """Return what of `stretch` holds in this copy, for a walk that has come to its first frame."""
        if stretch.fp is not None and stretch.fp != fp:
            return None
        base, view = words
        try:
            now = stretch.unpack(view, stretch.frames[0].sp - base)
        except struct.error:  # the copy ends before
            return None
        return stretch if now == stretch.words else self._cut(stretch, now, fp, words)

    def _cut(self, stretch: CachedWalk, now: Sequence[int], fp: int, words: Words) -> CachedWalk | None:
        """Leave of a stretch the frames to which no word matters that has changed."""
        read = zip(stretch.readers, now, stretch.words, strict=True)
        left = min(reader for reader, word, before in read if word != before)
        end = stretch.frames[left]._replace(cfa=None)
        return self._keep(stretch.frames[0], stretch.frames[:left], end, fp, words)

    def learn(self, passed: Sequence[Frame], reached: Frame, starts: Iterable[Start], words: Words) -> None:
        """Keep stretches of a walk, from some of the frames that it has passed."""
        for start, fp in starts:
            frames, after = tuple(passed[start : start + LONGEST]), passed[start + LONGEST :][:1]
            if frames:
                self._keep(frames[0], frames, after[0]._replace(cfa=None) if after else reached, fp, words)
        if self._frames > _MOST_FRAMES or len(self.at) > _MOST_PLACES:
            self.clear()

    def _keep(
        self, first: Frame, frames: tuple[Frame, ...], end: Frame, fp: int, words: Words
    ) -> CachedWalk | None:
        made = self._made(frames, end, fp, words) if frames else None
        self.at[first.pc, first.sp] = made or FORK
        self._frames += len(frames)
        return made

    def _made(self, frames: tuple[Frame, ...], end: Frame, fp: int, words: Words) -> CachedWalk | None:
        """Return a stretch; None: a word that it needs lies below it, or the last fp above it."""
        base, view = words
        readers, needs_fp, fp_at = self._readers(frames)
        slots, sp = sorted(readers), frames[0].sp
        if slots[0] < sp or (fp_at is not None and not sp <= fp_at < slots[-1]):
            return None
        gaps = (slot - below for slot, below in zip(slots, (sp, *(s + 8 for s in slots)), strict=False))
        unpack = struct.Struct("=" + "".join(f"{gap}xQ" for gap in gaps)).unpack_from
        read, found, owners = unpack(view, sp - base), frames[0].found, tuple(readers[slot] for slot in slots)
        return CachedWalk(found, fp if needs_fp else None, unpack, read, owners, frames, end, fp_at)

    def _readers(self, frames: Sequence[Frame]) -> tuple[dict[int, int], bool, int | None]:
        """Return the words that were read, whether the first fp was, and where the last one is.

        A saved fp matters from the frame on that has saved it, if a CFA is found from it before the next one.
        """
        readers: dict[int, int] = {}
        fp_at, saver, needs_fp = None, 0, False
        for number, frame in enumerate(frames):
            plan, cfa = self._plans[frame.pc], frame.cfa or 0
            if plan.by_fp and fp_at is None:
                needs_fp = True
            elif plan.by_fp and fp_at is not None:
                readers.setdefault(fp_at, saver)
            if plan.fp is not None:
                fp_at, saver = cfa + plan.fp, number
            readers.setdefault(cfa + plan.ra, number)
        return readers, needs_fp, fp_at
