"""Releases stopped threads during long computations, and delays Ctrl-Z while sfsample traces a thread.

A thread that sfsample has asked to stop may have to wait for a CPU.  The thread stops when it gets a CPU,
perhaps while sfsample analyses the code of a large file (0.3 s for a JVM).  Only the OS thread of sfsample
that traces the thread can release it (ptrace(2)).  So code that can take milliseconds calls `checkpoint()`
now and then.  At most once in a millisecond, `checkpoint()` captures and releases every thread that has
stopped.  If no stop is pending, the call takes 50 ns.  A checkpoint overwrites the last copy of a stack, so
a caller uses the copy before the next checkpoint.

If sfsample is suspended (Ctrl-Z), the target must go on.  So sfsample holds `SUSPEND_LOCK` while it traces a
thread, and code that suspends sfsample takes this lock.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

SUSPEND_LOCK = threading.Lock()
_CHECKPOINT_NS = 1_000_000  # least time between two collections

_T = TypeVar("_T")
CollectStopped = Callable[[], object]  # captures stopped threads, on the OS thread that adds the function


class OutOfTime(BaseException):
    """Raised in work that takes too long, or at a checkpoint after the end of the recording."""


class PendingStops:
    """The functions that collect stopped threads: one function for each process with a traced thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._collectors: dict[CollectStopped, int] = {}  # value: the OS thread that added the function
        self._collected_ns = 0

    def add(self, collect: CollectStopped) -> None:
        """Add the function of a process.  The first call takes SUSPEND_LOCK, and may have to wait."""
        with self._mutex:
            if not self._collectors:
                SUSPEND_LOCK.acquire()
            self._collectors[collect] = threading.get_ident()

    def remove(self, collect: CollectStopped) -> None:
        """Remove a function; if no function is left, release SUSPEND_LOCK."""
        with self._mutex:
            if self._collectors.pop(collect, None) is not None and not self._collectors:
                SUSPEND_LOCK.release()

    def forget(self, os_thread: int) -> None:
        """Remove the functions of a stuck OS thread, so that it no longer holds SUSPEND_LOCK."""
        for collect, owner in tuple(self._collectors.items()):
            if owner == os_thread:
                self.remove(collect)

    @contextmanager
    def calling(self, collect: CollectStopped) -> Iterator[None]:
        """Add a function during a `with` block; sfsample cannot be suspended in the block."""
        self.add(collect)
        try:
            yield
        finally:
            self.remove(collect)

    @property
    def any(self) -> bool:
        """True while a thread of any process is stopped, or was asked to stop."""
        return bool(self._collectors)

    def checkpoint(self) -> None:
        """Collect the threads that have stopped, at most once in a millisecond."""
        if not self._collectors or (now := time.perf_counter_ns()) < self._collected_ns + _CHECKPOINT_NS:
            return
        for collect, os_thread in tuple(self._collectors.items()):
            if os_thread == threading.get_ident():
                self._collected_ns = now
                collect()


PENDING_STOPS = PendingStops()
checkpoint = PENDING_STOPS.checkpoint


def with_checkpoints(items: Iterable[_T]) -> Iterator[_T]:
    """Yield items that take long to make, with a checkpoint before each item."""
    for item in items:
        checkpoint()
        yield item
