"""Caches parts of walks, at most 64 frames each.  A part is reused if its words on the stack are unchanged.

Key: pc and sp of the part's first frame; the third walk with this key caches the part.  No part has the
innermost frame.  The cache lives as long as its `RuleCache`.  A part is valid for a stack copy if the first
frame has the same fp and label, and all words that the rows read have the same values.  The words are return
addresses, and saved frame pointers from which a CFA was computed.  A walk depends on nothing else, so neither
the thread nor the time matters.
If a word has changed, the part loses the frame that read the word and all later frames, and never grows
again.  A key whose part has no frame left is never cached again: `RuleCache.walk` steps frame by frame.
Saves: a new stack takes 57-81 us; without this cache 130 us.  Two walks by one entry have the same frame
objects, so other code can compare stacks quickly (`core.stack.common_tail`).
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sfsample.core.memory import Words
from sfsample.core.stack import Frame
from sfsample.unwind.row import PlainRow

MAX_WALK_FRAMES = 64  # frames of one entry
_MAX_CACHED_FRAMES = 1 << 16  # frames of all entries together
_MAX_ENTRIES = 1 << 14

WalkKey = tuple[int, int]  # pc and sp of a caller's frame
WalkStart = tuple[int, int]  # number of frames before the start, and fp at the start


class CachedWalk(NamedTuple):
    """A part of a walk, and the stack words that the part depends on.  Addresses are run-time addresses."""

    found: str  # label of the first frame
    fp: int | None  # fp that the first frame must have; None: any
    unpack: Callable[[memoryview, int], tuple[int, ...]]  # (stack copy, offset of sp in it) -> the words
    words: tuple[int, ...]  # values of the words when the walk was cached
    readers: tuple[int, ...]  # for each word: index of the first frame that depends on the word
    frames: tuple[Frame, ...]
    end: Frame  # frame after `frames`
    fp_at: int | None  # address of the word with the fp of `end`; None: `end` has the first frame's fp


_NO_WORDS: Final = struct.Struct("").unpack_from
_EMPTY: Final = CachedWalk("", None, _NO_WORDS, (), (), (), Frame(0, 0, None, "", exact=False), None)
# states of a key without a cached walk: four objects, which are compared by `is`
NOT_SEEN, SEEN_ONCE, SEEN_TWICE, NEVER_CACHED = (_EMPTY._replace(fp_at=n) for n in range(4))


class WalkCache:
    """The cached walks.  `rows`: return address -> plain row."""

    def __init__(self, rows: Mapping[int, PlainRow]) -> None:
        self.entries: dict[WalkKey, CachedWalk] = {}
        self._rows = rows
        self._frame_count = 0

    def valid_part(self, walk: CachedWalk, fp: int, words: Words) -> CachedWalk | None:
        """Return the part of `walk` that is valid in the copy `words`, if the first frame has this `fp`."""
        if walk.fp is not None and walk.fp != fp:
            return None
        base, view = words
        try:
            values = walk.unpack(view, walk.frames[0].sp - base)
        except struct.error:  # the copy ends before the last word
            return None
        return walk if values == walk.words else self._cut(walk, values, fp, words)

    def _cut(self, walk: CachedWalk, values: Sequence[int], fp: int, words: Words) -> CachedWalk | None:
        read = zip(walk.readers, values, walk.words, strict=True)
        count = min(reader for reader, value, before in read if value != before)
        end = walk.frames[count]._replace(cfa=None)
        return self._store(walk.frames[0], walk.frames[:count], end, fp, words)

    def add(self, passed: Sequence[Frame], last: Frame, starts: Iterable[WalkStart], words: Words) -> None:
        """Cache parts of a walk that has passed `passed` and ended at `last`; parts begin at `starts`."""
        for start, fp in starts:
            frames = tuple(passed[start : start + MAX_WALK_FRAMES])
            after = passed[start + MAX_WALK_FRAMES :][:1]
            if frames:
                self._store(frames[0], frames, after[0]._replace(cfa=None) if after else last, fp, words)
        if self._frame_count > _MAX_CACHED_FRAMES or len(self.entries) > _MAX_ENTRIES:
            self.entries.clear()
            self._frame_count = 0

    def _store(
        self, first: Frame, frames: tuple[Frame, ...], end: Frame, fp: int, words: Words
    ) -> CachedWalk | None:
        walk = self._cached_walk(frames, end, fp, words) if frames else None
        self.entries[first.pc, first.sp] = walk or NEVER_CACHED
        self._frame_count += len(frames)
        return walk

    def _cached_walk(self, frames: tuple[Frame, ...], end: Frame, fp: int, words: Words) -> CachedWalk | None:
        """Return an entry.  None: a word lies below sp, or the last saved fp lies outside the words."""
        base, view = words
        readers, needs_fp, fp_at = self._readers(frames)
        slots, sp = sorted(readers), frames[0].sp
        if slots[0] < sp or (fp_at is not None and not sp <= fp_at < slots[-1]):
            return None
        gaps = (slot - below for slot, below in zip(slots, (sp, *(s + 8 for s in slots)), strict=False))
        unpack = struct.Struct("=" + "".join(f"{gap}xQ" for gap in gaps)).unpack_from
        values, owners = unpack(view, sp - base), tuple(readers[slot] for slot in slots)
        needed_fp = fp if needs_fp else None
        return CachedWalk(frames[0].found, needed_fp, unpack, values, owners, frames, end, fp_at)

    def _readers(self, frames: Sequence[Frame]) -> tuple[dict[int, int], bool, int | None]:
        """Return (first reader of each word, True if a CFA needs the first fp, address of the last saved fp).

        A walk depends on a saved fp if a CFA is computed from it before another frame saves fp.  The reader
        of such a word is the frame that saved the fp.
        """
        readers: dict[int, int] = {}
        fp_at, saver, needs_fp = None, 0, False
        for number, frame in enumerate(frames):
            row, cfa = self._rows[frame.pc], frame.cfa or 0
            if row.by_fp and fp_at is None:
                needs_fp = True
            elif row.by_fp and fp_at is not None:
                readers.setdefault(fp_at, saver)
            if row.fp is not None:
                fp_at, saver = cfa + row.fp, number
            readers.setdefault(cfa + row.ra, number)
        return readers, needs_fp, fp_at
