"""The loop: at every tick, every target is looked at.

Law: the schedule is fixed at the start and knows nothing of what the samples cost; a tick that is missed, or
left out to stay below the limit of overhead, is counted and never made up for.  Unwinding happens while the
target runs.  Clock and chance are injected.
"""

import resource
import time
from collections.abc import Callable, Sequence

from sfsample.errors import TargetError
from sfsample.process.capture import ThreadCapturer
from sfsample.process.descendants import Descendants
from sfsample.process.process import LiveProcess
from sfsample.process.scheduler import OwnRun, WakeUp
from sfsample.recording.clock import Clock, SystemClock
from sfsample.recording.options import RecordOptions
from sfsample.recording.process_sampler import ProcessSampler, Rules, TickTime
from sfsample.recording.process_set import ProcessSet
from sfsample.recording.profile import Profile
from sfsample.recording.recorder import BEGINNING, Since
from sfsample.recording.schedule import Schedule, uniform
from sfsample.unwind.unwinder import Unwinder

_DOZE_S = 0.1  # look this often whether to stop
_SETTLE_S = 0.001  # wait no longer at a time for a thread that did not stop in time: of several, one is heard
_REFRESH_S = 1.0  # look this often whether a library was replaced by another at the same place
_TELL_S = 1.0  # say no more often that ticks were missed


class PtraceSampler:
    """Samples processes into one profile, and the descendants that `family` opens.

    `jitter` gives random numbers from 0 to 1.  `tell` is called with a line of text, at most once a second.
    `start`: when the recording began, by the clock, if what came before was sampled otherwise.
    """

    def __init__(
        self,
        targets: Sequence[LiveProcess],
        options: RecordOptions,
        clock: Clock | None = None,
        profile: Profile | None = None,
        *,
        jitter: Callable[[], float] = uniform,
        tell: Callable[[str], None] = lambda _: None,
        family: Descendants | None = None,
        start: float | None = None,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._began = start
        self._jitter = jitter
        self._lateness = _Lateness(tell)
        self.profile = profile or Profile(options.rate, timeline=options.timeline)
        since = BEGINNING if start is None else Since(0, round((self._clock.now() - start) * 1e9))
        named = [self._watch(target, since, named=True) for target in targets]
        self._processes = ProcessSet(named, family, self._watch, self.profile.stats)
        self._last_run = OwnRun()
        self._start = self._refresh_at = self._cpu = 0.0

    def _watch(self, target: LiveProcess, since: Since, *, named: bool = False) -> ProcessSampler:
        options = self._options
        unwinder = Unwinder(target.modules, steppers=options.steppers, max_frames=options.max_frames)
        if named:
            unwinder.prepare(target.arch)
        looker = ThreadCapturer(target, unwinder, stop=options.stop, kernel=options.kernel)
        rules = Rules(options.mode == "wall", round(options.max_pause * 1e9), options.bad_stacks, named)
        return ProcessSampler(target, looker, self.profile, rules, self._jitter, since=since)

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no target is left."""
        stats, clock, processes = self.profile.stats, self._clock, self._processes
        try:
            processes.adopt()
            self._cpu = time.thread_time() - stats.sampler_cpu_s
            self._start = clock.now() if self._began is None else self._began
            self.profile.started_ns = self.profile.started_ns or time.time_ns()
            try:
                stats.ended_by = self._loop(should_stop)
            except (TargetError, OSError) as failure:  # what was collected is not lost by it
                if not stats.samples:
                    raise
                stats.end_early(failure)
            finally:
                stats.duration_s = clock.now() - self._start
                processes.finish()
        finally:
            processes.close()
            self._last_run.close()
            stats.sampler_cpu_s = time.thread_time() - self._cpu
            stats.sampler_max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return self.profile

    def _loop(self, should_stop: Callable[[], bool]) -> str:
        should_stop = once_and_for_all(should_stop)
        schedule = Schedule(self._start, self._options.rate, self._options.duration, self._jitter)
        if self._began is not None:
            schedule.skip(self._clock.now())
        self._refresh_at = self._clock.now() + _REFRESH_S
        stats = self.profile.stats
        while not schedule.over:
            if not self._wait(schedule.next(), should_stop):
                return "signal"
            woken, now = self._woken(), self._clock.now()
            missed = schedule.take(now)
            stats.ticks = schedule.ticks
            stats.late_ticks += missed
            self._lateness.note(now, missed)
            if missed:
                continue
            instant = TickTime(round((now - self._start) * 1e9), woken)
            if not self._tick(instant, lambda: self._clock.now() < schedule.end and not should_stop()):
                return "target"
            if self._options.max_overhead is not None:
                stats.spared_ticks += schedule.skip(self._start + self._spent() / self._options.max_overhead)
                stats.ticks = schedule.ticks
        return "duration" if self._wait(schedule.end, should_stop) else "signal"

    def settled(self) -> bool:
        """Capture threads that have stopped by now; False while one is still to stop."""
        return self._processes.settled()

    def _woken(self) -> WakeUp:
        """Note when we woke up; first thing, because what it is compared with changes at any time."""
        own = None if self._options.mode == "wall" else self._last_run.read()
        return WakeUp(time.perf_counter_ns(), own, self._last_run.read)

    def _tick(self, instant: TickTime, go_on: Callable[[], bool]) -> bool:
        now = self._clock.now()
        refresh = now >= self._refresh_at
        if refresh:
            self._refresh_at = now + _REFRESH_S
        return self._processes.tick(instant, refresh=refresh, go_on=go_on)

    def _spent(self) -> float:
        """Return the seconds of CPU time that we have used, and for which any one thread was stopped."""
        return time.thread_time() - self._cpu + self._processes.longest_stop_ns / 1e9

    def _wait(self, until: float, should_stop: Callable[[], bool]) -> bool:
        while not should_stop():  # asked before a sleep; after it, nothing is to come before the looks
            settled, left = self.settled(), until - self._clock.now()
            if settled or left <= 0:
                if left > 0:
                    self._clock.sleep(min(left, _DOZE_S))
                if left <= _DOZE_S:
                    return True
            else:
                self._processes.await_stop(min(left, _SETTLE_S))
        return False


def once_and_for_all(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that says True for ever when `ask` has said so once, wherever that was heard."""
    said = False

    def asked() -> bool:
        nonlocal said
        said = said or ask()
        return said

    return asked


class _Lateness:
    """Tells that ticks were missed, at most once a second."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._missed = 0
        self._told_at = float("-inf")

    def note(self, now: float, missed: int) -> None:
        """Count missed ticks, and say so if it is time."""
        self._missed += missed
        if self._missed and now - self._told_at >= _TELL_S:
            self._tell(f"late: {self._missed} tick{'s' * (self._missed > 1)} missed")
            self._missed, self._told_at = 0, now
