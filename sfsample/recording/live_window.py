"""Keeps the samples of the last seconds of a running recording, for `top`.

The thread that records adds samples, and the thread that draws reads them: each by one call of a deque, which
the other thread cannot interrupt.  Samples older than the window are dropped, so `top` can run for months.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.recording.profile import Profile
from sfsample.recording.sample import StackKey


class Record(NamedTuple):
    """One sample, or several of a stack that did not change."""

    at_ns: int
    key: StackKey
    times: int
    wall_ns: int
    cpu_ns: int


class LiveWindow(Profile):
    """A profile of the last `length_s` seconds.  Totals such as `counts` stay empty: call `last`."""

    def __init__(self, rate_hz: float, length_s: float) -> None:
        super().__init__(rate_hz)
        self.prompt = True
        self.length_ns = round(length_s * 1e9)
        self._records: deque[Record] = deque()

    def keep(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        """Keep a record; drop those that are older than the window."""
        records = self._records
        records.append(Record(at_ns, key, times, wall_ns, cpu_ns))
        while records[0].at_ns < at_ns - self.length_ns:
            records.popleft()

    def last(self, now_ns: int) -> list[Record]:
        """Return the records of the window that ends `now_ns` after the start of the recording."""
        return [record for record in self._records.copy() if record.at_ns >= now_ns - self.length_ns]


def as_profile(window: LiveWindow, records: Iterable[Record]) -> Profile:
    """Return records as a profile that does not change any more."""
    profile = Profile(window.stats.rate_hz)
    profile.processes, profile.threads = dict(window.processes), dict(window.threads)
    profile.roots = dict(window.roots)
    profile.stats.duration_s = window.length_ns / 1e9
    for record in records:
        profile.keep(record.key, record.at_ns, record.wall_ns, record.cpu_ns, record.times)
    return profile
