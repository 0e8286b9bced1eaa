"""Keeps the samples of the last seconds of a running recording, for `top`.

The recording thread adds samples, the drawing thread reads them.  Each uses one call of a deque, which the
other thread cannot interrupt.  Samples older than the window are dropped, so `top` can run for months.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.recording.profile import Profile
from sfsample.recording.sample import StackKey


class WindowRecord(NamedTuple):
    """One sample, or several samples of an unchanged stack."""

    key: StackKey
    at_ns: int
    wall_ns: int
    cpu_ns: int
    times: int


class LiveWindow:
    """The samples of the last `length_ns`; a recording into `profile` fills it."""

    def __init__(self, rate_hz: float, length_s: float) -> None:
        self.profile = Profile(rate_hz, keep=self._keep)
        self.length_ns = round(length_s * 1e9)
        self._records: deque[WindowRecord] = deque()

    def _keep(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        records = self._records
        records.append(WindowRecord(key, at_ns, wall_ns, cpu_ns, times))
        while records[0].at_ns < at_ns - self.length_ns:
            records.popleft()

    def last(self, now_ns: int) -> list[WindowRecord]:
        """Return the records of the window that ends `now_ns` after the start of the recording."""
        return [record for record in self._records.copy() if record.at_ns >= now_ns - self.length_ns]

    def as_profile(self, records: Iterable[WindowRecord]) -> Profile:
        """Return records as a profile that no longer changes."""
        live, profile = self.profile, Profile(self.profile.stats.rate_hz)
        profile.processes, profile.threads = dict(live.processes), dict(live.threads)
        profile.roots = dict(live.roots)
        profile.stats.duration_s = self.length_ns / 1e9
        for record in records:
            profile.keep(*record)
        return profile
