"""Releases stopped threads while sfsample computes, and keeps it from being suspended meanwhile.

A thread that was asked to stop and waits for a CPU stops whenever it is given one, perhaps while sfsample
follows the code of a large file (0.3 s for a JVM).  ptrace(2) binds a tracee to one OS thread, and Python
gives another thread no turn in time.  So code that can take milliseconds calls `checkpoint()` on its way: 50
ns while no thread is to stop, otherwise once in a millisecond it captures and releases every thread that
has stopped.  For the same reason no checkpoint may lie between a copy of a stack and its use.

To suspend sfsample (Ctrl-Z) must not suspend the target: code that suspends it takes `SUSPEND_LOCK`, which is
held as long as a thread is traced: one that is held, or was asked to stop and will, or is seized for a trial.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

SUSPEND_LOCK = threading.Lock()
_CHECKPOINT_NS = 1_000_000  # between two collections

_T = TypeVar("_T")
CollectStopped = Callable[[], object]  # called on the OS thread that has added it, as ptrace(2) wants it


class PendingStops:
    """Processes of which a thread is held, or was asked to stop and will: the function that collects each."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._collectors: dict[CollectStopped, int] = {}  # and the OS thread that added it
        self._collected_ns = 0

    def add(self, collect: CollectStopped) -> None:
        """Add a process; the first one waits for SUSPEND_LOCK."""
        with self._mutex:
            if not self._collectors:
                SUSPEND_LOCK.acquire()
            self._collectors[collect] = threading.get_ident()

    def remove(self, collect: CollectStopped) -> None:
        """Take back an `add`; the last one gives SUSPEND_LOCK back."""
        with self._mutex:
            if self._collectors.pop(collect, None) is not None and not self._collectors:
                SUSPEND_LOCK.release()

    def forget(self, os_thread: int) -> None:
        """Take back what an OS thread has added that is stuck: SUSPEND_LOCK must not wait for it."""
        for collect, owner in tuple(self._collectors.items()):
            if owner == os_thread:
                self.remove(collect)

    @contextmanager
    def unsuspended(self) -> Iterator[None]:
        """Keep sfsample from being suspended, while a thread is traced that was not asked to stop."""

        def nothing() -> None:
            pass

        self.add(nothing)
        try:
            yield
        finally:
            self.remove(nothing)

    @property
    def any(self) -> bool:
        """Whether a thread of any process is held, or was asked to stop and will."""
        return bool(self._collectors)

    def checkpoint(self) -> None:
        """Collect threads that have stopped; at most once in a millisecond, and only if there may be any."""
        if not self._collectors or (now := time.perf_counter_ns()) < self._collected_ns + _CHECKPOINT_NS:
            return
        for collect, os_thread in tuple(self._collectors.items()):
            if os_thread == threading.get_ident():
                self._collected_ns = now
                collect()


PENDING_STOPS = PendingStops()
checkpoint = PENDING_STOPS.checkpoint


def with_checkpoints(items: Iterable[_T]) -> Iterator[_T]:
    """Yield items whose production takes long, with a checkpoint before each."""
    for item in items:
        checkpoint()
        yield item
