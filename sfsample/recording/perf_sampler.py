"""The loop where the kernel's timers take the samples: sleep, read what has come, unwind it.

Law: the rate is of CPU time: a thread that runs gets a sample each 1/rate of it, one that does not gets none.
The period is a little off, by chance, and the same throughout, so that two recordings do not keep the same
step.  Nothing depends on when we wake up, so others run first; copies wait for us, and those that find no
room are counted.
"""

import math
import resource
import time
from collections.abc import Callable, Iterable, Sequence

from sfsample.errors import TargetError
from sfsample.process.perf_events import MAX_SAMPLE_STACK_BYTES, PerfEvents, open_events
from sfsample.process.perf_records import Lost, Record, Sample
from sfsample.process.priority import give_way
from sfsample.process.process import LiveProcess
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_process import PerfProcess
from sfsample.recording.profile import Profile
from sfsample.recording.schedule import uniform
from sfsample.unwind.unwinder import Unwinder

_DOZE_S = 0.1  # look this often whether to stop
_FIRST_S, _LATER_S = 0.02, 0.5  # read the rings that often, at first and later
_PROMPT_S = 0.1  # for who looks on meanwhile
_OFF = 0.02  # the period is off by at most this part
_SHORTEST_NS = 10_000  # the kernel's limit
_ENOUGH = 20  # samples that tell how much stack is worth copying
_LEAST_BYTES = 4 << 10
_TRIES = 3  # to set timers while nobody is born


