"""Chooses whether a recording takes samples by stops (ptrace) or by the kernel's timers (perf events).

A recording in cpu mode begins with stops, and chooses once (docs/recording.md, "Stops and timers").
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from math import prod

from sfsample.core.python_view import PythonView
from sfsample.errors import TargetError
from sfsample.process.exec_guard import stops_keep_privileges
from sfsample.process.go_capture import GoCapture
from sfsample.process.perf_events import MAX_SAMPLE_STACK_BYTES, can_set_cpu_timers, can_set_timers
from sfsample.process.proc_text import parse_cpu_idle
from sfsample.process.procfs import read_text
from sfsample.process.python_capture import runs_python
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_sampler import PerfSampler
from sfsample.recording.processes import Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import Clock, PtraceSampler
from sfsample.recording.timer_set import are_too_few

_TRIAL_S = 0.5
_LOOK_S = 0.1  # seconds between two looks for a reason to decide early
_MIN_COVERAGE = 0.5  # share of the CPU time; timers are better if samples by stops stand for less
_NEARLY_ALL_THE_TIME = 0.9  # share of the time; sfsample decides early if all CPUs are busy for longer
_MOST_OF_THE_TIME = 0.5  # share of the time; timers are better if all CPUs are busy for longer
_EXECS = "a stop within execve(2) costs a setuid program its privileges"
_REFUSED, _CPUS_REFUSED = "timers are not permitted", "timers of CPUs are not permitted"
_log = logging.getLogger("sfsample.recording")


def choose_sampler(
    recording: Recording, clock: Clock | None = None
) -> "PtraceSampler | PerfSampler | TrialSampler":
    """Return the sampler that the options demand; otherwise a `TrialSampler`, which decides later."""
    options, stats = recording.options, recording.profile.stats
    if options.perf_events:
        stats.timers_since_s, stats.engine_why = 0.0, "asked for"
        return PerfSampler(recording)
    stats.engine_why = _why_stops(options, clock)
    if not stats.engine_why and recording.start is not None:
        stats.engine_why = "a process was set aside"
    return PtraceSampler(recording, clock) if stats.engine_why else TrialSampler(recording)


def _why_stops(options: RecordOptions, clock: Clock | None) -> str:
    """Return the reason why only stops can be used; '': timers can also be used."""
    if options.perf_events is not None or clock is not None:
        return "asked for"
    if options.mode == "wall":
        return "timers do not see threads that sleep"
    if options.gil:
        return "timers do not see who holds the GIL"
    return "" if options.stop else "nothing may be stopped"


class TrialSampler:
    """Begins with stops, and continues with the kernel's timers if a trial shows that timers are better."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._processes = recording, recording.processes
        self._stats = recording.profile.stats
        self._cpus = FreeCpus()
        self._start = time.monotonic()
        self._next_look_s = _LOOK_S  # time of the next look, since the start
        self._cpu_at_start_ns = self._processes.cpu_ns()
        self._spares_execs = self._processes.follows_births and not stops_keep_privileges()
        self._too_brief = False  # True: threads run too briefly to be stopped
        self._too_short = False  # True: threads end before stops have sampled most of their CPU time
        self._why: str | None = None  # reason to continue with timers; '': stops continue; None: undecided

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` returns True, or no process is left."""
        stats, profile = self._stats, self._recording.profile
        self._start = time.monotonic()
        stops = PtraceSampler(self._recording)
        stops.run(lambda: should_stop() or self._hand_over(stops))
        if stats.ended_by != "signal" or should_stop():
            return profile
        remainder = self._recording._replace(start=self._start)
        timers = PerfSampler(remainder, per_cpu=self._too_short)
        try:
            timers.set_timers()
        except (TargetError, OSError) as failure:
            _log.debug("timers cannot be set: %s", failure)
            hint = f" ({failure.help[0]})" if isinstance(failure, TargetError) and failure.help else ""
            stats.engine_why, stats.lacks_timers = f"timers cannot be set: {failure}{hint}", True
            return PtraceSampler(remainder).run(should_stop)
        stats.timers_since_s, stats.engine_why = time.monotonic() - self._start, self._why or ""
        return timers.run(should_stop)

    def _hand_over(self, stops: PtraceSampler) -> bool:
        """Return True if timers are chosen and no stop is pending, so that the timers can begin."""
        elapsed_s = time.monotonic() - self._start
        if self._why is None and elapsed_s >= self._next_look_s:
            self._next_look_s += _LOOK_S
            self._find_sparse_samples()
            is_full = self._cpus.all_busy() > _NEARLY_ALL_THE_TIME
            due = self._spares_execs or is_full or elapsed_s >= _TRIAL_S
            # Sleeping threads cost almost nothing, so a trial proves nothing while all threads sleep.
            has_tried = self._spares_execs or self._stats.pauses.count or self._stats.waiting_for_cpu
            if has_tried and (due or self._too_brief or self._too_short):
                self._decide()
        return bool(self._why) and stops.collect()

    def _find_sparse_samples(self) -> None:
        stats = self._stats
        left_out = stats.late_ticks + stats.spared_ticks
        due = (self._processes.cpu_ns() - self._cpu_at_start_ns) * stats.rate_hz / 1e9 - left_out
        worth = stats.cpu_sampled_ns * stats.rate_hz / 1e9
        self._too_brief = are_too_few(stats.samples, due, _MIN_COVERAGE)
        self._too_short = not self._too_brief and are_too_few(worth, due, _MIN_COVERAGE)

    def _decide(self) -> None:
        stats = self._stats
        self._why, against = self._reason(), self._obstacle()
        if self._why and against:
            stats.engine_why, stats.lacks_timers = f"{self._why}, but {against}", True
            stats.timers_refused = against in (_REFUSED, _CPUS_REFUSED)
            self._why = ""
        elif not self._why:
            stats.engine_why = "CPUs were free, and threads ran long enough to be stopped"
        _log.debug("timers: %s", self._why or f"not chosen: {stats.engine_why}")

    def _reason(self) -> str:
        """Return the reason why timers would be better than stops, or ''."""
        if self._spares_execs:
            return _EXECS
        if self._too_short:
            return "threads ended before they were sampled"
        if self._cpus.all_busy() > _MOST_OF_THE_TIME:
            return "no CPU was free"
        return "threads ran too briefly to be stopped" if self._too_brief else ""

    def _obstacle(self) -> str:
        """Return the reason why timers cannot take the samples, or ''."""
        processes = self._processes.all
        if self._recording.options.python is not PythonView.OFF and any(map(runs_python, processes)):
            return "timers cannot show Python frames; --perf-events uses them anyway"
        if any(GoCapture(process).find_layout() for process in processes):
            return "timers copy only one of the two stacks of a Go thread; --perf-events uses them anyway"
        if self._stats.max_stack_bytes > MAX_SAMPLE_STACK_BYTES:
            return f"stacks are larger than the {MAX_SAMPLE_STACK_BYTES >> 10} KiB that a timer can copy"
        arch = processes[0].arch
        if self._too_short and not self._spares_execs:
            return "" if can_set_cpu_timers(arch) else _CPUS_REFUSED
        return "" if can_set_timers(self._processes.tids(), arch) else _REFUSED


class FreeCpus:
    """The load of the CPUs on which the calling thread may run, since this object was made.

    The kernel counts the idle time of each CPU, including waits for disks; the remaining time is busy time.
    sfsample's own CPU time is subtracted from the busy time of the least busy CPU, because no other thread
    needed that CPU.  The product of the busy shares is the probability that all CPUs are busy at an instant.
    (The idle shares are not added, because many busy CPUs would then look like one free CPU.)

    Source: proc(5), /proc/stat.
    """

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._begin = self._read()

    def all_busy(self) -> float:
        """Return the share of the time in which all CPUs were busy with other threads, or 0 if unknown."""
        (began_s, own_before_s, idle_before), (now_s, own_s, idle) = self._begin, self._read()
        seconds, online = now_s - began_s, idle.keys() & idle_before.keys() & self._cpus
        if not online or seconds <= 0:
            return 0.0
        hertz = os.sysconf("SC_CLK_TCK")
        busy = sorted(1 - (idle[cpu] - idle_before[cpu]) / hertz / seconds for cpu in online)
        busy[0] -= (own_s - own_before_s) / seconds
        return prod(min(max(share, 0.0), 1.0) for share in busy)

    def _read(self) -> tuple[float, float, Mapping[int, float]]:
        """Return the time in s, the CPU time of this thread in s, and each CPU's idle time in clock ticks."""
        idle = parse_cpu_idle(read_text("/proc/stat")) or {}  # empty if /proc/stat has no idle times
        return time.monotonic(), time.thread_time(), idle
