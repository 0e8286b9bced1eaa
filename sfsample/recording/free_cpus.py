"""Whether a processor is free when we want one, so that what we take is taken from nobody.

Law: asked as often as one likes, it looks four times a second: for what share of the time each processor that
our thread may run on was busy with others, as the kernel tells it (waiting for a disk is idle).  What we have
used ourselves counts as that of the least busy one, where it was taken from nobody.  The product is how often
an instant finds all of them busy; none is free if that is more often than not, twice in succession.  What the
kernel does not tell is no reason for anything.

Source: proc(5), /proc/stat.
"""

import os
import time
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

_LOOK_S = 0.25
_TIMES = 2
_MORE_OFTEN_THAN_NOT = 0.5
_IDLE = slice(4, 6)  # idle, iowait


class _Reading(NamedTuple):
    """Seconds: when, how long each processor has been idle, what we have used."""

    at: float
    idle: Mapping[int, float]
    ours: float


class FreeCpus:
    """Watches the processors that the calling thread may run on."""

    def __init__(self) -> None:
        self._processors = os.sched_getaffinity(0)
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._last: _Reading | None = None
        self._times = 0

    def lacks(self) -> bool:
        """Return whether no processor has been free for half a second."""
        now = time.monotonic()
        if self._last is None or now - self._last.at >= _LOOK_S:
            idle = self._idle()
            if idle:
                self._look(_Reading(now, idle, time.thread_time()))
        return self._times >= _TIMES

    def _look(self, reading: _Reading) -> None:
        before, self._last = self._last, reading
        if before is not None:
            self._times = self._times + 1 if _all_busy(before, reading) > _MORE_OFTEN_THAN_NOT else 0

    def _idle(self) -> dict[int, float]:
        try:
            with open("/proc/stat", encoding="ascii") as file:
                rows = [line[3:].split() for line in file if line.startswith("cpu")]
        except OSError:
            return {}
        own = (row for row in rows if row[0].isdecimal() and int(row[0]) in self._processors)
        return {int(row[0]): sum(map(int, row[_IDLE])) / self._hertz for row in own if len(row) > _IDLE.stop}


def _all_busy(before: _Reading, now: _Reading) -> float:
    """Return for what share of the time between two readings all processors were busy with others."""
    seconds, online = now.at - before.at, now.idle.keys() & before.idle.keys()
    busy = sorted(1 - (now.idle[one] - before.idle[one]) / seconds for one in online)
    busy[:1] = [one - (now.ours - before.ours) / seconds for one in busy[:1]]
    return prod(min(max(one, 0.0), 1.0) for one in busy) if busy else 0.0
