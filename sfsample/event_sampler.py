"""The loop where the kernel's timers take the samples: sleep, read what has come, unwind it.

Law: the rate is of CPU time: a thread that runs gets a sample each 1/rate of it, one that does not gets none.
The period is a little off, by chance, and the same throughout, so that two recordings do not keep the same
step.  Nothing depends on when we wake up; copies wait for us, and those that find no room are counted.
"""

import resource
import time
from collections.abc import Callable, Iterable, Sequence

from sfsample.errors import TargetError
from sfsample.evented import Evented
from sfsample.profile import Profile
from sfsample.sampler import Options
from sfsample.schedule import uniform
from sfsample.target.live import LiveProcess
from sfsample.target.perf_events import LARGEST_STACK, PerfEvents, open_events
from sfsample.target.perf_records import Lost, Record
from sfsample.unwind.unwinder import Unwinder

_DOZE_S = 0.1  # look this often whether to stop
_FIRST_S, _LATER_S = 0.02, 0.5  # read the rings that often, at first and later
_OFF = 0.02  # the period is off by at most this part
_ENOUGH = 20  # samples that tell how much stack is worth copying
_LEAST_BYTES = 4 << 10
_TRIES = 3  # to set timers while nobody is born


class EventSampler:
    """Samples processes into one profile by the kernel's timers."""

    def __init__(
        self,
        targets: Sequence[LiveProcess],
        options: Options,
        stack_bytes: int,
        profile: Profile | None = None,
        *,
        random: Callable[[], float] = uniform,
    ) -> None:
        self._options = options
        self._most_bytes = self._stack_bytes = min(stack_bytes, LARGEST_STACK)
        self._fits = False  # as much is copied as is needed
        self._cpu = 0.0
        self._start_ns = 0
        self._period_ns = round(1e9 / options.rate * (1 + _OFF * (2 * random() - 1)))
        self.profile = profile or Profile(options.rate, timeline=options.timeline)
        self.profile.stats.by_events = True
        self._evented = {}
        for target in targets:
            unwinder = Unwinder(target.index, steppers=options.steppers, max_frames=options.max_frames)
            self._evented[target.pid] = Evented(target, unwinder, self.profile, options.bad_stacks)
        self._alive = dict(self._evented)

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no target is left.

        Raises NotPermitted and UnsupportedTarget where there are no such timers.
        """
        stats = self.profile.stats
        self.profile.started_ns = time.time_ns()
        self._cpu = time.thread_time()
        self._start_ns = time.perf_counter_ns()
        self._events = self._timers()
        try:
            stats.ended_by = self._loop(should_stop)
        except (TargetError, OSError) as failure:  # what was collected is not lost by it
            if not stats.samples:
                raise
            stats.end_early(failure)
        finally:
            self._events.close()
            stats.duration_s = (time.perf_counter_ns() - self._start_ns) / 1e9
            stats.ticks = round(stats.duration_s * self._options.rate)
            for one in self._evented.values():
                one.finish()
            stats.sampler_cpu_s = time.thread_time() - self._cpu
            stats.sampler_max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return self.profile

    def _timers(self) -> PerfEvents:
        """Set the timers of all threads; anew if one was born meanwhile, which may have none."""
        arch = next(iter(self._evented.values())).target.arch
        tids = self._tids()
        for _ in range(_TRIES):
            events = open_events(self._alive, tids, arch, self._period_ns, self._stack_bytes)
            events.begin()
            before, tids = tids, self._tids()
            if set(tids) <= set(before):
                break
            events.close()
        else:
            events = open_events(self._alive, tids, arch, self._period_ns, self._stack_bytes)
            events.begin()
        return events

    def _tids(self) -> list[int]:
        return [tid for one in self._alive.values() for tid in one.target.proc.threads()]

    def _loop(self, should_stop: Callable[[], bool]) -> str:
        interval, due = _FIRST_S, 0.0
        while True:
            now, left = self._elapsed(), self._left()
            if left <= 0 or should_stop():
                self._events.pause()
                self._count(self._events.read())
                return "duration" if left <= 0 else "signal"
            full = self._events.wait(max(0.0, min(left, _DOZE_S, due - now)))
            if full or self._elapsed() >= due:
                if not self._read():
                    return "target"
                self._spare(should_stop)
                interval = min(2 * interval, _LATER_S)
                due = self._elapsed() + interval

    def _elapsed(self) -> float:
        return (time.perf_counter_ns() - self._start_ns) / 1e9

    def _left(self) -> float:
        duration = self._options.duration
        return float("inf") if duration is None else duration - self._elapsed()

    def _read(self) -> bool:
        """Count what has come; False when no target is left."""
        lives = {pid: one.begin() for pid, one in self._alive.items()}  # before, so that the last is read
        self._count(self._events.read())
        self._fit()
        self._alive = {pid: one for pid, one in self._alive.items() if lives[pid]}
        return bool(self._alive)

    def _count(self, records: Iterable[Record]) -> None:
        by_pid: dict[int, list[Record]] = {pid: [] for pid in self._alive}
        for record in records:
            if isinstance(record, Lost):
                next(iter(self._evented.values())).lost(record.records)
            elif record.pid in by_pid:
                by_pid[record.pid].append(record)
        for pid, one in self._alive.items():
            one.take(by_pid[pid], self._start_ns)

    def _fit(self) -> None:
        """Have as much copied as is twice enough; all that can be, for good, if that was not."""
        if not self._fits and self.profile.stats.samples < _ENOUGH:
            return
        used = max(one.stack_used for one in self._evented.values())
        wanted = min(self._most_bytes, max(_LEAST_BYTES, 1 << (2 * used).bit_length()))
        if wanted > self._stack_bytes or not self._fits:
            wanted = self._most_bytes if self._fits else wanted
            self._fits = True
            self._events.pause()
            self._count(self._events.read())
            self._events.close()
            self._stack_bytes = wanted
            self._events = self._timers()

    def _spare(self, should_stop: Callable[[], bool]) -> None:
        """Have the timers stand still for as long as it takes to stay below the limit of overhead."""
        limit, began = self._options.max_overhead, self._elapsed()
        until = (
            began if limit is None else min((time.thread_time() - self._cpu) / limit, began + self._left())
        )
        if until - began < _DOZE_S:
            return
        self._events.pause()
        while self._elapsed() < until and not should_stop():
            time.sleep(_DOZE_S)
        self._events.begin()
        self.profile.stats.spared_ticks += round((self._elapsed() - began) * self._options.rate)
