"""Runs the work that uses ptrace on an OS thread of its own, which ends with the work.

ptrace(2) ties tracees to the tracing *thread*; when that thread ends, the kernel releases all of them.  So
whatever goes wrong, no thread stays traced by a program that lives on (`sfsample watch` between two slices, a
user of the library), not even a thread in uninterruptible sleep that would stop only much later.  It also
keeps Ctrl-C, which Python raises in the main thread, out of the time during which a target thread is stopped.
"""

import _thread
import os
import signal
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.errors import NoThread
from sfsample.process.priority import wake_promptly
from sfsample.process.stop_request import reap_killed_tracees

_T = TypeVar("_T")
_END_POLL_S = 0.001
_REAP_S = 0.1  # between two attempts to reap killed tracees
_REAP_PENDING_S = 0.01  # while stops are pending: an execve(2) of the target may wait until they are reaped


class TracerThread(Generic[_T]):
    """Runs `work(should_stop)`; an exception in the waiting thread makes `should_stop` true."""

    def __init__(self, work: Callable[[Callable[[], bool]], _T], should_stop: Callable[[], bool]) -> None:
        self._work = work
        self._should_stop = should_stop
        self._abandoned = False
        self._running = _thread.allocate_lock()  # held until the work is over
        self._finished = False
        self._result: list[_T] = []
        self._failure: BaseException | None = None

    def run(self) -> _T:
        """Return what the work returns, or raise what it raises.

        An exception (Ctrl-C) may be raised between any two calls here.  The `threading` module does not allow
        that: an interrupted start() can hang the new thread, an interrupted join() takes it for ended.
        """
        # block SIGCHLD here too, or this thread would take the signal that the tracing thread waits for
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            self._wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(signal.getsignal(signal.SIGCHLD)):
            # SIGCHLDs merge: one that sfsample took may also have been for a child of the calling program
            os.kill(os.getpid(), signal.SIGCHLD)
        if self._failure is not None:
            raise self._failure
        return self._result[0]

    def _wait(self) -> None:
        started = False
        self._running.acquire()
        try:
            started = True  # before the call, so that an exception between the two is safe
            _thread.start_new_thread(self._main, ())
            while not self._running.acquire(timeout=_REAP_PENDING_S if PENDING_STOPS.any else _REAP_S):
                reap_killed_tracees()  # and Python handles a signal that arrived just before
        except RuntimeError:
            started = False
            raise NoThread from None
        finally:
            self._abandoned = True
            while started and not self._finished:  # the lock may be held by either thread
                time.sleep(_END_POLL_S)

    def _main(self) -> None:
        # a signal that arrives in this thread would not wake the thread that runs Python's handlers
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            wake_promptly()
            self._result.append(self._work(lambda: self._abandoned or self._should_stop()))
        except BaseException as failure:  # noqa: BLE001 - `run` raises it again
            self._failure = failure
        finally:
            self._finished = True
            self._running.release()
