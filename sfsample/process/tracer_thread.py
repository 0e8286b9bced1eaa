"""Runs the work that uses ptrace on an OS thread of its own, which ends with the work.

ptrace(2) ties tracees to the tracing *thread*; when that thread ends, the kernel releases all of them.  So no
thread stays traced by a program that lives on (`sfsample watch` between two slices, a user of the library),
not even one in uninterruptible sleep that would stop only much later.  There is one exception: a system call
on a target may never return (a page that another program must bring, userfaultfd(2)).  Then `run` ends
without the work, and the kernel releases its tracees when the program ends.

The calling thread waits in `run` and makes no call that can block, so it always hears signals; Ctrl-C, which
Python raises there, cannot fall into the time during which a target thread is stopped.
"""

import _thread
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.errors import NoReturn, NoThread
from sfsample.process.priority import wake_promptly
from sfsample.process.stop_request import reap_killed_tracees

_T = TypeVar("_T")
_END_POLL_S = 0.001
_REAP_S = 0.1  # between two attempts to reap killed tracees
_PATIENCE_S = 1.5  # for the work to end, once a stop is wanted
_SILENCE_S = 0.5  # if the work has not asked `should_stop` for so long, the calling thread asks
_REAP_PENDING_S = 0.01  # while stops are pending: an execve(2) of the target may wait until they are reaped


class TracerThread(Generic[_T]):
    """Runs `work(stop)`; `stop()` is true once `should_stop()` was, or the caller has got an exception."""

    def __init__(self, work: Callable[[Callable[[], bool]], _T], should_stop: Callable[[], bool]) -> None:
        self._work = work
        self._should_stop = should_stop
        self._asked_s = time.monotonic()  # when `should_stop` was last asked
        self._stop_wanted_s: float | None = None  # when it was first true, or the waiting thread gave up
        self._work_lock = _thread.allocate_lock()  # held until the work is over
        self._finished = False
        self._result: list[_T] = []
        self._failure: BaseException | None = None
        self._cpu_clock: int | None = None  # of the OS thread that does the work
        self._cpu_ns, self._progress_s = -1, time.monotonic()

    @property
    def idle_s(self) -> float:
        """For how long the work has used no CPU time; work that samples uses some ten times a second."""
        return time.monotonic() - self._progress_s

    def run(self) -> _T:
        """Return what the work returns, or raise what it raises.

        Raises NoReturn where the work has not ended 1.5 s after `should_stop` was true.
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
        self._work_lock.acquire()
        try:
            started = True  # before the call, so that an exception between the two is safe
            _thread.start_new_thread(self._main, ())
            while not self._work_lock.acquire(timeout=_REAP_PENDING_S if PENDING_STOPS.any else _REAP_S):
                reap_killed_tracees()  # and Python handles a signal that arrived just before
                self._note_progress()
                self._raise_if_overdue()
        except RuntimeError:
            started = False
            raise NoThread from None
        finally:
            stop_s = self._stop_wanted_s = self._stop_wanted_s or time.monotonic()
            # the lock may be held by either thread, so it says nothing
            while started and not self._finished and time.monotonic() < stop_s + _PATIENCE_S:
                time.sleep(_END_POLL_S)

    def _note_progress(self) -> None:
        with suppress(OSError):  # it has ended
            cpu_ns = self._cpu_ns if self._cpu_clock is None else time.clock_gettime_ns(self._cpu_clock)
            if cpu_ns != self._cpu_ns:
                self._cpu_ns, self._progress_s = cpu_ns, time.monotonic()

    def _raise_if_overdue(self) -> None:
        if time.monotonic() > self._asked_s + _SILENCE_S:
            self._ask_should_stop()
        if self._stop_wanted_s is not None and time.monotonic() > self._stop_wanted_s + _PATIENCE_S:
            raise NoReturn

    def _ask_should_stop(self) -> bool:
        self._asked_s = time.monotonic()
        if self._stop_wanted_s is None and self._should_stop():
            self._stop_wanted_s = self._asked_s
        return self._stop_wanted_s is not None

    def _main(self) -> None:
        # a signal that arrives in this thread would not wake the thread that runs Python's handlers
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._cpu_clock = time.pthread_getcpuclockid(_thread.get_ident())
            wake_promptly()
            self._result.append(self._work(self._ask_should_stop))
        except BaseException as failure:  # noqa: BLE001 - `run` raises it again
            self._failure = failure
        finally:
            self._finished = True
            self._work_lock.release()
