"""Reads what parked goroutines wait for: channels, semaphores of locks, descriptors, times.

A goroutine that waits for a channel or a semaphore has a `sudog` for each.  Only the goroutine's stack refers
to the `pollDesc` of a descriptor, and up to Go 1.25 to the `sudog` of a semaphore.  A word there counts if
the memory to which it points refers back to the goroutine.

Source: Go, src/runtime/runtime2.go (sudog), chan.go (hchan), sema.go (semacquire1), netpoll.go (pollDesc).
"""

from collections.abc import Callable, Iterable, Sequence
from struct import unpack_from
from typing import NamedTuple

from sfsample.core.memory import ReadMany, word_in
from sfsample.runtimes.go.layout import GoRuntimeLayout

OBJECT_START = -16  # bytes from the address of a channel or a semaphore to the start of its copy
_OBJECT_BYTES = 56  # bytes of a copy: the state of a channel, or of any lock around its semaphore
_SUDOG_BYTES, _POLL_BYTES = 96, 48
_SUDOG_ELEM, _POLL_FD, _TIMER_WHEN = 24, 8, 8
_MAX_CASES = 16  # channels of one select that are read
_SEARCHED_BYTES = 640  # bytes of the innermost frames of a stack that are searched
_HEAP_BYTES = 1 << 38  # greatest distance in bytes between two objects of the heap
_MAPPED_FROM, _MAPPED_TO = 0x7E << 40, 1 << 47  # addresses of mmap(2): a pollDesc lies outside the heap
_CHANNEL_STATES = ("chan receive", "chan send", "select")
_NO_CHANNEL = ("(nil chan)", "(no cases)")
LOCK_STATES = ("semacquire", "sync.Mutex.", "sync.RWMutex.", "sync.WaitGroup.")


class GoWait(NamedTuple):
    """The wait of a goroutine, as far as its memory shows it."""

    objects: tuple[int, ...] = ()  # addresses of the channels, or of the semaphore's word
    fd: int = -1  # descriptor; -1: none
    until_ns: int = 0  # end of a sleep, CLOCK_MONOTONIC; 0: unknown


class Parked(NamedTuple):
    """A parked goroutine."""

    address: int  # address of its `g`
    head: bytes  # its `g`
    state: str
    sp: int
    stack: bytes


NO_WAIT = GoWait()


class WaitReader:
    """Reads the waits of the goroutines of one process, and keeps the objects that they wait for."""

    def __init__(self, layout: GoRuntimeLayout, read: ReadMany) -> None:
        self._layout, self._read = layout, read
        self.objects: dict[int, bytes] = {}  # copy of each object, from OBJECT_START on

    def waits(self, goroutines: Sequence[Parked]) -> dict[int, GoWait]:
        """Return the wait of each goroutine that has one, by the address of its `g`."""
        found = self._of_sudogs(goroutines) | self._of_descriptors(goroutines) | self._sleeps(goroutines)
        addresses = {address for wait in found.values() for address in wait.objects} - self.objects.keys()
        pieces = [(address + OBJECT_START, _OBJECT_BYTES) for address in addresses]
        copies = zip(addresses, self._read(pieces), strict=True) if pieces else ()
        self.objects |= {address: copy for address, copy in copies if copy}
        return found

    def _of_sudogs(self, goroutines: Sequence[Parked]) -> dict[int, GoWait]:
        layout, found = self._layout, dict[int, GoWait]()
        channels = [(g.address, word_in(g.head, layout.g_waiting))
                    for g in goroutines if _has_channel(g.state)]  # fmt: skip
        for _ in range(_MAX_CASES):
            cases = [(g, data) for g, data in self._pointed(channels, _SUDOG_BYTES) if word_in(data) == g]
            for g, data in cases:
                channel = word_in(data, layout.sudog_link + 16)
                found[g] = GoWait((*found.get(g, NO_WAIT).objects, channel))
            channels = [(g, link) for g, data in cases if (link := word_in(data, layout.sudog_link))]
        for g, data in self._pointed(self._semaphores(goroutines), _SUDOG_BYTES):
            elem = word_in(data, _SUDOG_ELEM)
            if word_in(data) == g and elem and not elem % 4:
                found.setdefault(g, GoWait((elem,)))
        return found

    def _semaphores(self, goroutines: Sequence[Parked]) -> list[tuple[int, int]]:
        """Return addresses that may be the sudogs of goroutines that wait for a semaphore."""
        waiting = [g for g in goroutines if g.state.startswith(LOCK_STATES)]
        if self._layout.notes_semaphore:
            return [(g.address, word_in(g.head, self._layout.g_waiting)) for g in waiting]

        def may_be(g: Parked, word: int) -> bool:
            return abs(word - g.address) < _HEAP_BYTES and not g.sp <= word < g.sp + len(g.stack)

        return [pair for g in waiting for pair in _words(g, may_be)]

    def _of_descriptors(self, goroutines: Sequence[Parked]) -> dict[int, GoWait]:
        found, rg = dict[int, GoWait](), self._layout.poll_waiters
        waiting = (g for g in goroutines if g.state == "IO wait")
        pairs = [
            pair for g in waiting for pair in _words(g, lambda _, word: _MAPPED_FROM <= word < _MAPPED_TO)
        ]
        for g, data in self._pointed(pairs, _POLL_BYTES):
            fd, waiters = word_in(data, _POLL_FD), unpack_from("<QQ", data, rg)
            if g in waiters and fd < 1 << 31:
                found[g] = GoWait(fd=fd)
        return found

    def _sleeps(self, goroutines: Sequence[Parked]) -> dict[int, GoWait]:
        untils = [
            (g.address, word_in(g.head, self._layout.g_until)) for g in goroutines if g.state == "sleep"
        ]
        if not self._layout.has_deadline:
            untils = [(g, word_in(data, _TIMER_WHEN)) for g, data in self._pointed(untils, _TIMER_WHEN + 8)]
        return {g: GoWait(until_ns=until) for g, until in untils if 0 < until < 1 << 63}

    def _pointed(self, pointers: Iterable[tuple[int, int]], size: int) -> list[tuple[int, bytes]]:
        """Return the memory to which pointers lead, each with the goroutine that has the pointer."""
        known = [(g, pointer) for g, pointer in pointers if pointer]
        copies = self._read([(pointer, size) for _, pointer in known]) if known else []
        return [(g, data) for (g, _), data in zip(known, copies, strict=True) if data]


def _has_channel(state: str) -> bool:
    return state.startswith(_CHANNEL_STATES) and not state.endswith(_NO_CHANNEL)


def _words(g: Parked, may_be: Callable[[Parked, int], bool]) -> list[tuple[int, int]]:
    """Return the different words of the innermost frames that are aligned addresses, and may be wanted."""
    words = memoryview(g.stack[:_SEARCHED_BYTES]).cast("Q")
    return [(g.address, word) for word in dict.fromkeys(words) if word and not word % 8 and may_be(g, word)]
