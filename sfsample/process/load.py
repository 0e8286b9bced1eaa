"""Measures the load of processes from /proc, so cheaply that `watch` can measure every few seconds.

Source: proc(5), /proc/PID/stat; Linux Documentation/scheduler/sched-stats, /proc/PID/task/TID/schedstat;
Documentation/accounting/psi.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable

from sfsample.core.checkpoint import with_checkpoints
from sfsample.process.cgroup import path_of, unified_mount_point
from sfsample.process.proc_text import SchedStat, parse_schedstat
from sfsample.process.procfs import read_text, stat_of

METRICS = ("cpu", "rss", "threads", "psi.cpu", "delay", "stuck")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MIN_WANTED = 0.05  # share of one CPU; if threads want less, chance alone decides how long they wait
_SOME = re.compile(r"some avg10=([\d.]+)")
_ThreadKey = tuple[int, int, int]  # process id, its start time, thread id


class LoadMeter:
    """Reads the metrics `wanted` out of METRICS; `clock` gives seconds.  A metric may have no value yet."""

    def __init__(self, wanted: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._wanted, self._clock = wanted, clock
        self._before_s = 0.0
        self._cpu: dict[tuple[int, int], int] = {}  # process id and start time -> CPU time in clock ticks
        self._threads: dict[_ThreadKey, SchedStat] = {}
        self._stuck_since_s: dict[_ThreadKey, float] = {}
        self._root = unified_mount_point() if "psi.cpu" in wanted else ""

    def read(self, pids: Iterable[int]) -> dict[str, float]:
        """Return the metrics by name.  `cpu` and `delay` cover the time since the last call.

        Units: bytes (rss), seconds (stuck), percent of one CPU (cpu), percent of the time (psi.cpu, delay).
        """
        now_s = self._clock()
        passed_s, self._before_s = now_s - self._before_s, now_s
        stats = {pid: stat for pid in with_checkpoints(pids) if (stat := stat_of(pid)) and not stat.is_over}
        values = {"threads": float(sum(stat.threads for stat in stats.values())),
                  "rss": float(sum(stat.rss for stat in stats.values()) * _PAGE_BYTES)}  # fmt: skip
        before = self._cpu
        self._cpu = {(pid, stat.starttime): stat.cpu for pid, stat in stats.items()}
        if self._cpu.keys() & before.keys():
            used = sum(cpu - before[key] for key, cpu in self._cpu.items() if key in before)
            values["cpu"] = 100 * used / _TICKS_PER_S / passed_s
        if "psi.cpu" in self._wanted:
            values |= self._pressure(stats)
        if {"delay", "stuck"} & {*self._wanted}:
            values |= self._of_threads(self._cpu, passed_s)
        return values

    def _pressure(self, pids: Iterable[int]) -> dict[str, float]:
        """Return the highest `some avg10` of the control groups; the root group has the machine's value."""
        paths = {path for pid in pids if (path := path_of(pid))}
        texts = (read_text(f"{self._root}{path}/cpu.pressure" if path.strip("/") else "/proc/pressure/cpu")
                 for path in paths)  # fmt: skip
        found = [float(match[1]) for text in texts if (match := _SOME.match(text))]
        return {"psi.cpu": max(found)} if found else {}

    def _of_threads(self, processes: Iterable[tuple[int, int]], passed_s: float) -> dict[str, float]:
        """Return `delay` = 100 * waited / (waited + ran), and `stuck` = seconds of the longest stuck sleep.

        A thread is stuck if it was in state D at two readings and was not put on a CPU in between.  So one
        uninterruptible sleep began before the first reading and lasted until the second reading.
        """
        before, since_s = self._threads, self._stuck_since_s
        self._threads, self._stuck_since_s = {}, {}
        ran = waited = 0
        for key in with_checkpoints(_thread_keys(processes)):
            path = f"/proc/{key[0]}/task/{key[2]}"
            if (now := parse_schedstat(read_text(f"{path}/schedstat").encode())) is None:
                continue
            self._threads[key], last = now, before.get(key)
            if last is not None and last.times <= now.times:
                ran, waited = ran + now.ran_ns - last.ran_ns, waited + now.waited_ns - last.waited_ns
            if "stuck" in self._wanted and last is not None and last.times == now.times:
                stat = stat_of(f"{key[0]}/task/{key[2]}")
                if stat is not None and stat.state == "D":
                    self._stuck_since_s[key] = since_s.get(key, self._before_s - passed_s)
        if not self._threads:
            return {}
        stuck_s = self._before_s - min(self._stuck_since_s.values(), default=self._before_s)
        wants_cpu = ran + waited > _MIN_WANTED * 1e9 * passed_s
        return {"stuck": stuck_s, "delay": 100 * waited / (ran + waited) if wants_cpu else 0.0}


def _thread_keys(processes: Iterable[tuple[int, int]]) -> Iterable[_ThreadKey]:
    for pid, start in processes:
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:  # the process has ended
            continue
        yield from ((pid, start, int(tid)) for tid in tids)
