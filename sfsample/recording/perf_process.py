"""One target while the kernel's timers record it: from copies to what is counted.

Law: what was copied is unwound later, by the modules of when the maps were last read.  Every mapping of code
is told in order of time: what comes after one that was made since waits until the maps have been read again,
and a stack through code that was mapped between the copy and the reading, whichever came first, is not
believed.  The maps are read before the rings, so that whatever they may show is in the rings.  What one
sample stands for is the period of its timer, exactly: CPU time of its thread.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.process.capture import ThreadCapturer
from sfsample.process.perf_records import Born, Lost, Mapped, Named, Record, Sample
from sfsample.process.process import LiveProcess
from sfsample.recording.options import StackStore
from sfsample.recording.profile import Profile
from sfsample.recording.recorder import Recorder
from sfsample.recording.sample import BEGINNING, TickTime
from sfsample.recording.tid_history import TidHistory
from sfsample.unwind.unwinder import Unwinder

_REPLACED = "other code was mapped where it was before it could be unwound"
_MANY = 256  # threads, before it is asked which of them have ended
_LEFT = "it had left user space for good, or runs 32-bit code"


class PerfProcess:
    """Tells a profile what the timers of one process have seen.  Times are since `start_ns`."""

    def __init__(
        self, target: LiveProcess, unwinder: Unwinder, profile: Profile, bad_stacks: StackStore | None
    ) -> None:
        self.target = target
        self._capturer = ThreadCapturer(target, unwinder, stop=False)
        self._profile = profile
        self._bad_stacks = bad_stacks
        self._number = profile.register_process(target.pid, target.start_time, target.root, target.name)
        self._recorder = Recorder(profile, self._number, BEGINNING)
        self._holders = TidHistory(target.proc.thread_stat, self._leader)
        told_ns = target.accounted_ns
        self._cpu_began_ns = (target.proc.cpu_ns() or 0) if told_ns is None else told_ns
        self.cpu_ns = 0  # since then
        self.samples = 0
        self._maps_ns = 0  # when the maps were last read
        self._stale = True  # they are to be read again
        self._waiting: list[Record] = []  # until that is done
        self._readable = True  # the maps could be read, when they last had to be
        self._many = _MANY
        self._lives: set[int] | None = None  # threads; None: not asked
        self.stack_used = 0  # bytes of the copies that a walk has needed, at most; all, if it needed more

    def begin(self) -> bool:
        """Prepare for what was recorded since the last time; False when the process has ended."""
        proc = self.target.proc
        if self._stale:
            self._read_maps()
        self._lives = set(self.target.tids(force=True) or ()) if self._holders.known > self._many else None
        leader = proc.thread_stat(self.target.pid)
        if leader is not None:
            self._profile.name_process(self._number, leader.name)
        return leader is not None and not (leader.state in "ZX" and proc.has_ended())

    def account(self) -> None:
        """Note the CPU time of the process, as long as it is told."""
        cpu_ns = self.target.proc.cpu_ns()
        if cpu_ns is not None:
            self.cpu_ns = cpu_ns - self._cpu_began_ns
            self.target.accounted_ns = cpu_ns

    def _read_maps(self) -> None:
        index, now = self.target.modules, time.perf_counter_ns()
        index.allow_refresh()
        self._readable = index.refresh()
        if self._readable:
            self._maps_ns, self._stale = now, False
            for mapping in index.mappings:
                if mapping.path == "[vdso]":  # is read from memory, which may be gone when it is wanted
                    index.find(mapping.start)

    def end_of_news(self) -> None:
        """Note that no change of modules is told from now on."""
        self._stale = True

    def untold(self) -> None:
        """Note that changes of modules, and births, were not told for a while, until now."""
        self._stale = True
        self._holders.untold()

    @property
    def waits(self) -> bool:
        """Whether there are samples that want the maps to be read first."""
        return self._stale and bool(self._waiting)

    def take(
        self,
        records: Sequence[Record],
        start_ns: int,
        until_ns: int | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Count samples, in order of time, those after `until_ns` the next time; None: that is the last.

        That may take long; `meanwhile` is called before each.
        """
        records, self._waiting = [*self._waiting, *records], []
        mapped = {(one.start, one.end): one.at_ns for one in records if isinstance(one, Mapped)}
        self._holders.begin()
        for position, record in enumerate(records):
            changed = _changes_modules(record) and record.at_ns > self._maps_ns
            self._stale |= changed
            if until_ns is not None and ((changed and self._readable) or record.at_ns > until_ns):
                self._waiting = records[position:]
                break
            if isinstance(record, Sample):
                meanwhile()
                since = min(record.at_ns, self._maps_ns)
                self._sample(record, [where for where, at in mapped.items() if at > since], start_ns)
            elif isinstance(record, Born):
                self._holders.born(record)
            elif isinstance(record, Named):
                self._holders.named(record)
            elif isinstance(record, Lost):
                self._holders.untold()
        self._forget_ended()

    def _sample(self, sample: Sample, mapped: Sequence[tuple[int, int]], start_ns: int) -> None:
        recorder, at_ns = self._recorder, max(0, sample.at_ns - start_ns)
        recorder.now = TickTime(0, at_ns)
        thread = self._holders.thread(sample.tid, sample.at_ns)
        self.samples += 1
        if not sample.registers:
            recorder.count_failed(thread, _LEFT)
            return
        snapshot = ThreadSnapshot(sample.tid, sample.registers, sample.memory, sample.bounded, 0, eintr=False,
                                  arch=self.target.arch, capture=Capture.EVENT)  # fmt: skip
        captured = self._capturer.walk(snapshot, thread.last)
        if _goes_through(captured.stack, mapped):
            recorder.count_failed(thread, _REPLACED)
            return
        # code that was moved is not told (mremap), and a file may not have been there for a moment
        self._stale |= captured.stack.stop_reason is not StopReason.OUTERMOST or None in captured.modules
        self._note_use(sample, captured.stack)
        if self._bad_stacks is not None:
            self._bad_stacks.keep(thread.name, snapshot, captured.stack, self.target.modules)
        recorder.see(thread, captured)
        thread.counted = TickTime(0, at_ns - sample.period_ns)
        thread.uncounted_cpu_ns = sample.period_ns
        recorder.count(thread, Capture.EVENT)
        thread.off_cpu_stack = None

    def _note_use(self, sample: Sample, stack: Stack) -> None:
        if stack.stop_reason is StopReason.STACK_COPY_ENDED:
            used = len(sample.memory.data)
        else:
            used = stack.frames[-1].sp - sample.memory.base if stack.frames else 0
        if used <= len(sample.memory.data):  # otherwise it has left this stack
            self.stack_used = max(self.stack_used, used)

    def _leader(self) -> str:
        return self._profile.processes.get(self._number, "?")

    def lost(self, count: int) -> None:
        """Count samples that the kernel had no room for."""
        self._profile.stats.captures[Capture.FAILED] += count
        self._profile.stats.note("not captured: the ring was full before it was read", count)

    @property
    def threads(self) -> int:
        """How many threads that may live have been sampled."""
        return len(self._holders)

    def _forget_ended(self) -> None:
        """Drop what is kept for threads that have ended, if it was asked which these are."""
        if self._lives is None:
            return
        self._holders.keep_only(self._lives)
        self._many = max(_MANY, 2 * len(self._lives))
        self._lives = None

    def finish(self) -> None:
        """Tell what is known only at the end."""
        self._recorder.charge_process(self.cpu_ns)
        self._recorder.finish(self.target, self._capturer)


def _changes_modules(record: Record) -> bool:
    """Return whether code has been mapped, as far as is known."""
    return isinstance(record, (Mapped, Lost)) or (isinstance(record, Named) and record.program)


def _goes_through(stack: Stack, mapped: Sequence[tuple[int, int]]) -> bool:
    """Return whether a stack has code in one of these ranges, or may have: its end was taken for no code."""
    if stack.stop_reason is StopReason.BAD_PC and mapped:
        return True
    places = sorted(frame.lookup_pc for frame in stack.frames)
    return any(bisect_left(places, start) < bisect_left(places, end) for start, end in mapped)
