"""When to sample: one tick in every interval of 1/rate, at an instant of it that nobody can foresee.

Law: interval k begins at start + k / rate, and its tick is drawn from it with uniform probability (so the
rate is exact, two ticks are up to two intervals apart, and no periodic work of the target can keep step).
There are as many intervals as fit, at least one; the last is cut off where the time is over.  A tick whose
interval has passed is counted as missed and never made up for.  Reads no clock.
"""

from collections.abc import Callable
from math import ceil, inf
from random import Random

# One is drawn at every look at a thread, so it must not cost a system call.  A generator of our own: that of
# the program that uses us may have been given a seed.
uniform = Random().random  # noqa: S311 - chance, not a secret


class Schedule:
    """Ticks from `start` (seconds of any clock); `duration` None: without an end."""

    def __init__(
        self, start: float, rate: float, duration: float | None, jitter: Callable[[], float] = uniform
    ) -> None:
        self._start = start
        self._rate = rate
        self._intervals = inf if duration is None else duration * rate
        self._total = None if duration is None else max(1, round(self._intervals))
        self._jitter = jitter
        self.ticks = 0  # that were due so far, taken or not

    @property
    def over(self) -> bool:
        """Whether there are no more ticks."""
        return self._total is not None and self.ticks >= self._total

    @property
    def end(self) -> float:
        """When the time is over."""
        return self._start + self._intervals / self._rate

    def next(self) -> float:
        """Return when the next tick is due."""
        length = min(1.0, self._intervals - self.ticks)
        return self._start + (self.ticks + self._jitter() * length) / self._rate

    def take(self, now: float) -> int:
        """Take the tick that is due; return how many were missed instead, then it is not taken."""
        missed = int((now - self._start) * self._rate - self.ticks)
        if self._total is not None:
            missed = min(missed, self._total - self.ticks)
        self.ticks += max(1, missed)
        return max(0, missed)

    def skip(self, until: float) -> int:
        """Leave out the ticks whose intervals begin before `until`; return how many."""
        left = ceil((until - self._start) * self._rate) - self.ticks
        if self._total is not None:
            left = min(left, self._total - self.ticks)
        self.ticks += max(0, left)
        return max(0, left)
