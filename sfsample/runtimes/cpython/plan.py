"""Plans the copies in the pause of a thread, so that its chain of Python frames is whole.

Before the pause, a plan lists the pieces of memory that the last sample of the thread needed.  In the pause,
the plan follows the chain from the current frame outwards, until it meets frames of the last sample.  The
plan copies frames that are not in the list: frames on a new chunk of Python's stack, and frames of
generators.  The whole page of a generator is copied, because generators that were made together often share a
page.  The headers of unknown code objects are copied, too: later, other code objects may get the addresses.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import chain
from mmap import PAGESIZE

from sfsample.core.memory import ADDRESS_SPACE, BytesMemory, Memory, Span, word_in
from sfsample.runtimes import Copying
from sfsample.runtimes.cpython.chain import TAGS, PythonFrame
from sfsample.runtimes.cpython.code_objects import header_of, texts_of
from sfsample.runtimes.cpython.layout import Layout

_MAX_CHUNKS = 64  # chunks of a data stack
_CHUNK_HEADER = 24  # bytes: previous, size, top
_CHUNK_BYTES = 1 << 14  # bytes of a chunk, unless a frame is very large
_MAX_CHUNK_BYTES = 1 << 20
_MAX_STACK_BYTES = 1 << 21  # bytes of all chunks of a thread state
_MAX_PAGES = 16  # pages with frames of generators that a plan lists
_MAX_STEPS = 1000  # steps along the chain in one pause
_STEPS_A_LOOK = 32  # steps between two readings of the clock
_SAME_FRAMES = 4  # frames in a row equal to the last sample, after which the walk ends
_MAX_SEEN = 64  # frames in a row that need no copy, after which the walk ends
_MAX_HEADERS = 200  # headers of code objects that are copied in one pause


class Plan:
    """The copies that one thread needs: thread states, chunks of its stack, and frames elsewhere.

    The plan also copies `gils` and `counters`, the words that change when the target creates an interpreter
    or a thread state.  `trusted` has the addresses of code objects whose headers need no copy.

    `learn` changes `groups` for the next capture; the room still has the groups of the current capture.
    """

    def __init__(
        self, layout: Layout, states: Sequence[int], counters: Sequence[Span], trusted: Collection[int],
        gils: Sequence[Span] = (),
    ) -> None:  # fmt: skip
        self.states, self.counters = tuple(states), tuple(counters)
        self.gils = tuple(gils)
        self._layout, self._trusted = layout, trusted
        self._heads = (*((state, layout.thread_bytes) for state in self.states), *gils, *counters)
        self._pages: tuple[int, ...] = ()  # pages of frames that are in no chunk
        self._untrusted: tuple[int, ...] = ()  # untrusted code objects of the last sample
        self._last: dict[int, Span] = {}  # address of a frame of the last sample -> (previous, executable)
        self.groups: tuple[tuple[Span, ...], ...] = (self._heads,)

    # -- in the pause

    def follow(self, room: Copying, stack: BytesMemory) -> None:
        """Copy the needed pieces that are not in the groups; see `process.beside.BesidePlan`."""
        layout, codes = self._layout, dict.fromkeys(self._untrusted)
        for state in self.states:
            place = room.find(state, layout.thread_bytes)
            if place >= 0 and not room.is_late():
                self._follow_chunks(room, room.words[place + layout.chunk // 8])
                at = room.words[place + layout.thread_frame // 8]
                if layout.has_cframes:
                    at = self._current_frame(room, stack, at)
                end = 0 if layout.thread_base is None else room.words[place + layout.thread_base // 8]
                self._follow_frames(room, stack, (at, end), codes)
        if codes:
            self._copy_headers(room, [*codes][:_MAX_HEADERS])

    def _current_frame(self, room: Copying, stack: BytesMemory, cframe: int) -> int:
        """Return the current frame by the `_PyCFrame` at `cframe`, on the C stack or in a thread state."""
        at = stack.word(cframe + self._layout.cframe_frame)
        if at is None and (place := room.copy(cframe + self._layout.cframe_frame, 8)) >= 0:
            at = room.words[place]
        return at or 0

    def _follow_chunks(self, room: Copying, at: int) -> None:
        for _ in range(_MAX_CHUNKS):
            if not at or room.find(at, _CHUNK_HEADER) >= 0:
                return
            place = room.copy(at, _CHUNK_BYTES)
            if place < 0:
                return
            at = room.words[place]

    def _follow_frames(self, room: Copying, stack: BytesMemory, ends: Span, codes: dict[int, None]) -> None:
        """Copy the missing frames of a thread state; add the code objects that are not trusted to `codes`.

        `ends` has the first frame, and the frame at which the chain ends.  If `_SAME_FRAMES` frames in a row
        are equal to the last sample, the walk ends, because the outer frames are most probably equal, too.
        If an outer frame is missing for this reason, the stack is reported as not whole.
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
        """Copy a frame with its page; return the index of its first word, or -1 if it cannot be read."""
        size = self._layout.frame_bytes
        if room.copy(*_page_of(at, size)) < 0:  # the memory after the page may be unreadable
            return room.copy(at, size)
        return room.find(at, size)

    def _copy_headers(self, room: Copying, codes: list[int]) -> None:
        """Copy headers and strings of code objects, before other code objects can get their addresses."""
        layout = self._layout
        headers = [header_of(layout, code) for code in codes]
        room.copy_all(headers)
        places = [8 * room.find(*header) for header in headers]
        copies = [bytes(room.bytes[place : place + headers[0][1]]) for place in places if place >= 0]
        room.copy_all([*dict.fromkeys(text for header in copies for text in texts_of(layout, header))])

    # -- after the pause

    def learn(self, memory: Memory, frames: Sequence[PythonFrame], *, is_whole: bool) -> None:
        """Plan the pieces of this sample for the next sample.  `frames`: the innermost first."""
        chunks = [self._chunks_of(memory, state) for state in self.states]
        self._learn_pages(memory, frames, [*chain.from_iterable(chunks)])
        loose = tuple(_page_of(page, self._layout.frame_bytes) for page in self._pages)
        groups = (self._heads, *chunks, loose)
        if groups != self.groups:
            self.groups = groups
        self._untrusted = tuple({frame.code for frame in frames if frame.code not in self._trusted})
        innermost = frames[:_MAX_SEEN] if is_whole else ()
        self._last = {frame.address: (frame.previous, frame.executable) for frame in innermost}

    def _chunks_of(self, memory: Memory, state: int) -> tuple[Span, ...]:
        """Return the chunks of a thread state, the oldest first."""
        chunks: list[Span] = []
        at = memory.word(state + self._layout.chunk)
        left, seen = _MAX_STACK_BYTES, {0, None}
        while at not in seen and len(chunks) < _MAX_CHUNKS:
            seen.add(at)
            header = memory.read(at or 0, _CHUNK_HEADER)
            size = word_in(header, 8)
            left -= size
            if not _CHUNK_HEADER < size <= _MAX_CHUNK_BYTES or left < 0:
                break
            chunks.append((at or 0, size & -8))
            at = word_in(header)
        return tuple(reversed(chunks))

    def _learn_pages(self, memory: Memory, frames: Sequence[PythonFrame], chunks: list[Span]) -> None:
        chunks = [(0, 0), *sorted(chunks)]
        below = [(at, chunks[bisect_right(chunks, (at, ADDRESS_SPACE)) - 1]) for at, *_ in frames]
        pages = dict.fromkeys(at & -PAGESIZE for at, (begin, size) in below if at >= begin + size)
        copied = [page for page in self._pages if memory.read(page, 8) is not None]
        if len(copied) < len(self._pages) or not pages.keys() <= {*copied}:
            self._pages = tuple([*dict.fromkeys([*pages, *copied])][:_MAX_PAGES])


def _page_of(at: int, frame_bytes: int) -> Span:
    """Return the span of the page on which a frame begins, and of as many later bytes as a frame has."""
    return at & -PAGESIZE, PAGESIZE + frame_bytes
