"""Turns Ctrl-C and signals that end a process into a request to stop, so that the result is still written.

A Python signal handler runs when the main thread returns from its present system call.  So other threads
(`process.tracer_thread`) make the calls that may never return.
"""

import os
import signal
import time
from types import FrameType
from typing import Self

from sfsample.core.checkpoint import SUSPEND_LOCK

_ENDING = (signal.SIGINT, signal.SIGTERM)
_SAME_S = 0.2  # time in which two equal signals count as one signal; users press keys more slowly


class Interrupt:
    """A context in which SIGINT and SIGTERM request a stop; the second signal raises KeyboardInterrupt.

    The third signal ends the process at once.  Two equal signals within 0.2 s count as one signal, because
    timeout(1) sends its signal to the process and to the process group.  SIGHUP (the terminal was closed)
    also requests a stop, unless nohup(1) is used.  After Ctrl-Z, sfsample first releases all threads.
    """

    def __init__(self) -> None:
        self.requested = False
        self._last: tuple[int, float] = 0, float("-inf")  # number and time of the last signal
        self._suspending = self._suspend_requested = False
        self._previous: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        """Return True if a stop was requested."""
        return self.requested

    def __enter__(self) -> Self:
        for number in _ENDING:
            self._previous[number] = signal.signal(number, self._request)
        for number in (signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            if signal.getsignal(number) is signal.SIG_DFL:
                handler = self._request if number == signal.SIGHUP else self._suspend
                self._previous[number] = signal.signal(number, handler)
        return self

    def _request(self, number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        is_same = number == self._last[0] and now_s - self._last[1] < _SAME_S
        self._last = number, now_s
        if self.requested and number in _ENDING and not is_same:
            for ending in _ENDING:
                signal.signal(ending, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        """Wait until no thread is held, then suspend sfsample.

        The signal may arrive again during this method.  Then the inner call only notes the signal, and the
        outer call waits again until no thread is held.
        """
        self._suspend_requested = True
        if self._suspending:
            return
        self._suspending = True
        while self._suspend_requested:
            SUSPEND_LOCK.acquire()
            self._suspend_requested = False
            os.kill(os.getpid(), signal.SIGSTOP)
            SUSPEND_LOCK.release()
        self._suspending = False

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
