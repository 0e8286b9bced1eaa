"""The last seconds of a recording that goes on: what `top` looks at.

Law: one thread adds, another reads; each does it in one step that the other cannot fall into.  Nothing older
than the window is kept, so it can run for months.
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
    """A profile that forgets.  `counts` and its like stay empty; `last` gives what is in the window."""

    def __init__(self, rate_hz: float, length_s: float) -> None:
        super().__init__(rate_hz)
        self.prompt = True
        self.length_ns = round(length_s * 1e9)
        self._records: deque[Record] = deque()

    def keep(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        """Keep a record; forget those that have become too old."""
        records = self._records
        records.append(Record(at_ns, key, times, wall_ns, cpu_ns))
        while records[0].at_ns < at_ns - self.length_ns:
            records.popleft()

    def last(self, now_ns: int) -> list[Record]:
        """Return the records of the window that ends at `now_ns` after the start."""
        return [record for record in self._records.copy() if record.at_ns >= now_ns - self.length_ns]


def as_profile(window: LiveWindow, records: Iterable[Record]) -> Profile:
    """Return records as a profile that stays as it is."""
    profile = Profile(window.stats.rate_hz)
    profile.processes, profile.threads = dict(window.processes), dict(window.threads)
    profile.roots = dict(window.roots)
    profile.stats.duration_s = window.length_ns / 1e9
    for record in records:
        profile.keep(record.key, record.at_ns, record.wall_ns, record.cpu_ns, record.times)
    return profile
