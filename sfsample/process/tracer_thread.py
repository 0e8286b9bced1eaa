"""Runs ptrace work on a separate OS thread, which ends with the work.

ptrace(2) ties tracees to the tracing *thread*; when this thread ends, the kernel releases all tracees.
The process may live on (`sfsample watch` between two slices; a program that uses the library).  It then
traces no thread, not even a thread in uninterruptible sleep that has not stopped yet.

There is one exception: a system call on a target may never return (another program must deliver a page,
userfaultfd(2)).  Then `run` leaves the work behind, and sets the process aside (`process.stuck`).  Threads
that the work has stopped stay stopped until the call returns.  Then the work gets an exception instead of
the result, and ends.

The calling thread waits in `run` and makes no call that can block, so it always receives signals.  Python
raises Ctrl-C in this thread, so Ctrl-C cannot interrupt the work while a target thread is stopped.
`with_names` also uses a separate thread: a look-up of names may block, and signals must still arrive.
"""

import _thread
import ctypes
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Generic, TypeVar

from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.errors import NoReturn, NoThread
from sfsample.process.priority import wake_promptly
from sfsample.process.stop_request import reap_killed_tracees, traces_others_than
from sfsample.process.stuck import LeftBehind, set_aside, target_of, waits_for_sfsample

_T = TypeVar("_T")
_log = logging.getLogger("sfsample.symbolize")
_END_POLL_S = 0.001
_REAP_S = 0.1  # seconds between two attempts to reap killed tracees
_PATIENCE_S = 1.5  # seconds within which the work must end after a stop is wanted
_STUCK_S = 1.0  # seconds in one system call until `run` leaves the work behind, if other work can go on
_SILENCE_S = 0.5  # seconds without a call of `should_stop`, after which the calling thread calls it
_REAP_PENDING_S = 0.01  # seconds between attempts while a stop is pending: an execve(2) may wait for reaping


