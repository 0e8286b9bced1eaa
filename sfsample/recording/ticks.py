"""Draws the ticks of a recording: one tick in every interval of 1/rate, at a random instant.

`OverheadLimit` says which ticks to skip.

Interval k begins at start + k / rate; its tick is drawn from the interval with uniform probability.  So the
rate is exact, and no periodic work of the target can keep step with the ticks.  Two ticks are at most two
intervals apart.  The last interval may be shorter than the others.  No clock is read here.

Invariant: a tick whose interval has passed is counted as missed, and no later tick replaces it
(tests/recording/test_ticks.py).
"""

from collections.abc import Callable
from math import ceil, inf
from random import Random

# A number is drawn at every turn of a thread, so drawing must not cost a system call.  sfsample has its own
# generator, because a program that uses the library may have seeded the generator of the module `random`.
uniform = Random().random  # noqa: S311 - a random instant, not a secret

_MAX_SAVED_S = 0.25  # largest unused time that is saved, in seconds of elapsed time
_MAX_DEBT_S = 2.0  # longest time for which a burst is paid back


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
        """Skip the ticks whose intervals begin before `until`; return their number."""
        skipped = ceil((until - self._start) * self._rate) - self.ticks
        if self._total is not None:
            skipped = min(skipped, self._total - self.ticks)
        self.ticks += max(0, skipped)
        return max(0, skipped)


class OverheadLimit:
    """Limits the time that sfsample spends to `share` of the elapsed time (None: no limit).

    `spent_s` is the time that was spent until `now_s`.  The limit holds over any two seconds.  Unused time is
    saved for 0.25 s.  A burst (the first stacks of a large program) is paid back within two seconds.
    """

    def __init__(self, share: float | None, now_s: float, spent_s: float) -> None:
        self._share = share
        self._now_s, self._spent_s = now_s, spent_s
        self._saved_s = 0.0  # elapsed time that the next samples may use; negative: a debt

    def resume_at(self, now_s: float, spent_s: float) -> float:
        """Return the time of the next permitted tick, on the clock of `now_s`."""
        if self._share is None:
            return now_s
        passed_s, cost_s = now_s - self._now_s, max(0.0, spent_s - self._spent_s) / self._share
        self._now_s, self._spent_s = now_s, spent_s
        self._saved_s = min(self._saved_s + passed_s, _MAX_SAVED_S) - cost_s
        self._saved_s = max(self._saved_s, -_MAX_DEBT_S)
        return now_s + max(0.0, -self._saved_s)
