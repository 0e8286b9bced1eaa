"""What holds as long as a thread of a target is held, or was asked to stop and will.

Law: the gate is closed, so that to stop us (Ctrl-Z) is never to stop the target: who holds PAUSE, holds it
open.  And nobody stands while we compute: what can take milliseconds calls `checkpoint` on its way, and
whoever has asked threads to stop captures those that have, and lets them go.  (So nothing may breathe between
a copy of a stack and its use: capture, and reading of who sleeps.)
"""

import _thread
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

SUSPEND_LOCK = _thread.allocate_lock()
_BREATH_NS = 1_000_000

_T = TypeVar("_T")
CaptureStopped = Callable[
    [], object
]  # called on the OS thread that has closed the gate, as ptrace(2) wants it


class PendingStops:
    """Several targets may hold threads at once; the first closes the gate, the last one opens it."""

    def __init__(self) -> None:
        self._mutex = _thread.allocate_lock()
        self._closed: dict[CaptureStopped, int] = {}  # by which of our OS threads
        self._breathed_ns = 0

    def add(self, let_go: CaptureStopped) -> None:
        """Close the gate; not while somebody holds it open."""
        with self._mutex:
            if not self._closed:
                SUSPEND_LOCK.acquire()
            self._closed[let_go] = _thread.get_ident()

    def remove(self, let_go: CaptureStopped) -> None:
        """Take back an `add`."""
        with self._mutex:
            del self._closed[let_go]
            if not self._closed:
                SUSPEND_LOCK.release()

    @property
    def closed(self) -> bool:
        """Whether a thread of any target is held, or was asked to stop and will."""
        return bool(self._closed)

    def checkpoint(self) -> None:
        """Let go of threads that have stopped; done at most once in a millisecond, and only if some may."""
        if not self._closed or (now := time.perf_counter_ns()) < self._breathed_ns + _BREATH_NS:
            return
        for let_go, ours in tuple(self._closed.items()):
            if ours == _thread.get_ident():
                self._breathed_ns = now
                let_go()


PENDING_STOPS = PendingStops()
checkpoint = PENDING_STOPS.checkpoint


def with_checkpoints(items: Iterable[_T]) -> Iterator[_T]:
    """Yield what comes out of something long, and breathe."""
    for item in items:
        checkpoint()
        yield item
