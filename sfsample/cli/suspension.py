"""Suspends sfsample (Ctrl-Z) only while it holds no thread, because that thread would stay stopped too."""

import os
import signal
from types import FrameType

from sfsample.core.checkpoint import SUSPEND_LOCK


class SuspendHandler:
    """A signal handler for SIGTSTP, SIGTTIN and SIGTTOU."""

    def __init__(self) -> None:
        self._suspended = False  # this handler has the lock, and sfsample has just been continued

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Wait until no thread is held, then suspend sfsample."""
        if self._suspended:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        SUSPEND_LOCK.acquire()
        self._suspended = True
        os.kill(os.getpid(), signal.SIGSTOP)
        SUSPEND_LOCK.release()
        self._suspended = False
