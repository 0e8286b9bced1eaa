"""Chooses how a recording takes its samples: by stops (ptrace), or by the kernel's timers (perf events).

Stops are exact: random instants, any stack, any thread.  Their cost, some percent of a CPU, matters only if
no CPU is free.  And threads that run for microseconds at a time have left their CPU before sfsample can stop
them.  In these two cases the kernel's timers cost less and see more, if sfsample may set them.

So a recording in cpu mode begins with stops.  After half a second, sfsample decides once, for all threads and
until the end of the recording.  (It decides earlier if all CPUs are full, or if samples stand for less than
half of the CPU time.)  It never goes back, and `Stats` has the choice and the reason.
"""

import logging
import time
from collections.abc import Callable

from sfsample.core.python_view import PythonView
from sfsample.errors import TargetError
from sfsample.process.exec_guard import stops_keep_privileges
from sfsample.process.perf_events import MAX_SAMPLE_STACK_BYTES, can_set_cpu_timers, can_set_timers
from sfsample.process.python_capture import runs_python
from sfsample.recording.free_cpus import FreeCpus
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_sampler import PerfSampler
from sfsample.recording.processes import Processes
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import Clock, PtraceSampler
from sfsample.recording.timer_set import are_too_few

_TRIAL_S = 0.5
_LOOK_S = 0.1  # seconds between two looks for a reason: a recording of one second needs early samples
_MIN_COVERAGE = 0.5  # share of the CPU time for which samples by stops stand
_NEARLY_ALL_THE_TIME = 0.9
_MOST_OF_THE_TIME = 0.5  # share of the time in which all CPUs are busy
_EXECS = "a stop within execve(2) costs a setuid program its privileges"
_REFUSED, _CPUS_REFUSED = "timers are not permitted", "timers of CPUs are not permitted"
_log = logging.getLogger("sfsample.recording")


def choose_sampler(
    processes: Processes,
    options: RecordOptions,
    duration: float | None,
    profile: Profile,
    *,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda _: None,
    start: float | None = None,
) -> "PtraceSampler | PerfSampler | TrialSampler":
    """Return the sampler that the options ask for, or one that decides by itself.

    `start`: the time when the recording began, if it continues without a process that is set aside.
    """
    if options.perf_events:
        profile.stats.timers_since_s, profile.stats.engine_why = 0.0, "asked for"
        return PerfSampler(processes, options, duration, profile, start=start)
    why = _why_stops(options, clock) or ("" if start is None else "a process was set aside")
    if why:
        profile.stats.engine_why = why
        return PtraceSampler(processes, options, duration, clock, profile, tell=tell, start=start)
    return TrialSampler(processes, options, duration, profile, tell=tell)


def _why_stops(options: RecordOptions, clock: Clock | None) -> str:
    """Return the reason why timers are impossible, or ''."""
    if options.perf_events is not None or clock is not None:
        return "asked for"
    if options.mode == "wall":
        return "timers do not see threads that sleep"
    if options.gil:
        return "timers do not see who holds the GIL"
    return "" if options.stop else "nothing may be stopped"


class TrialSampler:
    """Begins with stops, and continues with the kernel's timers if a trial shows that they are better."""

    def __init__(
        self,
        processes: Processes,
        options: RecordOptions,
        duration: float | None,
        profile: Profile,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._processes = processes
        self._options = options
        self._duration = duration
        self._profile = profile
        self._tell = tell
        self._cpus = FreeCpus()
        self._start = time.monotonic()
        self._next_look_s = _LOOK_S  # time of the next look, since the start
        self._cpu_at_start_ns = processes.cpu_ns()
        self._spares_execs = processes.follows_births and not stops_keep_privileges()
        self._too_brief = False  # True: threads run too briefly to be stopped
        self._too_short = False  # True: threads end soon after a stop, or before it
        self._why: str | None = None  # reason to continue with timers; '': none; None: undecided

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no process is left."""
        stats = self._profile.stats
        self._start = time.monotonic()
        stops = self._by_stops()
        stops.run(lambda: should_stop() or self._hand_over(stops))
        if stats.ended_by != "signal" or should_stop():
            return self._profile
        timers = PerfSampler(
            self._processes, self._options, self._duration, self._profile, start=self._start,
            per_cpu=self._too_short,
        )  # fmt: skip
        try:
            timers.set_timers()
        except (TargetError, OSError) as failure:
            _log.debug("timers cannot be set: %s", failure)
            hint = f" ({failure.help[0]})" if isinstance(failure, TargetError) and failure.help else ""
            stats.engine_why, stats.lacks_timers = f"timers cannot be set: {failure}{hint}", True
            return self._by_stops(self._start).run(should_stop)
        stats.timers_since_s, stats.engine_why = time.monotonic() - self._start, self._why or ""
        return timers.run(should_stop)

    def _by_stops(self, start: float | None = None) -> PtraceSampler:
        return PtraceSampler(
            self._processes, self._options, self._duration, None, self._profile, tell=self._tell, start=start
        )

    def _hand_over(self, stops: PtraceSampler) -> bool:
        """Return True if the timers are to continue now; then no thread is held, and no stop is pending."""
        elapsed_s = time.monotonic() - self._start
        if self._why is None and elapsed_s >= self._next_look_s:
            self._next_look_s += _LOOK_S
            self._find_sparse_samples()
            is_full = self._cpus.all_busy() > _NEARLY_ALL_THE_TIME
            due = self._spares_execs or is_full or elapsed_s >= _TRIAL_S
            if self._has_tried and (due or self._too_brief or self._too_short):
                self._decide()
        return bool(self._why) and stops.collect()

    @property
    def _has_tried(self) -> bool:
        """True if stops were needed so far: sleeping threads cost almost nothing, and decide nothing."""
        stats = self._profile.stats
        return bool(self._spares_execs or stats.pauses.count or stats.waiting_for_cpu)

    def _find_sparse_samples(self) -> None:
        stats = self._profile.stats
        left_out = stats.late_ticks + stats.spared_ticks
        due = (self._processes.cpu_ns() - self._cpu_at_start_ns) * stats.rate_hz / 1e9 - left_out
        worth = stats.cpu_sampled_ns * stats.rate_hz / 1e9
        self._too_brief = are_too_few(stats.samples, due, _MIN_COVERAGE)
        self._too_short = not self._too_brief and are_too_few(worth, due, _MIN_COVERAGE)

    def _decide(self) -> None:
        stats = self._profile.stats
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
        if self._options.python is not PythonView.OFF and any(map(runs_python, self._processes.all)):
            return "timers cannot show Python frames; --perf-events uses them anyway"
        if self._profile.stats.max_stack_bytes > MAX_SAMPLE_STACK_BYTES:
            return f"stacks are larger than the {MAX_SAMPLE_STACK_BYTES >> 10} KiB that a timer can copy"
        arch = self._processes.all[0].arch
        if self._too_short and not self._spares_execs:
            return "" if can_set_cpu_timers(arch) else _CPUS_REFUSED
        return "" if can_set_timers(self._processes.tids(), arch) else _REFUSED
