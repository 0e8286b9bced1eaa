"""Samples processes by the kernel's timers: sleeps, reads the rings, and unwinds the copied stacks.

The rate refers to CPU time: a thread gets a sample for each 1/rate s of CPU time, and none while it does
not run.  The period of a recording differs from 1/rate by a small random part, so that two recordings do not
keep step with each other.  The copies wait in the rings until sfsample wakes up, so sfsample can let other
threads run first.  If a ring is full, the kernel drops copies, and sfsample counts lost samples.

With --subprocesses, a new process inherits the timers of its creator, so the samples of the process begin
with its first instruction.  The samples are lost if the process ends before sfsample can open it.
"""

import math
import time
from collections.abc import Callable, Iterable

from sfsample.core.checkpoint import PENDING_STOPS, OutOfTime
from sfsample.process.kernel_symbols import KERNEL_SYMBOLS_HIDDEN, KernelSymbols, shows_addresses
from sfsample.process.perf_records import Lost, PerfSample, Record, RecordOfProcess
from sfsample.process.priority import avoid_preempting
from sfsample.process.process import LiveProcess
from sfsample.process.stuck import LeftBehind
from sfsample.recording.perf_process import PerfProcess, StackUse
from sfsample.recording.processes import Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ticks import MAX_LATE_S, OverheadLimit, uniform
from sfsample.recording.timer_set import TimerSet
from sfsample.unwind.unwinder import Unwinder

_MAX_SLEEP_S = 0.1  # seconds between two calls of `should_stop`
_FIRST_READ_S = 0.02  # seconds from the start to the first read; the interval then doubles each time
_MAX_READ_INTERVAL_S = 0.5
_SHORT_READ_INTERVAL_S = 0.1  # seconds between two reads for a live view, or while descendants come and go
_READ_INTERVAL_PER_PROCESS_S = 0.001  # seconds for each process; to read a process takes 1/50 of this time
_PERIOD_DEVIATION = 0.02  # largest random part, as a share of the period
_MIN_PERIOD_NS = 10_000  # the kernel's limit
_FIND_DESCENDANTS_S = 0.02  # seconds between two searches for new processes
_OPEN_TIME_S = 0.05  # seconds for opening new descendants, before the rings are read
_NOT_OPENED = "the subprocess ended before it could be opened, or could not be opened"
_RING_FULL = "the ring was full before it was read"
_SMALL_RING_FULL = f"{_RING_FULL}: the ring is small, because no more memory may be locked (ulimit -l)"


