"""Unwinds and counts the stacks that the kernel's timers copy from one process.

sfsample unwinds a copied stack later, with the modules of the last reading of /proc/PID/maps.  The kernel
records every mapping of code among the samples, in order of time.  Samples after a new mapping wait until
the maps have been read again.  A stack is dropped if some of its code was mapped after the copy, or after the
reading of the maps.  sfsample reads the maps first and the rings then, so the rings have a record of each new
mapping in the maps.  A sample stands for exactly one period of CPU time of its thread.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from sfsample.core.checkpoint import OutOfTime
from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.errors import ReadFailed
from sfsample.process.capture import ThreadCapturer
from sfsample.process.kernel_symbols import KernelSymbols
from sfsample.process.perf_records import Born, Lost, Mapped, Named, PerfSample, Record
from sfsample.process.process import LiveProcess
from sfsample.recording.profile import Profile
from sfsample.recording.recorder import Recorder
from sfsample.recording.sample import BEGINNING, TickTime
from sfsample.recording.tid_history import TidHistory
from sfsample.unwind.unwinder import Unwinder

_REPLACED = "its code was replaced before the stack could be unwound"
_LEFT = "the thread had left user space for good, or runs 32-bit code"
_MIN_TIDS = 256  # thread ids; if more are noted, sfsample forgets ended threads


class StackUse:
    """The number of samples, and the largest number of bytes that a walk used of a copied stack."""

    samples = 0
    max_bytes = 0


class PerfProcess:
    """Counts the timer samples of one process into a profile."""

    def __init__(
        self, process: LiveProcess, unwinder: Unwinder, profile: Profile, stack_use: StackUse, *,
        kernel_symbols: KernelSymbols, is_new: bool,
    ) -> None:  # fmt: skip
        self.process = process
        self._capturer = ThreadCapturer(process, unwinder, stop=False)
        self._profile = profile
        self._recorder = Recorder(profile, process, BEGINNING, PythonView.OFF, is_new=is_new, late=True)
        key = self._process_key = self._recorder.process_key
        self._tid_history = TidHistory(process.thread, lambda: profile.processes.get(key, "?"))
        self._sampled_ns = 0  # CPU time that samples stand for
        self._has_ended = False  # True: the process has ended, so its CPU time can no longer be read
        self._maps_read_ns = 0  # time of the last reading of the maps
        self.maps_stale = True  # True: the maps must be read again
        self._maps_readable = True  # True: the last attempt to read the maps succeeded
        self._deferred: list[Record] = []  # records that wait for the next reading of the maps
        self._max_tids = _MIN_TIDS
        self.read_cpu_time()
        self._stack_use, self._kernel_symbols = stack_use, kernel_symbols

    def begin(self) -> bool:
        """Prepare for new records: read the maps again if they are stale; False: the process has ended."""
        process = self.process
        try:
            if self.maps_stale:
                self._read_maps()
            self._recorder.follow_perf_map()
            leader = process.proc.thread(process.pid).stat()
            if leader is not None:
                self._profile.name_process(self._process_key, leader.name)
            return not ((leader is None or leader.state in "ZX") and process.proc.has_ended())
        except ReadFailed as failure:
            self._profile.stats.note(str(failure))
            return True

    def read_cpu_time(self) -> None:
        """Note the CPU time of the process; after its end, the last value remains."""
        self._has_ended = not self._recorder.read_cpu_time()

    def _read_maps(self) -> None:
        modules, now_ns = self.process.modules, time.perf_counter_ns()
        modules.allow_refresh()
        self._maps_readable = modules.refresh()
        if self._maps_readable:
            self._maps_read_ns, self.maps_stale = now_ns, False
            for mapping in modules.mappings:
                if mapping.path == "[vdso]":  # the vDSO has no file, and its memory ends with the process
                    modules.find(mapping.start)

    @property
    def names_change(self) -> bool:
        """True if a frame has no name, because its generated code was replaced before the name was read."""
        return self._recorder.lost_name

    @property
    def needs_maps(self) -> bool:
        """True if there are records that wait for the next reading of the maps."""
        return self.maps_stale and bool(self._deferred)

    def take(
        self, records: Sequence[Record], start_ns: int, until_ns: int | None = None,
        before_each: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Count samples, in order of time; `start_ns` is the start of the recording (perf_counter_ns).

        Records later than `until_ns` wait for the next call; in the last call, `until_ns` is None.  Many
        samples take long, so `before_each` is called before each sample.
        """
        records, self._deferred = [*self._deferred, *records], []
        mapped_at = {(record.start, record.end): record.at_ns
                     for record in records if isinstance(record, Mapped)}  # fmt: skip
        for position, record in enumerate(records):
            # Lost records may have been mappings of code.
            is_change = isinstance(record, (Mapped, Lost)) or (isinstance(record, Named) and record.program)
            changed = is_change and record.at_ns > self._maps_read_ns
            self.maps_stale |= changed
            if until_ns is not None and ((changed and self._maps_readable) or record.at_ns > until_ns):
                self._deferred = records[position:]
                break
            if isinstance(record, PerfSample):
                since_ns = min(record.at_ns, self._maps_read_ns)
                mapped = [where for where, at in mapped_at.items() if at > since_ns]
                try:
                    before_each()
                    self._sample(record, mapped, start_ns)
                except OutOfTime:
                    self._profile.stats.count_failed("the recording ended before its stack was unwound", 1)
                except ReadFailed as failure:
                    self._profile.stats.count_failed(str(failure), 1)
            elif isinstance(record, Born):
                self._tid_history.note_birth(record)
            elif isinstance(record, Named):
                self._tid_history.note_name(record)
        self._forget_ended()

    def _sample(self, sample: PerfSample, mapped: Sequence[tuple[int, int]], start_ns: int) -> None:
        recorder, at_ns = self._recorder, max(0, sample.at_ns - start_ns)
        recorder.now = TickTime(0, at_ns)
        thread = self._tid_history.thread_of(sample.tid)
        self._stack_use.samples += 1
        if not sample.registers:
            recorder.count_failed(thread, _LEFT)
            return
        snapshot = ThreadSnapshot(sample.tid, sample.registers, sample.memory, sample.bounded, 0, eintr=False,
                                  arch=self.process.arch, capture=Capture.EVENT)  # fmt: skip
        captured = self._capturer.walk(snapshot, thread.last)
        if sample.kernel:
            captured = captured._replace(kernel=self._kernel_symbols.names(sample.kernel))
        if _goes_through(captured.stack, mapped):
            recorder.count_failed(thread, _REPLACED)
            return
        # The maps may be stale: the kernel does not record moved code (mremap), or a file was missing.
        self.maps_stale |= captured.stack.stop_reason is not StopReason.OUTERMOST or None in captured.modules
        self._note_stack_use(sample, captured.stack)
        recorder.see(thread, captured)
        thread.counted = TickTime(0, at_ns - sample.period_ns)
        thread.uncounted_cpu_ns = sample.period_ns
        self._sampled_ns += sample.period_ns
        recorder.count(thread, Capture.EVENT, recorder.now)
        thread.last_stack = None

    def _note_stack_use(self, sample: PerfSample, stack: Stack) -> None:
        if stack.stop_reason is StopReason.STACK_COPY_ENDED:
            used = len(sample.memory.data)
        else:
            used = stack.frames[-1].sp - sample.memory.base if stack.frames else 0
        if used <= len(sample.memory.data):  # False if the walk has switched to another stack
            self._stack_use.max_bytes = max(self._stack_use.max_bytes, used)

    def _forget_ended(self) -> None:
        if len(self._tid_history.tids) > self._max_tids:
            living = set(self.process.tids(force=True) or ())
            self._tid_history.keep_only(living)
            self._max_tids = max(_MIN_TIDS, 2 * len(living))

    def finish(self) -> None:
        """Count the CPU time that no sample stands for, and note modules and problems.

        The CPU time of an ended process was read before its end, so samples may stand for a longer time.
        """
        self._recorder.charge_process(self._sampled_ns if self._has_ended else 0)
        self._recorder.finish(self._capturer)


def _goes_through(stack: Stack, mapped: Sequence[tuple[int, int]]) -> bool:
    """Return True if a stack has code in one of these address ranges.

    Return True also for a walk that ended with BAD_PC: its pc may lie in code that the maps do not show yet.
    """
    if stack.stop_reason is StopReason.BAD_PC and mapped:
        return True
    addresses = sorted(frame.lookup_pc for frame in stack.frames)
    return any(bisect_left(addresses, start) < bisect_left(addresses, end) for start, end in mapped)
