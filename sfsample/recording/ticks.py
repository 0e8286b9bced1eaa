"""Draws the ticks, the times to sample: one tick in every interval of 1/rate, at a random instant of it.

`OverheadLimit` says which ticks to leave out.

Interval k begins at start + k / rate, and its tick is drawn from it with uniform probability.  So the rate is
exact, two ticks are up to two intervals apart, and no periodic work of the target can keep step with them.
As many intervals as fit into the duration, at least one; the last may be shorter.  No clock is read here.

Invariant: a tick whose interval has passed is counted as missed and never made up for
(tests/recording/test_ticks.py).
"""

from collections import deque
from collections.abc import Callable
from math import ceil, inf
from random import Random

# A number is drawn at every turn of a thread, so it must not cost a system call.  The generator is sfsample's
# own, because a program that uses the library may have seeded the common one.
uniform = Random().random  # noqa: S311 - a random instant, not a secret

_MAX_SAVED_S = 0.25  # limit of unused time, in seconds of elapsed time
_MAX_DEBT_S = 2.0
_BURST_TICKS = 3  # ticks; what each of so many ticks in a row costs is no burst


class Schedule:
    """The ticks of a recording that begins at `start` (seconds of any clock).

    `rate` is in Hz, `duration` in s; None: without an end.  `jitter` gives random numbers from 0 to 1.
    """

    def __init__(
        self, start: float, rate: float, duration: float | None, jitter: Callable[[], float] = uniform
    ) -> None:
        self._start = start
        self._rate = rate
        self._intervals = inf if duration is None else duration * rate
        self._total = None if duration is None else max(1, round(self._intervals))
        self.end = start + self._intervals / rate  # end of the duration, on the clock of `start`
        self._jitter = jitter
        self.ticks = 0  # number of ticks that were due so far, taken or not

    @property
    def over(self) -> bool:
        """True if there are no more ticks."""
        return self._total is not None and self.ticks >= self._total

    def next(self) -> float:
        """Return the time of the next tick, on the clock of `start`."""
        length = min(1.0, self._intervals - self.ticks)
        return self._start + (self.ticks + self._jitter() * length) / self._rate

    def take(self, now: float) -> int:
        """Take the tick that is due and return 0; if ticks were missed, return their number."""
        missed = int((now - self._start) * self._rate - self.ticks)
        if self._total is not None:
            missed = min(missed, self._total - self.ticks)
        self.ticks += max(1, missed)
        return max(0, missed)

    def skip(self, until: float) -> int:
        """Leave out the ticks whose intervals begin before `until`; return their number."""
        skipped = ceil((until - self._start) * self._rate) - self.ticks
        if self._total is not None:
            skipped = min(skipped, self._total - self.ticks)
        self.ticks += max(0, skipped)
        return max(0, skipped)


class OverheadLimit:
    """At most `share` of the time (None: no limit) from `now_s` on, when `spent_s` had been spent.

    The share holds over any two seconds, and is spent evenly.  Unused time is saved for a quarter of a
    second.  A burst (the first stacks of a large program) is paid back for two seconds at most.  What three
    ticks in a row cost is paid back in full, however long that takes.
    """

    def __init__(self, share: float | None, now_s: float, spent_s: float) -> None:
        self._share = share
        self._now_s, self._spent_s = now_s, spent_s
        self._saved_s = 0.0  # elapsed time that the next samples may use; negative: a debt
        self._costs = deque([0.0] * _BURST_TICKS, _BURST_TICKS)  # elapsed time that pays for each last tick

    def resume_at(self, now_s: float, spent_s: float) -> float:
        """Return the time of the next permitted tick, on the clock of `now_s`."""
        if self._share is None:
            return now_s
        passed_s, cost_s = now_s - self._now_s, max(0.0, spent_s - self._spent_s) / self._share
        self._now_s, self._spent_s = now_s, spent_s
        self._saved_s = min(self._saved_s + passed_s, _MAX_SAVED_S) - cost_s
        self._costs.append(cost_s)
        self._saved_s = max(self._saved_s, -max(_MAX_DEBT_S, min(self._costs)))
        return now_s + max(0.0, -self._saved_s)
