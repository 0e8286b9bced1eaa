"""Gives samplers the time.  Tests give them another clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock in seconds, from any origin."""

    def now(self) -> float:
        """Return the time in s."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep for that many seconds."""
        ...


class SystemClock:
    """The monotonic clock."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