class PerfSampler:
    """Samples processes into one profile by the kernel's timers; `per_cpu`: first try timers of CPUs."""

    def __init__(self, recording: Recording, *, per_cpu: bool = False) -> None:
        self._processes, self.profile, options = recording.processes, recording.profile, recording.options
        self._duration, start = recording.duration, recording.start
        self._options, processes = options, self._processes
        self._is_set = False  # True: the timers are set
        self._cpu_at_start = 0.0
        self._limit = OverheadLimit(options.max_overhead, 0.0, time.thread_time())
        self._end_s = 0.0  # time from the start to the end of the recording; 0: it has not ended
        self._start_ns = 0 if start is None else round(start * 1e9)
        deviation = _PERIOD_DEVIATION * (2 * uniform() - 1)
        period_ns = max(_MIN_PERIOD_NS, round(1e9 / options.rate * (1 + deviation)))
        wants_kernel = options.kernel_frames is not False
        kernel = wants_kernel and shows_addresses()
        if wants_kernel and not kernel:
            self.profile.stats.note(KERNEL_SYMBOLS_HIDDEN)
        self._kernel_symbols = KernelSymbols()
        self._used_ns = 0  # CPU time of the processes just before the last read of the rings
        self._timers = TimerSet(
            processes, self.profile.stats, period_ns, options.stack_bytes,
            lambda: self._open_descendants(math.inf, force=True), per_cpu=per_cpu, kernel=kernel,
        )  # fmt: skip
        self._longest_sleep_s = _FIND_DESCENDANTS_S if processes.follows_births else _MAX_SLEEP_S
        self._stack_use = StackUse()
        self._alive: dict[int, PerfProcess] = {}  # pid -> process
        self._unclaimed: list[RecordOfProcess] = []  # records of processes that are not open yet
        for process in processes.all:
            self._add(process)

    def _add(self, process: LiveProcess) -> None:
        options = self._options
        unwinder = Unwinder(process.modules, steppers=options.steppers, max_frames=options.max_frames)
        earlier = self._alive.get(process.pid)
        if earlier is not None:  # a process that has ended, and had the same id
            self._end(earlier)
        is_new = self._is_set
        added = self._alive[process.pid] = PerfProcess(
            process, unwinder, self.profile, self._stack_use,
            kernel_symbols=self._kernel_symbols, is_new=is_new,
        )  # fmt: skip
        if is_new:
            added.begin()

    def _end(self, ended: PerfProcess) -> None:
        ended.finish()
        del self._alive[ended.process.pid]
        self._processes.end(ended.process)

    def _open_descendants(self, time_s: float, *, force: bool = False) -> None:
        for process in self._processes.open_new(self.profile.stats, time_s, force=force):
            self._add(process)

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample as `PtraceSampler.run` does.  Raises NotPermitted and UnsupportedTarget."""
        owns_stats = True
        if not self._is_set:
            self.set_timers()
        try:
            self.profile.stats.end_by(lambda: self._loop(should_stop))
        except LeftBehind:
            owns_stats = False  # another sampling thread goes on with the statistics and the processes
            raise
        finally:
            self._timers.events.close()
            if owns_stats:
                self._finish()
        return self.profile

    def _finish(self) -> None:
        stats = self.profile.stats
        stats.duration_s = self._end_s or self._elapsed_s()
        stats.ticks = self._ticks(stats.duration_s)
        self._count_unclaimed(self._unclaimed)
        for process in self._alive.values():
            process.finish()
        stats.count_cost(self._cpu_at_start)

    def set_timers(self) -> None:
        """Set the timers and start them.  Raises NotPermitted and UnsupportedTarget."""
        avoid_preempting()
        stats = self.profile.stats
        self.profile.started_ns = self.profile.started_ns or time.time_ns()
        self._cpu_at_start = time.thread_time() - stats.sampler_cpu_s
        self._start_ns = self._start_ns or time.perf_counter_ns()
        self._timers.open()
        self._is_set = True

    def _stop_timers(self) -> None:
        """Stop the timers, so that no new records come while the last records are unwound."""
        self._doubt_maps()
        self._begin_read()
        self._timers.events.pause()
        self._read_cpu_times()  # CPU times up to the last record in the rings

    def _replace_timers(self) -> None:
        """Set new timers, then unwind the last records of the old timers."""
        self._stop_timers()
        records = self._timers.events.read()
        self._timers.events.close()
        try:
            self._timers.open()
        finally:
            self._count(records)
        self._doubt_maps()

    def _doubt_maps(self) -> None:
        """Mark all maps as stale, because mappings are not recorded while the timers are off."""
        for process in self._alive.values():
            process.maps_stale = True

    def _stay_below_overhead(self, should_stop: Callable[[], bool]) -> None:
        """Stop the timers until the overhead is below its limit again."""
        began_s = self._elapsed_s()
        until_s = min(self._limit.resume_at(began_s, time.thread_time()), began_s + self._left_s())
        if until_s - began_s < _MAX_SLEEP_S:
            return
        self._stop_timers()
        self._count(self._timers.events.read())
        procs = [process.process.proc for process in self._alive.values()]
        while self._elapsed_s() < until_s and not should_stop() and not all(p.has_ended() for p in procs):
            time.sleep(_MAX_SLEEP_S)
        self._timers.events.begin()
        self._doubt_maps()
        self.profile.stats.spared_ticks += int((self._elapsed_s() - began_s) * self._options.rate)
        self._timers.begin_coverage()

    def _loop(self, should_stop: Callable[[], bool]) -> str:
        self._limit = OverheadLimit(self._options.max_overhead, self._elapsed_s(), time.thread_time())
        interval_s = _FIRST_READ_S
        due_s = self._elapsed_s() + interval_s
        while True:
            now_s, left_s = self._elapsed_s(), self._left_s()
            if left_s <= 0 or should_stop():
                self._stop_timers()
                self._end_s = self._end_s or self._elapsed_s()
                self._count(self._timers.events.read())
                return "duration" if left_s <= 0 else "signal"
            full = self._timers.events.wait(max(0.0, min(left_s, self._longest_sleep_s, due_s - now_s)))
            self._open_descendants(_OPEN_TIME_S)
            if full or self._elapsed_s() >= due_s:
                if not self._read():
                    return "target"
                self._stay_below_overhead(should_stop)
                interval_s = min(2 * interval_s, self._longest_interval_s())
                due_s = self._elapsed_s() + interval_s

    def _longest_interval_s(self) -> float:
        """Return the longest time in seconds for which records may wait in the rings.

        A live view needs a short time.  A new process needs a short time, because it often calls execve(2),
        and its new modules can be read only while it lives.  A JIT compiler that reuses memory needs a short
        time, because the name of replaced code is lost if a sample of the code still waits.
        """
        names_change = any(process.names_change for process in self._alive.values())
        if not (self.profile.prompt or self._processes.follows_births or names_change):
            return _MAX_READ_INTERVAL_S
        shortest_s = len(self._alive) * _READ_INTERVAL_PER_PROCESS_S
        return min(max(_SHORT_READ_INTERVAL_S, shortest_s), _MAX_READ_INTERVAL_S)

    def _elapsed_s(self) -> float:
        return (time.perf_counter_ns() - self._start_ns) / 1e9

    def _left_s(self) -> float:
        return float("inf") if self._duration is None else self._duration - self._elapsed_s()

    def _ticks(self, elapsed_s: float) -> int:
        """Return the number of intervals of 1/rate in `elapsed_s` (at least 1), as the number of ticks."""
        return max(1, round(min(elapsed_s, self._duration or math.inf) * self._options.rate))

    def _read(self) -> bool:
        """Count new records; False: no named process is left."""
        alive = self._collect()
        ended = [process for pid, process in self._alive.items() if not alive.get(pid, True)]
        for process in ended:
            process.take((), self._start_ns)
            self._end(process)
        if not self._processes.named:
            return False
        if self._timers.fit_stack_bytes(self._stack_use) or self._timers.see_short_threads(self._used_ns):
            self._replace_timers()
        return True

    def _collect(self) -> dict[int, bool]:
        """Count new records; read changed maps first.  Return for each pid whether the process lives."""
        alive: dict[int, bool] = {}
        for _ in range(2):  # not more often, because a process may change its modules all the time
            alive = self._begin_read()  # first: the rings then have all records of ended processes
            until_ns = time.perf_counter_ns()  # time up to which all records are in the rings
            records = self._timers.events.read()
            self._timers.note(records)
            self._count(records, until_ns)
            if not any(process.needs_maps for process in self._alive.values()):
                break
        self.profile.stats.ticks = self._ticks(self._elapsed_s())
        return alive

    def _begin_read(self) -> dict[int, bool]:
        """Open new processes, and read CPU times and maps; return for each pid whether the process lives."""
        self._open_descendants(_OPEN_TIME_S)
        self._read_cpu_times()
        self._used_ns = self._processes.cpu_ns()
        return {pid: process.begin() for pid, process in self._alive.items()}

    def _read_cpu_times(self) -> None:
        for process in self._alive.values() if not self._end_s else ():
            process.read_cpu_time()

    def _note_end(self, late_s: float = 2 * MAX_LATE_S) -> None:
        """End the recording when its duration is over.  Raises OutOfTime `late_s` later."""
        if not self._end_s and self._left_s() <= 0:
            self._read_cpu_times()
            self._end_s = self._elapsed_s()
        if self._left_s() < -late_s:
            raise OutOfTime

    def _count(self, records: Iterable[Record], until_ns: int | None = None) -> None:
        """Count samples of open processes.  A process that is not open by the next call loses its samples."""
        by_pid: dict[int, list[Record]] = {pid: [] for pid in self._alive}
        claimed = [record for record in self._unclaimed if record.pid in by_pid]
        self._count_unclaimed(record for record in self._unclaimed if record.pid not in by_pid)
        self._unclaimed = []
        end_ns = self._start_ns + self._end_s * 1e9 if self._end_s else math.inf
        for record in (*claimed, *records):
            if isinstance(record, PerfSample) and record.at_ns > end_ns:
                continue
            if isinstance(record, Lost):
                reason = _SMALL_RING_FULL if self._timers.events.lacks_memory else _RING_FULL
                self.profile.stats.count_failed(reason, record.records)
                for records_of_process in by_pid.values():
                    records_of_process.append(record)  # lost records may have been changes of modules
            elif record.pid in by_pid:
                by_pid[record.pid].append(record)
            else:
                self._unclaimed.append(record)
        with PENDING_STOPS.calling(lambda: self._note_end(MAX_LATE_S)):
            for pid, process in self._alive.items():
                process.take(by_pid[pid], self._start_ns, until_ns, self._note_end)

    def _count_unclaimed(self, records: Iterable[Record]) -> None:
        lost = sum(isinstance(record, PerfSample) for record in records)
        if lost:
            self.profile.stats.count_failed(_NOT_OPENED, lost)
