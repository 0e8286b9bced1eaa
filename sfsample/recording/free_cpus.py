"""Estimates whether sfsample's own work takes CPU time from other threads.

The kernel gives the idle time of each CPU (a wait for a disk is idle time); the rest is busy time.  Only CPUs
count that the calling thread may run on.  sfsample's own CPU time is subtracted from the busy time of the
least busy CPU, on which no other thread needed it.  The product of the shares of busy time is the probability
that all CPUs are busy at an instant.  The sum of idle time would mislead: redis and its clients, which fill
two CPUs, leave a tenth of one idle, in pieces of microseconds.

Source: proc(5), /proc/stat.
"""

import os
import time
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from sfsample.process.proc_text import parse_cpu_idle
from sfsample.process.procfs import read_text


class _Reading(NamedTuple):
    """The time, the idle time of each CPU since boot, and the CPU time of the calling thread, in seconds."""

    at: float
    idle: Mapping[int, float]
    own: float


class FreeCpus:
    """The load of the CPUs that the calling thread may run on, since this object was made."""

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._begin = self._read()

    def all_busy(self) -> float:
        """Return the share of the time in which all CPUs were busy with other threads; 0: unknown."""
        begin, now = self._begin, self._read()
        seconds, online = now.at - begin.at, now.idle.keys() & begin.idle.keys()
        if not online or seconds <= 0:
            return 0.0
        busy = sorted(1 - (now.idle[cpu] - begin.idle[cpu]) / seconds for cpu in online)
        busy[0] -= (now.own - begin.own) / seconds
        return prod(min(max(share, 0.0), 1.0) for share in busy)

    def _read(self) -> _Reading:
        ticks = parse_cpu_idle(read_text("/proc/stat")) or {}  # empty if the kernel does not say
        idle = {cpu: ticks[cpu] / self._hertz for cpu in ticks.keys() & self._cpus}
        return _Reading(time.monotonic(), idle, time.thread_time())