class TracerThread(Generic[_T]):
    """Runs `work(stop)`; `stop()` is true once `should_stop()` was true, or after an exception in the caller.

    `may_leave(pid)`: True if `run` may leave the work as soon as it is stuck on `pid` (None: unknown).
    """

    def __init__(
        self,
        work: Callable[[Callable[[], bool]], _T],
        should_stop: Callable[[], bool],
        may_leave: Callable[[int | None], bool] = lambda _: False,
    ) -> None:
        self._work = work
        self._should_stop = should_stop
        self._may_leave = may_leave
        self._asked_s = time.monotonic()  # time of the last call of `should_stop`
        # time when `should_stop` was first true, or the caller gave up
        self._stop_wanted_s: float | None = None
        self._work_lock = _thread.allocate_lock()  # held until the work is over
        self._finished = False
        self._result: list[_T] = []
        self._failure: BaseException | None = None
        self._collects = gc.isenabled()
        self._cpu_clock: int | None = None  # clock of the OS thread that does the work
        self._ident = self._os_thread = 0  # ids of this OS thread, for Python and for the kernel
        self.cpu_ns = 0  # CPU time that this OS thread has used
        # seconds for which this OS thread has used no CPU time; a sampler uses CPU time ten times a second
        self.idle_s, self._looked_s = 0.0, time.monotonic()

    def run(self) -> _T:
        """Return the result of the work, or raise its exception.

        Raises NoReturn if the work is left behind, or has not ended 1.5 s after `should_stop` was true.
        Python may raise an exception (Ctrl-C) between any two calls here.  The `threading` module cannot
        handle this: start() may hang the new thread, and join() may mark a running thread as ended.
        """
        # SIGCHLD is blocked here, too: this thread would take the signal for which the tracing thread waits
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            self._wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(signal.getsignal(signal.SIGCHLD)):
            # signals merge: a SIGCHLD that sfsample took may also have reported a child of the program
            os.kill(os.getpid(), signal.SIGCHLD)
        if self._failure is not None:
            raise self._failure
        return self._result[0]

    def _wait(self) -> None:
        started = False
        self._work_lock.acquire()
        try:
            started = True  # set before the call, so that an exception in between is safe
            _thread.start_new_thread(self._main, ())
            while not self._work_lock.acquire(timeout=_REAP_PENDING_S if PENDING_STOPS.any else _REAP_S):
                reap_killed_tracees()  # here Python also handles a signal that arrived just before
                self._note_progress()
                self._raise_if_overdue()
        except RuntimeError:
            started = False
            raise NoThread from None
        finally:
            stop_s = self._stop_wanted_s = self._stop_wanted_s or time.monotonic()
            # `_finished`, not the lock: either thread may hold the lock here
            while started and not self._finished and time.monotonic() < stop_s + _PATIENCE_S:
                time.sleep(_END_POLL_S)
            if started and not self._finished:
                self._leave_behind()

    def _note_progress(self) -> None:
        # a long gap between two calls counts as `_REAP_S`: all of sfsample may have been suspended
        now_s, before_s = time.monotonic(), self._looked_s
        self._looked_s, cpu_ns = now_s, self.cpu_ns
        with suppress(OSError):  # the thread has ended
            cpu_ns = cpu_ns if self._cpu_clock is None else time.clock_gettime_ns(self._cpu_clock)
        self.idle_s = self.idle_s + min(now_s - before_s, _REAP_S) if cpu_ns == self.cpu_ns else 0.0
        self.cpu_ns = cpu_ns

    def _raise_if_overdue(self) -> None:
        if time.monotonic() > self._asked_s + _SILENCE_S:
            self._ask_should_stop()
        is_stuck = self.idle_s > _STUCK_S and not waits_for_sfsample(self._os_thread)
        if is_stuck and self._may_leave(target_of(self._ident)):
            self._stop_wanted_s = float("-inf")
        if self._stop_wanted_s is not None and time.monotonic() > self._stop_wanted_s + _PATIENCE_S:
            pid = target_of(self._ident)
            raise NoReturn(pid, holds_others=traces_others_than(pid))

    def _leave_behind(self) -> None:
        """Undo the changes that the work made for all of sfsample.

        When the stuck call returns, the work gets LeftBehind instead of the result.  Then the work only
        releases the threads that it holds, and ends.
        """
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(LeftBehind))
        if self.idle_s > _STUCK_S and (pid := target_of(self._ident)) is not None:
            set_aside(pid, self._os_thread)
        PENDING_STOPS.forget(self._ident)
        if self._collects:
            gc.enable()

    def _ask_should_stop(self) -> bool:
        self._asked_s = time.monotonic()
        if self._stop_wanted_s is None and self._should_stop():
            self._stop_wanted_s = self._asked_s
        return self._stop_wanted_s is not None

    def _main(self) -> None:
        # a signal that arrives in this thread would not wake the thread that runs Python's handlers
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._ident, self._os_thread = _thread.get_ident(), _thread.get_native_id()
            self._cpu_clock = time.pthread_getcpuclockid(self._ident)
            wake_promptly()
            self._result.append(self._work(self._ask_should_stop))
        except BaseException as failure:  # noqa: BLE001 - `run` raises it again
            self._failure = failure
        finally:
            self._finished = True
            self._work_lock.release()


def with_names(
    work: Callable[[], _T],
    give_up: Callable[[str], None],
    should_stop: Callable[[], bool],
    until_s: float = inf,
) -> _T:
    """Run `work`, which looks up names, in another thread; return its result.

    (A file of the target may be in a file system that does not answer, FUSE or NFS, and the main thread
    handles a signal only when its system call returns.)  `work` must end soon after a first signal, and soon
    after `until_s` (time.monotonic).  If `work` is late, fails or is stuck, `give_up(why)` ends all look-ups,
    and the calling thread does `work` again.  The calling thread also does `work` if no thread can start.
    """
    was_requested = should_stop()

    def should_end() -> bool:
        return (should_stop() and not was_requested) or time.monotonic() > until_s

    try:
        try:
            return TracerThread(lambda _: work(), should_end, lambda _: True).run()
        except NoThread:
            return work()
    except NoReturn:
        why = "took too long" + (", and was ended by a signal" if should_stop() else "")
    except Exception as failure:  # noqa: BLE001 - it costs names, not the result
        _log.debug("looking up names failed", exc_info=True)
        why = f"failed: {failure!r}"
    give_up(f"the look-up of names {why}")
    return work()
