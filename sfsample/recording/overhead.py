"""Finds the time until which to leave out ticks, so that sampling takes at most a share of the time.

The share holds over any two seconds, and is spent evenly.  Unused time is saved for a quarter of a second.  A
burst (the first stacks of a large program) is paid back for two seconds at most.  The time to open files
before the first tick does not count.
"""

_MAX_SAVED_S = 0.25  # limit of unused time, in seconds of elapsed time
_MAX_DEBT_S = 2.0


class OverheadLimit:
    """At most `share` of the time (None: no limit) from `now_s` on, when `spent_s` had been spent."""

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
