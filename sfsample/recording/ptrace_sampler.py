"""Samples processes by stopping or reading their threads, at the ticks of a schedule.

The schedule depends on the cost of samples only if the overhead has a limit.  sfsample counts a
missed tick, and takes no other tick instead.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf

from sfsample.core.checkpoint import PENDING_STOPS, OutOfTime
from sfsample.core.python_view import PythonView
from sfsample.core.quantities import counted
from sfsample.errors import NoSuchProcess, TargetError
from sfsample.process.capture import ThreadCapturer
from sfsample.process.facts.descriptors import KeptPeers, KeptTables
from sfsample.process.had_cpu import OwnRun, WakeUp
from sfsample.process.image_cache import ImageCache
from sfsample.process.priority import REAL_TIME_PRIORITY
from sfsample.process.process import LiveProcess
from sfsample.process.stop_request import await_stop
from sfsample.process.stuck import LeftBehind
from sfsample.recording.due_threads import spread_of
from sfsample.recording.process_sampler import ProcessSampler
from sfsample.recording.processes import Recording
from sfsample.recording.profile import Profile
from sfsample.recording.sample import TickTime
from sfsample.recording.ticks import MAX_LATE_S, SLOWNESS, OverheadLimit, Schedule, uniform
from sfsample.recording.wait_finder import WaitFinder
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import Unwinder

_MAX_SLEEP_S = 0.1  # seconds between two calls of `should_stop`
_MAX_STOP_WAIT_S = 0.001  # longest wait for the signal of a late stop: one signal may announce several stops
_REFRESH_S = 1.0  # shortest time in s between two ticks that search for every change of the processes
_REFRESHED_PER_S = 10  # processes that are searched for changes in a second
_LATENESS_S = 1.0  # seconds between two messages about missed ticks
_REAL_TIME_SHARE = 0.2  # share of one CPU that sfsample may use at real-time priority
_MAX_HOLDERS = 32  # open processes that are not recorded, but for which recorded processes wait
_OPEN_FIRST_S, _OPEN_LATER_S = 1.0, 0.05  # seconds to open descendants: before the first tick, at each tick


class Clock:
    """The monotonic clock, in seconds.  Tests replace it by another clock."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class PtraceSampler:
    """Samples processes and their descendants.  `jitter` returns random numbers from 0 to 1."""

    def __init__(
        self, recording: Recording, clock: Clock | None = None, jitter: Callable[[], float] = uniform
    ) -> None:
        self._recording, self._options = recording, recording.options
        self._processes, self.profile = recording.processes, recording.profile
        self._clock, self._jitter = clock or Clock(), jitter
        self._unreported_ticks, self._reported_at = 0, -inf
        self._own_run = OwnRun()
        self._names = Symbolizer()  # names functions of C libraries
        # pid -> a process that is not recorded, and the number of the last tick that used it; oldest first
        self._holders: dict[int, tuple[ProcessSampler, int]] = {}
        self._peers, self._tables = KeptPeers(), KeptTables()
        self._images = recording.images or ImageCache()
        self._start = recording.start or 0.0  # begin of the first interval, in s on the clock
        self._refresh_at = self._cpu_at_start = 0.0
        now = self._clock.now()
        self._real_time = OverheadLimit(_REAL_TIME_SHARE, now, REAL_TIME_PRIORITY.used_s())
        self._last_tick = TickTime(0, round((now - self._start) * 1e9) if recording.start else 0)
        self._samplers = [self._sampler_of(process) for process in self._processes.all]
        self._pending: list[ProcessSampler] = []  # samplers with a pending stop

    def _sampler_of(self, process: LiveProcess, recording: Recording | None = None) -> ProcessSampler:
        recording = recording or self._recording
        options, named = recording.options, process in self._processes.named
        how = (options.steppers, options.max_frames, options.stop, options.kernel_frames, options.python,
               options.gil)  # fmt: skip
        made_for, capturer = process.capturer
        is_same = made_for == how and isinstance(capturer, ThreadCapturer)
        if not is_same or capturer.problems.total():  # a reused capturer would count its problems again
            unwinder = Unwinder(process.modules, steppers=options.steppers, max_frames=options.max_frames)
            if named:
                unwinder.prepare(process.arch)
            capturer = ThreadCapturer(
                process, unwinder, stop=options.stop, kernel=options.kernel_frames,
                python=options.python is not PythonView.OFF, gil=options.gil,
            )  # fmt: skip
            process.capturer = how, capturer
        waits = None
        if options.mode == "wall":
            peers = self._peers if options.blame else None
            waits = WaitFinder(
                process, capturer, self._names, self._tables, peers, details=options.wait_details
            )
        return ProcessSampler(
            process, capturer, recording, self._jitter, named=named, since=self._last_tick,
            waits=waits, others=self._holder,
        )  # fmt: skip

    def _holder(self, pid: int) -> ProcessSampler | None:
        """Return the sampler of a process for which another waits; None: it has ended, or is refused."""
        if recorded := [sampler for sampler in self._samplers if sampler.process.pid == pid]:
            return recorded[0]
        stats, tick = self.profile.stats, self._last_tick
        try:
            holder = self._holders.pop(pid)[0] if pid in self._holders else self._open_holder(pid)
            self._holders[pid] = holder, tick.number
            if holder.visit(tick):
                return holder
            del self._holders[pid]
            holder.process.close()
            stats.holders_changed += 1
        except TargetError as refusal:
            has_ended = isinstance(refusal, NoSuchProcess)
            stats.holders_changed += has_ended
            stats.holders_refused += not has_ended
        return None

    def _open_holder(self, pid: int) -> ProcessSampler:
        """Open a process that is not recorded.  Raises TargetError, also if this tick needs too many."""
        if len(self._holders) >= _MAX_HOLDERS:
            oldest, (holder, visited) = next(iter(self._holders.items()))
            if visited == self._last_tick.number:  # `Blame` uses it at this tick
                raise TargetError(pid, "too many processes hold up the recorded ones")
            del self._holders[oldest]
            holder.process.close()
        options = replace(self._options, stop=False)  # the user has not named that process
        profile = Profile(self._options.rate)  # its counts are not used
        profile.roots = self.profile.roots  # shared, so that generated code gets names
        beside = self._recording._replace(options=options, profile=profile)
        return self._sampler_of(LiveProcess(pid, attach=False, image_cache=self._images), beside)

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` returns True, or no named process is left."""
        stats, owns_stats = self.profile.stats, True
        try:
            self._open_descendants(_OPEN_FIRST_S, force=True)
            self._cpu_at_start = time.thread_time() - stats.sampler_cpu_s
            self._start = self._start or self._clock.now()
            self.profile.started_ns = self.profile.started_ns or time.time_ns()
            try:
                stats.end_by(lambda: self._loop(should_stop))
            except LeftBehind:
                owns_stats = False  # another sampling thread goes on with the statistics and the processes
                raise
            finally:
                REAL_TIME_PRIORITY.during_ticks(is_wanted=False)
                if owns_stats:
                    self._finish()
        finally:
            self._own_run.close()
            for holder, _ in self._holders.values():
                holder.process.close()
        return self.profile

    def _finish(self) -> None:
        stats = self.profile.stats
        stats.duration_s = self._clock.now() - self._start
        for sampler in self._samplers:
            sampler.finish()
        if self._options.mode == "cpu":
            self.profile.spread_cpu_time(set().union(*(one.living for one in self._samplers)))
        stats.lacks_priority = not REAL_TIME_PRIORITY.is_allowed
        stats.count_cost(self._cpu_at_start)

    def _loop(self, should_stop: Callable[[], bool]) -> str:
        schedule = Schedule(self._start, self._options.rate, self._recording.duration, self._jitter)
        if self._recording.start:  # another sampler took the ticks up to now
            self.profile.stats.late_ticks += schedule.skip(self._clock.now()) - self.profile.stats.ticks
        self._refresh_at = self._clock.now() + _REFRESH_S
        limit = OverheadLimit(self._options.max_overhead, self._clock.now(), self._spent_s(), SLOWNESS)
        stats = self.profile.stats

        def go_on() -> bool:
            self.collect()
            return self._clock.now() < schedule.end and not should_stop()

        while not schedule.over:
            if not self._wait(schedule.next(), should_stop):
                return "signal"
            # The time and the counters are read first, because the target may run at any moment.
            own_run = None if self._options.mode == "wall" else self._own_run.read()
            woken = WakeUp(time.perf_counter_ns(), own_run, self._own_run.read)
            now = self._clock.now()
            due, missed = schedule.ticks, schedule.take(now)
            stats.ticks = schedule.ticks
            stats.late_ticks += missed
            stats.spared_ticks += schedule.ticks - due - max(1, missed)  # all but the taken or missed ticks
            self._report_missed(now, missed)
            if missed:
                continue
            at_ns, lives = round((now - self._start) * 1e9), True
            with suppress(OutOfTime), PENDING_STOPS.calling(lambda: self._choose_priority(schedule.end)):
                lives = self._tick(at_ns, woken, go_on)
            if not lives:
                return "target"
            if self._options.max_overhead is not None:
                now = self._clock.now()
                schedule.stretch = 1 + (limit.resume_at(now, self._spent_s()) - now) * self._options.rate
        return "duration" if self._wait(schedule.end, should_stop) else "signal"

    def _report_missed(self, now: float, missed: int) -> None:
        self._unreported_ticks += missed
        if self._unreported_ticks and now - self._reported_at >= _LATENESS_S:
            self._recording.tell(f"late: {counted(self._unreported_ticks, 'tick')} missed")
            self._unreported_ticks, self._reported_at = 0, now

    def _wait(self, until: float, should_stop: Callable[[], bool]) -> bool:
        """Sleep until `until` (s), and collect threads meanwhile; return False if `should_stop` is true."""
        while not should_stop():  # called before the sleep, so that samples follow the sleep at once
            collected, left = self.collect(), until - self._clock.now()
            if left > 0 and not collected:
                await_stop(min(left, _MAX_STOP_WAIT_S))
                continue
            self._choose_priority()
            if left > 0:
                self._clock.sleep(min(left, _MAX_SLEEP_S))
            if left <= _MAX_SLEEP_S:
                return True
        return False

    def _choose_priority(self, end_s: float = inf) -> None:
        """Use real-time priority, up to a share of one CPU.  Raises OutOfTime soon after `end_s`."""
        now = self._clock.now()
        if now > end_s + MAX_LATE_S:
            raise OutOfTime
        is_wanted = self._real_time.resume_at(now, REAL_TIME_PRIORITY.used_s()) <= now
        REAL_TIME_PRIORITY.during_ticks(is_wanted=is_wanted)

    def _tick(self, at_ns: int, woken: WakeUp, go_on: Callable[[], bool]) -> bool:
        """Sample every process; False: all named processes have ended."""
        now = self._clock.now()
        refresh = now >= self._refresh_at
        if refresh:
            self._refresh_at = now + max(_REFRESH_S, len(self._samplers) / _REFRESHED_PER_S)
        self._open_descendants(_OPEN_LATER_S, force=refresh)
        self._last_tick = TickTime(self._last_tick.number + 1, at_ns)
        spread = spread_of(sum(len(sampler.threads) for sampler in self._samplers))
        for sampler in tuple(self._samplers):
            if self._pending:
                self.collect()
            if not sampler.tick(self._last_tick, woken, spread=spread, refresh=refresh, go_on=go_on):
                self._end(sampler)
            elif not sampler.collect() and sampler not in self._pending:
                self._pending.append(sampler)
        self.profile.waiters.end_tick()
        return bool(self._processes.named)

    def collect(self) -> bool:
        """Capture threads that have stopped by now; False: a stop is still pending."""
        self._pending = [sampler for sampler in self._pending if not sampler.collect()]
        return not self._pending

    def _spent_s(self) -> float:
        """Return, in s, the CPU time of sfsample plus the longest total time for which it held one thread."""
        threads = (thread for sampler in self._samplers for thread in sampler.threads.values())
        held_ns = max((thread.stopped_ns for thread in threads), default=0)
        return time.thread_time() - self._cpu_at_start + held_ns / 1e9

    def _open_descendants(self, time_s: float, *, force: bool) -> None:
        for process in self._processes.open_new(self.profile.stats, time_s, force=force):
            self.collect()  # opening takes time, and stopped threads must not wait for it
            self._samplers.append(self._sampler_of(process))

    def _end(self, sampler: ProcessSampler) -> None:
        sampler.finish()
        self._samplers.remove(sampler)
        self._pending = [one for one in self._pending if one is not sampler]
        self._processes.end(sampler.process)