class PerfSampler:
    """Samples processes into one profile by the kernel's timers.

    `start`: when the recording began (time.monotonic), if what came before was sampled otherwise.
    """

    def __init__(
        self,
        targets: Sequence[LiveProcess],
        options: RecordOptions,
        duration: float | None = None,
        profile: Profile | None = None,
        *,
        random: Callable[[], float] = uniform,
        start: float | None = None,
    ) -> None:
        self._options = options
        self._duration = duration
        self._most_bytes = self._stack_bytes = min(options.stack_bytes, MAX_SAMPLE_STACK_BYTES)
        self._events: PerfEvents | None = None
        self._fits = False  # as much is copied as is needed
        self._cpu = 0.0
        self._end_s = 0.0
        self._start_ns = 0 if start is None else round(start * 1e9)
        self._period_ns = max(_SHORTEST_NS, round(1e9 / options.rate * (1 + _OFF * (2 * random() - 1))))
        self.profile = profile or Profile(options.rate, timeline=options.timeline)
        self._evented = {}
        for target in targets:
            unwinder = Unwinder(target.modules, steppers=options.steppers, max_frames=options.max_frames)
            self._evented[target.pid] = PerfProcess(target, unwinder, self.profile, options.bad_stacks)
        self._alive = dict(self._evented)

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no process is left.

        Raises NotPermitted and UnsupportedTarget where there are no such timers.
        """
        stats = self.profile.stats
        if self._events is None:
            self.set_timers()
        try:
            self._sample(should_stop)
        except (TargetError, OSError) as failure:  # what was collected is not lost by it
            if not stats.samples:
                raise
            stats.end_early(failure)
        return self.profile

    def set_timers(self) -> None:
        """Set the timers and start them.  Raises NotPermitted and UnsupportedTarget."""
        give_way()
        stats = self.profile.stats
        self.profile.started_ns = self.profile.started_ns or time.time_ns()
        self._cpu = time.thread_time() - stats.sampler_cpu_s
        self._start_ns = self._start_ns or time.perf_counter_ns()
        self._events = self._timers()

    def _sample(self, should_stop: Callable[[], bool]) -> None:
        stats = self.profile.stats
        try:
            stats.ended_by = self._loop(should_stop)
        finally:
            self._set.close()
            stats.duration_s = self._end_s or self._elapsed()
            stats.ticks = self._ticks(stats.duration_s)
            for one in self._evented.values():
                one.finish()
            stats.sampler_cpu_s = time.thread_time() - self._cpu
            stats.sampler_max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    @property
    def _set(self) -> PerfEvents:
        """The timers that are set."""
        assert self._events is not None  # noqa: S101 - `run` sets them first
        return self._events

    def _timers(self) -> PerfEvents:
        """Set the timers of all threads; anew if one was born meanwhile, which may have none."""
        arch = next(iter(self._evented.values())).target.arch
        tids, tries = self._tids(), 0
        while True:
            events = open_events(self._alive, tids, arch, self._period_ns, self._stack_bytes)
            try:
                events.begin()
                before, tids, tries = tids, self._tids(), tries + 1
            except BaseException:
                events.close()
                raise
            if set(tids) <= set(before) or tries > _TRIES:
                return events
            events.close()

    def _tids(self) -> list[int]:
        return [tid for one in self._alive.values() for tid in one.target.proc.threads()]

    def _loop(self, should_stop: Callable[[], bool]) -> str:
        interval = _FIRST_S  # not at once: what it took to begin may have to be spared first
        due = self._elapsed() + interval
        while True:
            now, left = self._elapsed(), self._left()
            if left <= 0 or should_stop():
                self._stop_timers()
                self._end_s = self._end_s or self._elapsed()
                self._count(self._set.read())
                return "duration" if left <= 0 else "signal"
            full = self._set.wait(max(0.0, min(left, _DOZE_S, due - now)))
            if full or self._elapsed() >= due:
                if not self._read():
                    return "target"
                self._spare(should_stop)
                interval = min(2 * interval, _PROMPT_S if self.profile.prompt else _LATER_S)
                due = self._elapsed() + interval

    def _elapsed(self) -> float:
        return (time.perf_counter_ns() - self._start_ns) / 1e9

    def _left(self) -> float:
        return float("inf") if self._duration is None else self._duration - self._elapsed()

    def _read(self) -> bool:
        """Count what has come; False when no target is left."""
        lives = self._collect()
        for pid, one in self._alive.items():
            if not lives[pid]:
                one.take((), self._start_ns)
        self._fit()
        self._alive = {pid: one for pid, one in self._alive.items() if lives[pid]}
        return bool(self._alive)

    def _collect(self) -> dict[int, bool]:
        """Count what has come; what came after a change of modules, once the maps were read again."""
        lives: dict[int, bool] = {}
        for _ in range(2):  # more often, and a process that never stops changing would take all our time
            lives = self._begin()  # before, so that the last is read
            until_ns = time.perf_counter_ns()  # of later ones, some may not be there yet
            self._count(self._set.read(), until_ns)
            if not any(one.waits for one in self._alive.values()):
                break
        self.profile.stats.ticks = self._ticks(self._elapsed())
        return lives

    def _ticks(self, elapsed_s: float) -> int:
        """Return how often 1/rate has passed, with the one at the beginning, as it counts elsewhere."""
        return max(1, round(min(elapsed_s, self._duration or math.inf) * self._options.rate))

    def _begin(self) -> dict[int, bool]:
        self._account()
        return {pid: one.begin() for pid, one in self._alive.items()}

    def _pause(self) -> None:
        """Stop the timers, and count what is left."""
        self._stop_timers()
        self._count(self._set.read())

    def _stop_timers(self) -> None:
        """Stop them: from now on no change of modules is told.

        Nothing is unwound before they stand still: where that takes long, more would come meanwhile.
        """
        for one in self._alive.values():
            one.end_of_news()
        self._begin()
        self._set.pause()
        self._account()  # of all that is in the rings

    def _account(self) -> None:
        for one in self._alive.values() if not self._end_s else ():
            one.account()

    def _end_in_time(self) -> None:
        """Note that the time is over: to unwind what has come may take longer than what was left of it."""
        if not self._end_s and self._left() <= 0:
            self._account()
            self._end_s = self._elapsed()

    def _count(self, records: Iterable[Record], until_ns: int | None = None) -> None:
        by_pid: dict[int, list[Record]] = {pid: [] for pid in self._alive}
        end_ns = self._start_ns + self._end_s * 1e9 if self._end_s else math.inf
        for record in records:
            if isinstance(record, Sample) and record.at_ns > end_ns:
                continue
            if isinstance(record, Lost):
                next(iter(self._evented.values())).lost(record.records)
                for records_of_one in by_pid.values():
                    records_of_one.append(record)  # a change of modules may have been lost
            elif record.pid in by_pid:
                by_pid[record.pid].append(record)
        for pid, one in self._alive.items():
            one.take(by_pid[pid], self._start_ns, until_ns, self._end_in_time)

    def _untold(self) -> None:
        for one in self._alive.values():
            one.untold()

    def _fit(self) -> None:
        """Have as much copied as is twice enough; all that can be, for good, if that was not."""
        all_of_them, again = self._evented.values(), self._fits
        if not again and sum(one.samples for one in all_of_them) < _ENOUGH:
            return
        used = max(one.stack_used for one in all_of_them)
        wanted = min(self._most_bytes, max(_LEAST_BYTES, 1 << (2 * used).bit_length()))
        if wanted > self._stack_bytes or not again:
            self._fits = True
            self._set_anew(self._most_bytes if again else wanted)

    def _set_anew(self, stack_bytes: int) -> None:
        """Have other timers go on.  What is left of the old ones is unwound when these run."""
        self._stop_timers()
        left = self._set.read()
        self._set.close()
        self._stack_bytes = stack_bytes
        try:
            self._events = self._timers()
        finally:
            self._count(left)
        self._untold()

    def _any_lives(self) -> bool:
        return not all(one.target.proc.has_ended() for one in self._alive.values())

    def _spare(self, should_stop: Callable[[], bool]) -> None:
        """Have the timers stand still for as long as it takes to stay below the limit of overhead."""
        limit, began = self._options.max_overhead, self._elapsed()
        spent = time.thread_time() - self._cpu
        until = began if limit is None else min(spent / limit, began + self._left())
        if until - began < _DOZE_S:
            return
        self._pause()
        while self._elapsed() < until and not should_stop() and self._any_lives():
            time.sleep(_DOZE_S)
        self._set.begin()
        self._untold()
        self.profile.stats.spared_ticks += round((self._elapsed() - began) * self._options.rate)
