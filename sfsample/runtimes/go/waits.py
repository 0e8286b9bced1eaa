"""Finds the objects for which parked goroutines wait: channels, semaphores of locks, descriptors, times.

A goroutine has a `sudog` for each channel or semaphore for which it waits.  Only the goroutine's stack points
to the `pollDesc` of a descriptor and, up to Go 1.25, to the `sudog` of a semaphore.  sfsample uses a word of
the stack only if the memory to which the word points refers back to the goroutine.

Source: Go, src/runtime/runtime2.go (sudog), chan.go (hchan), sema.go (semacquire1), netpoll.go (pollDesc).
"""

from collections.abc import Callable, Iterable, Sequence
from struct import unpack_from

from sfsample.core.memory import ReadMany, word_in
from sfsample.runtimes.go.layout import Goroutine, GoRuntimeLayout, GoWait

OBJECT_START = -16  # bytes from the address of a channel or a semaphore to the start of its copy
_OBJECT_BYTES = 56  # bytes of a copy: the state of a channel, or of any lock around its semaphore
_SUDOG_BYTES, _POLL_BYTES = 96, 48
_SUDOG_ELEM, _POLL_FD, _TIMER_WHEN = 24, 8, 8
MAX_CASES = 64  # channels of one select that are read
_SEARCHED_BYTES = 640  # bytes of the innermost frames of a stack that are searched
_MAX_SEARCHES = 4  # goroutines of a batch whose frames are searched
_CHANNEL_STATES = ("chan receive", "chan send", "select")
_NO_CHANNEL = ("(nil chan)", "(no cases)")
LOCK_STATES = ("semacquire", "sync.Mutex.", "sync.RWMutex.", "sync.WaitGroup.")


class WaitReader:
    """Reads the waits of the goroutines of one process, and keeps the objects for which they wait."""

    def __init__(self, layout: GoRuntimeLayout, read: ReadMany) -> None:
        self._layout, self._read = layout, read
        self.objects: dict[int, bytes] = {}  # copy of each object, from OBJECT_START on
        # distances from sp to words that pointed to a sudog or a pollDesc, in goroutines read before
        self._sudog_places, self._poll_places = set[int](), set[int]()

    def waits(self, parked: Sequence[Goroutine]) -> dict[int, GoWait]:
        """Return the waits that sfsample finds, by the address of the goroutine's `g`."""
        locked = [g for g in parked if g.state.startswith(LOCK_STATES)]
        found = self._of_channels(parked) | self._of_locks(locked)
        found |= self._of_descriptors([g for g in parked if g.state == "IO wait"])
        found |= self._sleeps([g for g in parked if g.state == "sleep"])
        addresses = {address for wait in found.values() for address in wait.objects} - self.objects.keys()
        pieces = [(address + OBJECT_START, _OBJECT_BYTES) for address in addresses]
        copies = zip(addresses, self._read(pieces), strict=True) if pieces else ()
        self.objects |= {address: copy for address, copy in copies if copy}
        return found

    def _of_channels(self, parked: Sequence[Goroutine]) -> dict[int, GoWait]:
        link, objects = self._layout.sudog_link, dict[int, tuple[int, ...]]()
        waiters = [g for g in parked if g.state.startswith(_CHANNEL_STATES)]
        sudogs = [(g.address, g.waiting) for g in waiters if not g.state.endswith(_NO_CHANNEL)]
        for _ in range(MAX_CASES):
            cases = [(g, data) for g, data in self._pointed(sudogs, _SUDOG_BYTES) if word_in(data) == g]
            for g, data in cases:
                objects[g] = *objects.get(g, ()), word_in(data, link + 16)
            sudogs = [(g, word_in(data, link)) for g, data in cases]
        return {g: GoWait(channels) for g, channels in objects.items()}

    def _of_locks(self, locked: Sequence[Goroutine]) -> dict[int, GoWait]:
        if self._layout.notes_semaphore:
            sudogs = self._pointed([(g.address, g.waiting) for g in locked], _SUDOG_BYTES)
        else:
            sudogs = self._on_stacks(locked, self._sudog_places, _SUDOG_BYTES, lambda data: (word_in(data),))
        elems = ((g, word_in(data, _SUDOG_ELEM)) for g, data in sudogs if word_in(data) == g)
        return {g: GoWait((elem,)) for g, elem in elems if elem and not elem % 4}

    def _of_descriptors(self, waiting: Sequence[Goroutine]) -> dict[int, GoWait]:
        def waiters(data: bytes) -> tuple[int, ...]:
            return unpack_from("<QQ", data, self._layout.poll_waiters)

        found = self._on_stacks(waiting, self._poll_places, _POLL_BYTES, waiters)
        fds = ((g, word_in(data, _POLL_FD)) for g, data in found)
        return {g: GoWait(fd=fd) for g, fd in fds if fd < 1 << 31}

    def _sleeps(self, sleeping: Sequence[Goroutine]) -> dict[int, GoWait]:
        untils = [(g.address, g.until) for g in sleeping]
        if not self._layout.has_deadline:
            untils = [(g, word_in(data, _TIMER_WHEN)) for g, data in self._pointed(untils, _TIMER_WHEN + 8)]
        return {g: GoWait(until_ns=until) for g, until in untils if 0 < until < 1 << 63}

    def _on_stacks(
        self, waiting: Sequence[Goroutine], places: set[int], size: int,
        refers_to: Callable[[bytes], tuple[int, ...]],
    ) -> list[tuple[int, bytes]]:  # fmt: skip
        """Return the memory to which a word in the innermost frames points, if the memory refers back to `g`.

        `places`: distances of such words from sp.  Goroutines that wait for the same kind of object have the
        same innermost frames, so sfsample searches the frames of only a few goroutines for more distances.
        """
        found, left = dict[int, bytes](), [*waiting]
        for searched in range(_MAX_SEARCHES + 1):
            words = ((g.address, _pointer(g, place)) for g in left for place in places)
            found |= {g: data for g, data in self._pointed(words, size) if g in refers_to(data)}
            left = [g for g in left if g.address not in found]
            if not left:
                break
            g = left[min(searched, len(left) - 1)]
            frames = range(0, min(len(g.stack), _SEARCHED_BYTES), 8)
            pointed = ((place, self._read([(_pointer(g, place), size)])[0]) for place in frames)
            places |= {place for place, data in pointed if data and g.address in refers_to(data)}
        return [*found.items()]

    def _pointed(self, pointers: Iterable[tuple[int, int]], size: int) -> list[tuple[int, bytes]]:
        """Return the memory to which each pointer leads, with the goroutine that has the pointer."""
        known = [(g, pointer) for g, pointer in pointers if pointer]
        copies = self._read([(pointer, size) for _, pointer in known]) if known else []
        return [(g, data) for (g, _), data in zip(known, copies, strict=True) if data]


def _pointer(goroutine: Goroutine, place: int) -> int:
    """Return the word `place` bytes above sp; 0: it points into the stack, which has no sudog or pollDesc."""
    word = word_in(goroutine.stack, place)
    return 0 if goroutine.sp <= word < goroutine.high else word
