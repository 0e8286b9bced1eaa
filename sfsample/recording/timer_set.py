"""Sets the kernel's timers, and chooses their kind (process/perf_events.py) and the size of stack copies."""

import logging
from collections.abc import Callable, Collection
from math import sqrt

from sfsample.errors import TargetError
from sfsample.process.perf_events import MAX_SAMPLE_STACK_BYTES, PerfEvents
from sfsample.process.perf_records import Lost, PerfSample, Record
from sfsample.recording.perf_process import StackUse
from sfsample.recording.processes import Processes
from sfsample.recording.stats import Stats

_MIN_FIT_SAMPLES = 20  # samples before the size of the copies is chosen
_MIN_STACK_BYTES = 4 << 10
_MIN_COVERAGE = 0.8  # share of the CPU time that timers of threads must cover
_DEVIATIONS = 3  # standard deviations of a count; a larger lack of samples is not by chance
_log = logging.getLogger("sfsample.recording")


def are_too_few(samples: float, due: float, enough: float) -> bool:
    """Return True if `samples` are less than the share `enough` (0 to 1) of `due`, and not by chance."""
    return due > 0 and samples < min(enough * due, due - _DEVIATIONS * sqrt(due))


class TimerSet:
    """Timers of all threads of `processes`.  After `open`, the caller reads the samples from `events`.

    `open_new` opens new descendants.  `kernel` True: samples have the call chain in the kernel.
    """

    events: PerfEvents

    def __init__(
        self, processes: Processes, stats: Stats, period_ns: int, stack_bytes: int,
        open_new: Callable[[], None], *, per_cpu: bool, kernel: bool,
    ) -> None:  # fmt: skip
        self._processes, self._stats, self._open_new = processes, stats, open_new
        self._period_ns = period_ns
        self._max_stack_bytes = self._stack_bytes = min(stack_bytes, MAX_SAMPLE_STACK_BYTES)
        self._stack_bytes_fitted = False  # True: the first samples have determined the size of the copies
        self._per_cpu, self._kernel = per_cpu, kernel  # per_cpu True: use timers of CPUs
        self._used_before_ns = 0  # CPU time of the processes at the start of the timers
        self._received = 0  # samples since the start of the timers, including lost samples

    def open(self) -> None:
        """Set timers of CPUs if wanted and permitted, else of threads.  Raises TargetError if refused."""
        if self._per_cpu:
            try:
                self.events = self._started()
            except TargetError as failure:
                _log.debug("timers of CPUs: %s", failure)
                self._per_cpu, self._stats.timers_refused = False, True
        if not self._per_cpu:
            self.events = self._started()
        self._stats.timers_of = "cpus" if self._per_cpu else "threads"
        self.begin_coverage()

    def _started(self) -> PerfEvents:
        self._open_new()
        targets, follow = self._processes.all, self._processes.follows_births
        events = PerfEvents(
            [process.pid for process in targets], self._processes.tids(), targets[0].arch, self._period_ns,
            self._stack_bytes, subprocesses=follow, per_cpu=self._per_cpu, kernel=self._kernel,
        )  # fmt: skip
        try:
            events.begin()
        except BaseException:
            events.close()
            raise
        return events

    def fit_stack_bytes(self, use: StackUse) -> bool:
        """Choose the size of the copies; return True if it has changed, so that new timers are needed.

        First, the size is twice what the first samples need.  If later samples need more, it is the maximum.
        """
        fitted = self._stack_bytes_fitted
        if not fitted and use.samples < _MIN_FIT_SAMPLES:
            return False
        needed = min(self._max_stack_bytes, max(_MIN_STACK_BYTES, 1 << (2 * use.max_bytes).bit_length()))
        if fitted and needed <= self._stack_bytes:
            return False
        self._stack_bytes = self._max_stack_bytes if fitted else needed
        self._stack_bytes_fitted = True
        return True

    def see_short_threads(self, used_ns: int) -> bool:
        """Return True if the timers must be replaced, because threads end before their own timers fire.

        `used_ns`: the CPU time of the processes (`Processes.cpu_ns`) just before the last read of the rings.
        """
        due = (used_ns - self._used_before_ns) / self._period_ns
        possible = not self._per_cpu and not self._stats.timers_refused
        self._per_cpu |= possible and are_too_few(self._received, due, _MIN_COVERAGE)
        return possible and self._per_cpu

    def begin_coverage(self) -> None:
        """Count samples and CPU time from 0 again, because the timers were off."""
        self._used_before_ns, self._received = self._processes.cpu_ns(), 0

    def note(self, records: Collection[Record]) -> None:
        """Count the samples among new records, and all lost records, as nearly all of these were samples."""
        self._received += sum(isinstance(record, PerfSample) for record in records)
        self._received += sum(record.records for record in records if isinstance(record, Lost))
