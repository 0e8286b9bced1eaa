"""Draws the ticks of a recording: one tick in every interval of 1/rate, at a random instant.

Interval k begins at start + k / rate; its tick is drawn from the interval with uniform probability.  So the
rate is exact, and no periodic work of the target can keep step with the ticks.  Two successive ticks are at
most two intervals apart.  The last interval may be shorter.  This module reads no clock.

If ticks cost too much (`OverheadLimit`), the intervals become longer.  The tick of a longer interval is drawn
from its first half (from its first 1/rate if that is longer), so the ticks are more evenly spaced.  These
ticks cannot keep step with periodic work, either, because the intervals vary with the cost.

Invariant: a tick whose interval has passed is counted as missed, and no later tick replaces it
(tests/recording/test_ticks.py).
"""

from collections import deque
from collections.abc import Callable
from math import ceil, inf
from random import Random

# A number is drawn at every turn of a thread, so drawing must not cost a system call.  sfsample has its own
# generator, because a program that uses the library may have seeded the generator of the module `random`.
uniform = Random().random  # noqa: S311 - a random instant, not a secret

MAX_LATE_S = 0.4  # seconds after the end of a recording in which code is still analysed
SLOWNESS = 8  # each interval is longer by 1/8 of the debt
_MAX_SAVED_S = 0.25  # largest unused time that is saved, in seconds of elapsed time
_MAX_DEBT_S = 2.0  # largest overspent time that is paid back, in seconds of elapsed time
_COSTS = 3  # number of costs, the last one included, that decide whether the last cost is a burst


class Schedule:
    """The ticks of a recording that begins at `start` (seconds of any clock).

    `rate` is in Hz, `duration` in s; None: without an end.  `jitter` returns random numbers from 0 to 1.
    """

    def __init__(
        self, start: float, rate: float, duration: float | None, jitter: Callable[[], float] = uniform
    ) -> None:
        self._start = start
        self._rate = rate
        self._intervals = inf if duration is None else duration * rate
        self._total = inf if duration is None else max(1, round(self._intervals))
        self.end = start + self._intervals / rate  # end of the duration, on the clock of `start`
        self._jitter = jitter
        self._begin = 0.0  # begin of the next tick's interval, in units of 1/rate since the start
        self.stretch = 1.0  # length of the intervals from now on, in units of 1/rate

    @property
    def ticks(self) -> int:
        """The number of ticks that were due so far at the full rate, taken or not."""
        return int(min(self._begin, self._total))

    @property
    def over(self) -> bool:
        """True if there are no more ticks."""
        return self._begin >= self._total

    def next(self) -> float:
        """Return the time of the next tick, on the clock of `start`."""
        length = min(max(1.0, self.stretch / 2), self._intervals - self._begin)
        return self._start + (self._begin + self._jitter() * length) / self._rate

    def take(self, now: float) -> int:
        """Take the tick that is due and return 0; if ticks were missed, return their number."""
        passed = (now - self._start) * self._rate
        missed = int((min(passed, self._total) - self._begin) / self.stretch)
        self._begin += max(1, missed) * self.stretch
        return max(0, missed)

    def skip(self, until: float) -> int:
        """Skip the ticks whose intervals begin before `until`; return their number."""
        before = self.ticks
        self._begin = max(self._begin, ceil((until - self._start) * self._rate))
        return self.ticks - before


class OverheadLimit:
    """Limits the time that sfsample spends to `share` of the elapsed time (None: no limit).

    `spent_s`: time that sfsample has spent until `now_s`.  Unused time is saved, up to 0.25 s.  Overspent
    time is a debt; each pause pays back 1/`slowness` of it, so with 8 the pauses are about equal.  Of a burst
    (a cost larger than the two costs before, as of the first stacks), only two seconds are paid back.
    """

    def __init__(self, share: float | None, now_s: float, spent_s: float, slowness: int = 1) -> None:
        self._share, self._slowness = share, slowness
        self._now_s, self._spent_s = now_s, spent_s
        self._saved_s = 0.0  # elapsed time that the next samples may use; negative: a debt
        self._costs_s = deque([0.0] * _COSTS, _COSTS)  # elapsed time that pays for each of the last ticks

    def resume_at(self, now_s: float, spent_s: float) -> float:
        """Return the time of the next permitted tick, on the clock of `now_s`."""
        if self._share is None:
            return now_s
        passed_s, cost_s = now_s - self._now_s, max(0.0, spent_s - self._spent_s) / self._share
        self._now_s, self._spent_s = now_s, spent_s
        self._costs_s.append(cost_s)
        most_s = max(_MAX_DEBT_S, sorted(self._costs_s)[1])
        self._saved_s = min(self._saved_s + passed_s, _MAX_SAVED_S) - min(cost_s, most_s)
        self._saved_s = max(self._saved_s, -max(_MAX_DEBT_S, *self._costs_s) * self._slowness)
        return now_s + max(0.0, -self._saved_s) / self._slowness
