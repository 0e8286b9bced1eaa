"""Says what to copy in the pause of a thread, so that its chain of Python frames is whole.

Frames lie on chunks of Python's own stack, and in generators anywhere in the heap.  Generators that were made
together often lie on one page.  So a plan lists the pages of the frames of the last samples of a thread.  In
the pause the plan follows the chain from the current frame outwards, until it meets frames of the last
sample, and copies the pages of frames that are not in its list.  It also copies the headers of unknown code
objects, because after the pause the program may free a function, and another one may get its address.
"""

from collections.abc import Collection, Sequence
from mmap import PAGESIZE

from sfsample.core.memory import BytesMemory, Memory, Span
from sfsample.runtimes import Copying
from sfsample.runtimes.cpython.chain import TAGS, PythonFrame
from sfsample.runtimes.cpython.code_objects import header_of, texts_of
from sfsample.runtimes.cpython.layout import Layout

_MAX_PAGES = 512  # pages of the frames of one sample that are foreseen
_MAX_OTHER_PAGES = 16  # pages of earlier samples that are copied too
_MAX_STEPS = 1000  # steps along the chain in one pause
_STEPS_A_LOOK = 32  # steps between two looks at the clock
_SAME_FRAMES = 4  # frames in a row as in the last sample; those outside are believed to be the same too
_MAX_SEEN = 64  # frames in a row that need no copy; then the walk ends
_MAX_HEADERS = 200  # headers of code objects that are copied in one pause


class Plan:
    """What to copy of one thread: its thread states, and the pages on which its frames lie.

    `counters` are the words that change when the target creates an interpreter or a thread state; they are
    copied too, and so are `gils`.  `trusted` has the addresses of code objects whose headers need no copy.

    `learn` changes `groups` for the next capture; the room still has the groups of the current one.  Both
    begin with the thread states.  All other pieces are found by address.
    """

    def __init__(
        self, layout: Layout, states: Sequence[int], counters: Sequence[Span], trusted: Collection[int],
        gils: Sequence[Span] = (),
    ) -> None:  # fmt: skip
        self.states, self.counters = tuple(states), tuple(counters)
        self.gils = tuple(gils)
        self._layout, self._trusted = layout, trusted
        self._heads = (*((state, layout.thread_bytes) for state in self.states), *gils, *counters)
        self._pages: dict[int, int] = {}  # number of bytes to copy from the start of each page
        self._untrusted: tuple[int, ...] = ()  # code objects of the last sample that are not trusted
        self._last: dict[int, Span] = {}  # address of a frame of the last sample -> (previous, executable)
        self.groups: tuple[tuple[Span, ...], ...] = (self._heads,)

    # -- in the pause

    def follow(self, room: Copying, stack: BytesMemory) -> None:
        """Copy the pieces that are needed but not in the groups; see `process.beside.BesidePlan`."""
        layout, codes = self._layout, dict.fromkeys(self._untrusted)
        for state in self.states:
            place = room.find(state, layout.thread_bytes)
            if place >= 0 and not room.is_late():
                at = room.words[place + layout.thread_frame // 8]
                if layout.has_cframes:
                    at = self._current_frame(room, stack, at)
                end = 0 if layout.thread_base is None else room.words[place + layout.thread_base // 8]
                self._follow_frames(room, stack, (at, end), codes)
        if codes:
            self._copy_headers(room, [*codes][:_MAX_HEADERS])

    def _current_frame(self, room: Copying, stack: BytesMemory, cframe: int) -> int:
        """Return the frame to which a `_PyCFrame` leads; the outermost one lies in the thread state."""
        at = stack.word(cframe + self._layout.cframe_frame)
        if at is None and (place := room.copy(cframe + self._layout.cframe_frame, 8)) >= 0:
            at = room.words[place]
        return at or 0

    def _follow_frames(self, room: Copying, stack: BytesMemory, ends: Span, codes: dict[int, None]) -> None:
        """Copy the frames of a thread state that were not copied; add unknown code objects to `codes`.

        `ends` has the first frame, and the frame at which the chain ends.  If some frames in a row are as in
        the last sample, the walk ends: the frames outside of them are most probably the same too.  If a frame
        is missing because of this, the stack is reported as not whole.
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
        if room.copy(*_piece_of(at, size)) < 0:
            return room.copy(at, size)
        return room.find(at, size)

    def _copy_headers(self, room: Copying, codes: list[int]) -> None:
        """Copy the headers and the strings of code objects, before other ones can get their addresses."""
        layout = self._layout
        headers = [header_of(layout, code) for code in codes]
        room.copy_all(headers)
        places = [8 * room.find(*header) for header in headers]
        copies = [bytes(room.bytes[place : place + headers[0][1]]) for place in places if place >= 0]
        room.copy_all([*dict.fromkeys(text for header in copies for text in texts_of(layout, header))])

    # -- after the pause

    def learn(self, memory: Memory, frames: Sequence[PythonFrame], *, is_whole: bool) -> None:
        """Plan for the next sample the pieces that this sample needed; `frames` has the innermost first."""
        size, needed = self._layout.frame_bytes, dict[int, int]()
        for frame in frames:
            page, count = _piece_of(frame.address, size)
            if page in needed or len(needed) < _MAX_PAGES:
                needed[page] = max(count, needed.get(page, 0))
        pages = self._pages.items()
        copied = {at: count for at, count in pages if memory.word(at + count - 8) is not None}
        if len(copied) < len(self._pages) or any(copied.get(at, 0) < count for at, count in needed.items()):
            others = {page: copied[page] for page in [*copied.keys() - needed.keys()][:_MAX_OTHER_PAGES]}
            self._pages = needed | others
            # the newest page of the stack, which may have been freed, comes last
            self.groups = self._heads, (*reversed(needed.items()),), (*others.items(),)
        self._untrusted = tuple({frame.code for frame in frames if frame.code not in self._trusted})
        innermost = frames[:_MAX_SEEN] if is_whole else ()
        self._last = {frame.address: (frame.previous, frame.executable) for frame in innermost}


def _piece_of(at: int, size: int) -> Span:
    """Return the page on which a frame begins, with the rest of the frame on the next page."""
    page = at & -PAGESIZE
    return page, max(PAGESIZE, (at & -8) + size - page)
