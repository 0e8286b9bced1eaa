"""Tells whether sfsample's own work takes CPU time from others.

Watched is for what share of the time each CPU that the calling thread may run on was busy with others, as the
kernel tells it (waiting for a disk is idle).  What sfsample has used counts as that of the least busy CPU,
where it was taken from nobody else.  The product of the shares is how often an instant finds all CPUs
busy.  Idle time as such says little: redis and its clients, which fill two CPUs, leave a tenth of one, in
pieces of microseconds.

Source: proc(5), /proc/stat.
"""

import os
import time
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from sfsample.process.procfs import cpu_idle_ticks


class _Reading(NamedTuple):
    """Seconds: when, how long each CPU has been idle, CPU time of the calling thread."""

    at: float
    idle: Mapping[int, float]
    own: float


class FreeCpus:
    """Watches the CPUs that the calling thread may run on, from its construction on."""

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._begin = self._read()

    def all_busy(self) -> float:
        """Return for what share of the time all CPUs were busy with others; 0: the kernel does not tell."""
        begin, now = self._begin, self._read()
        seconds, online = now.at - begin.at, now.idle.keys() & begin.idle.keys()
        if not online or seconds <= 0:
            return 0.0
        busy = sorted(1 - (now.idle[cpu] - begin.idle[cpu]) / seconds for cpu in online)
        busy[0] -= (now.own - begin.own) / seconds
        return prod(min(max(share, 0.0), 1.0) for share in busy)

    def _read(self) -> _Reading:
        idle = {cpu: ticks / self._hertz for cpu, ticks in cpu_idle_ticks().items() if cpu in self._cpus}
        return _Reading(time.monotonic(), idle, time.thread_time())
