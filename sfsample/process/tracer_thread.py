"""Work that traces runs on an OS thread of its own, which ends with the work.

Law: ptrace(2) ties tracees to the tracing *thread*; when that ends, the kernel lets go of all of them.  So
whatever goes wrong, nothing stays traced by a program that lives on (a watch between two slices, a library
user), not even a thread that sleeps uninterruptibly and would stop only tomorrow.  It also keeps Ctrl-C,
which Python raises in the main thread, out of the time during which a thread is stopped.
"""

import _thread
import os
import signal
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.errors import NoThread
from sfsample.process.priority import run_promptly
from sfsample.process.stop_request import reap_killed_tracees

_T = TypeVar("_T")
_LOOK_S = 0.001
_WAKE_S = 0.1
_SOON_S = 0.01  # an execve(2) of the target may wait for us to bury its dead


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

        Built so that an exception may come between any two calls here.  The `threading` module is not: an
        interrupted start() can hang the new thread, an interrupted join() takes it for ended.
        """
        # SIGCHLD is blocked here too, or this thread would take the one that the tracing thread sleeps on
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            self._wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(signal.getsignal(signal.SIGCHLD)):
            # SIGCHLDs merge: one that we took may have stood for a child of the program that uses us
            os.kill(os.getpid(), signal.SIGCHLD)
        if self._failure is not None:
            raise self._failure
        return self._result[0]

    def _wait(self) -> None:
        started = False
        self._running.acquire()
        try:
            started = True  # no call in between
            _thread.start_new_thread(self._main, ())
            while not self._running.acquire(timeout=_SOON_S if PENDING_STOPS.any else _WAKE_S):
                reap_killed_tracees()  # and a signal that came just before we slept is handled now
        except RuntimeError:
            started = False
            raise NoThread from None
        finally:
            self._abandoned = True
            while started and not self._finished:  # whose the lock is, nobody knows
                time.sleep(_LOOK_S)

    def _main(self) -> None:
        # a signal that the kernel hands to this thread would not wake the one that runs Python's handlers
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            run_promptly()
            self._result.append(self._work(lambda: self._abandoned or self._should_stop()))
        except BaseException as failure:  # noqa: BLE001 - raised again where it is awaited
            self._failure = failure
        finally:
            self._finished = True
            self._running.release()
