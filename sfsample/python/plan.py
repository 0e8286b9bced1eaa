"""What is copied in the pause of a thread, so that its chain of Python frames is whole.

Before the pause a plan knows what the last sample of the thread needed.  In the pause it follows the chain
from the current frame on, up to where the rest is as it was in the last sample.  Frames that lie in no copy
(of generators, or on a new chunk of Python's stack) are copied then, and so are the headers of code objects
that are not known yet: after the pause the program may have dropped a function, and another one may lie at
its address.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise
from typing import Protocol

from sfsample.core.memory import ADDRESS_SPACE, BytesMemory, Memory, Span
from sfsample.python.chain import TAGS, PythonFrame
from sfsample.python.code_objects import header_of, texts_of
from sfsample.python.layout import Layout, word_in

_MAX_STATES = 8  # of a thread: with all chunks the pieces are fewer than one call takes
_MAX_CHUNKS = 64  # of a data stack
_CHUNK_HEADER = 24  # bytes: previous, size, top
_CHUNK_BYTES = 1 << 14  # of a chunk, but for very large frames
_MAX_CHUNK_BYTES = 1 << 20
_MAX_STACK_BYTES = 1 << 21  # of all chunks of a state
_SLACK_BYTES = 1 << 12  # by which the newest chunk may have grown since the last sample
_PART_BYTES = 1 << 10  # the part that is copied is a multiple of this
_MAX_LOOSE = 64  # frames of generators that are foreseen
_MAX_LINKS = 4000  # from one of them to the next
_MAX_STEPS = 1000  # along the chain in one pause
_STEPS_A_LOOK = 32  # at the clock
_SAME_FRAMES = 4  # that are as in the last sample: what is outside of them is believed to be so too
_MAX_SEEN = 64  # frames without a need for a copy, one behind the other
_MAX_TOGETHER = 16  # frames that are copied at a time
_MAX_HEADERS = 200  # of code objects


class Copying(Protocol):
    """What a plan sees of `process.beside.Room`; `words` are the 8-byte words of all copies of a thread.

    `is_whole`: the groups of the plan are there, one behind the other.
    """

    words: memoryview
    bytes: bytearray
    is_whole: bool

    def find(self, address: int, size: int) -> int:
        """Return the position of the word at an address that was copied with `size` bytes; -1: it was not."""

    def copy(self, address: int, size: int) -> int:
        """Copy a piece; return the position of its first word, or -1 where it cannot be read."""

    def copy_all(self, pieces: Sequence[Span]) -> None:
        """Copy pieces together; those that cannot be read are left out."""

    def is_late(self) -> bool:
        """Whether the time is over in which the thread may be held."""


class Plan:
    """What to copy of one thread: its thread states, the chunks of its stack, and frames that lie elsewhere.

    `learn` changes the groups for the next capture.  The room has those of the capture that goes on: the
    heads come first in both, and all other places are found by address.
    `counters` are copied too.  `trusted` has the code objects whose headers need no copy.
    """

    def __init__(
        self, layout: Layout, states: Sequence[int], counters: Sequence[Span], trusted: Collection[int]
    ) -> None:
        self.listed, self.states, self.counters = states, tuple(states[:_MAX_STATES]), tuple(counters)
        self._layout, self._trusted = layout, trusted
        self._heads = (*((state, layout.thread_bytes) for state in self.states), *counters)
        self._chunks: tuple[tuple[Span, ...], ...] = ()  # of each state, the oldest first
        self._newest = (0,) * len(self.states)
        self._loose: tuple[int, ...] = ()
        self._links: dict[int, int] = {}  # from a frame that is in no chunk to its caller
        self._untrusted: tuple[int, ...] = ()  # code objects of the last sample
        self._last: dict[int, Span] = {}  # frame of the last sample: its words of caller and code object
        self.groups: tuple[tuple[Span, ...], ...] = (self._heads,)

    # -- in the pause

    def follow(self, room: Copying, stack: BytesMemory) -> None:
        """Copy what is needed beyond the groups; see `process.beside.BesidePlan`."""
        layout, codes = self._layout, dict.fromkeys(self._untrusted)
        for number, state in enumerate(self.states):
            size = layout.thread_bytes
            place = number * size // 8 if room.is_whole else room.find(state, size)
            if place >= 0 and not room.is_late():
                chunk = room.words[place + layout.chunk // 8]
                if chunk != self._newest[number] or not room.is_whole:
                    self._follow_chunks(room, chunk)
                at = room.words[place + layout.thread_frame // 8]
                if layout.cframe_frame is not None:
                    at = stack.word(at + layout.cframe_frame) or 0
                end = 0 if layout.thread_base is None else room.words[place + layout.thread_base // 8]
                self._follow_frames(room, stack, (at, end), codes)
        if codes:
            self._copy_headers(room, [*codes][:_MAX_HEADERS])

    def _follow_chunks(self, room: Copying, at: int) -> None:
        for _ in range(_MAX_CHUNKS):
            if not at or room.find(at, _CHUNK_HEADER) >= 0:
                return
            place = room.copy(at, _CHUNK_BYTES)
            if place < 0:
                return
            at = room.words[place]

    def _follow_frames(self, room: Copying, stack: BytesMemory, ends: Span, codes: dict[int, None]) -> None:
        """Copy the frames of one thread state that are in no copy; note code objects that are not known.

        `ends`: the first frame, and the one at which the chain ends.  Where some frames are as they were in
        the last sample, so are those outside of them, most probably; what is missed is said to be missing.
        """
        layout, words, last, trusted = self._layout, room.words, self._last, self._trusted
        previous, executable, size = layout.previous // 8, layout.executable // 8, layout.frame_bytes
        low, high = stack.base, stack.base + len(stack.data)
        (at, end), same, seen = ends, 0, 0
        for step in range(_MAX_STEPS):
            if step % _STEPS_A_LOOK == _STEPS_A_LOOK - 1 and room.is_late():
                return
            if at in (0, end) or same == _SAME_FRAMES or seen == _MAX_SEEN:
                return
            if low <= at < high:  # a sentinel
                at = stack.word(at + layout.previous) or 0
                seen += 1
                continue
            place = room.find(at, size)
            if place < 0:
                place, seen = self._copy_frame(room, at), 0
                if place < 0:
                    return
            now = words[place + previous], words[place + executable]
            if last.get(at) == now:
                same += 1
            elif (code := now[1] & ~TAGS) in trusted:
                same, seen = 0, seen + 1
            else:
                codes[code], same, seen = None, 0, 0
            at = now[0]

    def _copy_frame(self, room: Copying, at: int) -> int:
        """Copy a frame that is in no copy; return the position of its first word, or -1."""
        layout = self._layout
        for begin in self._newest:  # this chunk was copied in part
            if begin <= at < begin + _CHUNK_BYTES and begin:
                return room.copy(at, max((begin + _CHUNK_BYTES - at) & -8, layout.frame_bytes))
        if at not in self._links:
            return room.copy(at, layout.frame_bytes)
        found = [at]
        while (at := self._links.get(at, 0)) and len(found) < _MAX_TOGETHER:
            found.append(at)
        room.copy_all([(frame, layout.frame_bytes) for frame in found])
        return room.find(found[0], layout.frame_bytes)

    def _copy_headers(self, room: Copying, codes: list[int]) -> None:
        """Copy what tells code objects from others that may lie at their addresses later, and their texts."""
        layout = self._layout
        headers = [header_of(layout, code) for code in codes]
        room.copy_all(headers)
        places = [8 * room.find(*header) for header in headers]
        copies = [bytes(room.bytes[place : place + headers[0][1]]) for place in places if place >= 0]
        room.copy_all([*dict.fromkeys(text for header in copies for text in texts_of(layout, header))])

    # -- after it

    def learn(self, memory: Memory, frames: Sequence[PythonFrame], *, is_whole: bool) -> None:
        """Foresee for the next sample what this one needed; `frames`: the innermost first."""
        self._chunks = tuple(self._chunks_of(memory, state) for state in self.states)
        self._newest = tuple(chunks[-1][0] if chunks else 0 for chunks in self._chunks)
        chunks = [*chain.from_iterable(self._chunks)]
        self._learn_loose(memory, frames, chunks)
        loose = tuple((at, self._layout.frame_bytes) for at in self._loose)
        groups = (self._heads, *self._chunks, loose)
        if groups != self.groups:
            self.groups = groups
        self._untrusted = tuple({frame.code for frame in frames if frame.code not in self._trusted})
        innermost = frames[:_MAX_SEEN] if is_whole else ()
        self._last = {frame.address: (frame.previous, frame.executable) for frame in innermost}

    def _chunks_of(self, memory: Memory, state: int) -> tuple[Span, ...]:
        found: list[Span] = []
        at = memory.word(state + self._layout.chunk)
        left, seen = _MAX_STACK_BYTES, {0, None}
        while at not in seen and len(found) < _MAX_CHUNKS:
            seen.add(at)
            header = memory.read(at or 0, _CHUNK_HEADER)
            size = word_in(header, 8)
            left -= size
            if not _CHUNK_HEADER < size <= _MAX_CHUNK_BYTES or left < 0:
                break
            found.append((at or 0, size & -8))
            at = word_in(header)
        return (*reversed(found[1:]), *self._in_use(memory, state, *found[:1]))

    def _in_use(self, memory: Memory, state: int, *newest: Span) -> Iterator[Span]:
        """Yield the part of the newest chunk that will be in use; it does not become smaller."""
        top = memory.word(state + self._layout.chunk_top) or 0
        for at, size in newest:
            used = min(size, top - at + _SLACK_BYTES) & -_PART_BYTES if at <= top <= at + size else size
            before = (had for chunks in self._chunks for begin, had in chunks if begin == at)
            yield at, max([used, *before])

    def _learn_loose(self, memory: Memory, frames: Sequence[PythonFrame], chunks: list[Span]) -> None:
        """Note the frames that are in no chunk, and which follow each other."""
        chunks = [(0, 0), *sorted(chunks)]
        below = [(at, chunks[bisect_right(chunks, (at, ADDRESS_SPACE)) - 1]) for at, *_ in frames]
        addresses = [at for at, (begin, size) in below if at >= begin + size]
        loose = set(addresses)
        if len(self._links) > _MAX_LINKS:
            self._links.clear()
        self._links |= {frame.address: caller.address for frame, caller in pairwise(frames)
                        if frame.address in loose and caller.address in loose}  # fmt: skip
        kept = [at for at in self._loose if memory.read(at, self._layout.frame_bytes) is not None]
        if len(kept) < len(self._loose) or not loose.issubset(kept):
            self._loose = tuple([*dict.fromkeys([*addresses, *kept])][:_MAX_LOOSE])
