"""The clock that samplers read, so that tests can give them another one."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, from any origin."""

    def now(self) -> float:
        """Return the time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The monotonic clock."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
