"""Turns Ctrl-C and the signals that end a process into a request to stop, so the result is still written.

A Python signal handler runs when the main thread returns from the system call that it is in.  So the main
thread makes no call that may never return: another thread does (`process.tracer_thread`, `cli.naming`).
"""

import os
import signal
import time
from types import FrameType
from typing import Self

from sfsample.core.checkpoint import SUSPEND_LOCK

_ENDING = (signal.SIGINT, signal.SIGTERM)
_SAME_S = 0.5


class Interrupt:
    """While it is entered, SIGINT and SIGTERM request a stop; a second one raises KeyboardInterrupt.

    A third one ends the process whatever it does.  SIGTERM twice in half a second is one: timeout(1) sends it
    to the process and to its group.

    SIGHUP (the terminal has gone) requests it too, unless nohup(1) made the process ignore it.  Ctrl-Z
    suspends sfsample, and never the target: a thread that sfsample held would stay stopped too.
    """

    def __init__(self) -> None:
        self.requested = False
        self._terminated_s = float("-inf")  # when SIGTERM came last
        self._suspending = self._suspend_requested = False
        self._previous: dict[signal.Signals, object] = {}

    def __call__(self) -> bool:
        """Whether a stop was requested."""
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
        is_same = number == signal.SIGTERM and now_s - self._terminated_s < _SAME_S
        if number == signal.SIGTERM:
            self._terminated_s = now_s
        if self.requested and number in _ENDING and not is_same:
            for each in _ENDING:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.requested = True

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        """Wait until no thread is held, then suspend sfsample.

        Another such signal may arrive between any two of these lines: it is left to the call that it
        interrupts, as the lock may be free again, and a thread be held.
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
        if self._suspend_requested:  # just now
            os.kill(os.getpid(), number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
