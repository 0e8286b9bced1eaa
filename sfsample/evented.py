"""One target while the kernel's timers record it: from copies to what is counted.

Law: what was copied is unwound later, by the modules of then.  Every mapping of code is told in order of
time: before it the modules are those that were known, and a stack through code that something else was
mapped over afterwards is not believed, as its rows may be the other's.  What one sample stands for is the
period of its timer, exactly: CPU time of its thread.
"""

from collections.abc import Iterable, Sequence

from sfsample.look import Looker
from sfsample.model import Capture, Stack, StopReason, ThreadSnapshot
from sfsample.profile import Profile
from sfsample.replay.store import BadStacks
from sfsample.roster import Thread
from sfsample.tally import BEGINNING, Tally
from sfsample.target.live import LiveProcess
from sfsample.target.perf_records import Mapped, Named, Record, Sample
from sfsample.unwind.unwinder import Unwinder

_REPLACED = "other code was mapped where it was before it could be unwound"
_MANY = 1000  # threads and names, of those that have ended too
_LEFT = "it had left user space for good"


class Evented:
    """Tells a profile what the timers of one process have seen.  Times are since `start_ns`."""

    def __init__(
        self, target: LiveProcess, unwinder: Unwinder, profile: Profile, bad_stacks: BadStacks | None
    ) -> None:
        self.target = target
        self._looker = Looker(target, unwinder, stop=False)
        self._profile = profile
        self._bad_stacks = bad_stacks
        self._tally = Tally(profile, target.pid, BEGINNING)
        self._threads: dict[int, Thread] = {}
        self._names: dict[int, str] = {}  # as told by the kernel, for threads that end before we look
        self._cpu_began_ns = target.proc.cpu_ns() or 0
        self._cpu_ns = 0
        self.stack_used = 0  # bytes of the copies that a walk has needed, at most; all, if it needed more
        profile.homes[target.pid] = target.home

    def begin(self) -> bool:
        """Prepare for what was recorded since the last time; False when the process has ended."""
        proc, index = self.target.proc, self.target.index
        index.expire()
        if len(self._threads) + len(self._names) > _MANY:
            self._forget_ended()
        cpu_ns, leader = proc.cpu_ns(), proc.thread_stat(self.target.pid)
        self._cpu_ns = self._cpu_ns if cpu_ns is None else cpu_ns - self._cpu_began_ns
        if leader is not None:
            self._profile.processes[self.target.pid] = leader.name
        return leader is not None and not (leader.state in "ZX" and proc.has_ended())

    def take(self, records: Sequence[Record], start_ns: int) -> None:
        """Count samples, in order of time."""
        mapped = [record for record in records if isinstance(record, Mapped)]
        fresh: set[int] = set()
        for record in records:
            if isinstance(record, Sample):
                later = [one for one in mapped if one.at_ns > record.at_ns]
                self._sample(record, later, start_ns, fresh)
            elif isinstance(record, Named):
                self._names[record.tid] = record.name
            if isinstance(record, Mapped) or (isinstance(record, Named) and record.program):
                self.target.index.refresh()

    def _sample(self, sample: Sample, mapped: Iterable[Mapped], start_ns: int, fresh: set[int]) -> None:
        tally = self._tally
        tally.at_ns = max(0, sample.at_ns - start_ns)
        thread = self._thread(sample.tid, fresh)
        if not sample.registers:
            tally.failed(thread, _LEFT)
            return
        snapshot = ThreadSnapshot(sample.tid, sample.registers, sample.memory, sample.bounded, 0, eintr=False,
                                  arch=self.target.arch, capture=Capture.EVENT)  # fmt: skip
        look = self._looker.walk(snapshot, thread.last)
        if any(one.start <= frame.lookup_pc < one.end for one in mapped for frame in look.stack.frames):
            tally.failed(thread, _REPLACED)
            return
        self._note_use(sample, look.stack)
        if self._bad_stacks is not None:
            self._bad_stacks.keep(thread.name, snapshot, look.stack, self.target.index)
        tally.see(thread, look)
        thread.at_ns = tally.at_ns - sample.period_ns
        thread.charged_ns = sample.period_ns
        tally.add(thread, Capture.EVENT)
        thread.seen = None

    def _note_use(self, sample: Sample, stack: Stack) -> None:
        if stack.stop_reason is StopReason.STACK_COPY_ENDED:
            used = len(sample.memory.data)
        else:
            used = stack.frames[-1].sp - sample.memory.base if stack.frames else 0
        if used <= len(sample.memory.data):  # otherwise it has left this stack
            self.stack_used = max(self.stack_used, used)

    def _thread(self, tid: int, fresh: set[int]) -> Thread:
        """Return what is known of a thread; it is asked for once among the samples that are read together."""
        thread = self._threads.get(tid)
        if tid in fresh and thread is not None:
            return thread
        fresh.add(tid)
        stat = self.target.proc.thread_stat(tid)
        if thread is None or (stat is not None and stat.starttime != thread.starttime):
            thread = self._threads[tid] = Thread(tid, 0, 0, 0)
            leader = self._profile.processes.get(self.target.pid, "?")
            thread.name = self._names.get(tid, leader)
        if stat is not None:
            thread.name, thread.starttime = stat.name, stat.starttime
        return thread

    def lost(self, count: int) -> None:
        """Count samples that the kernel had no room for."""
        self._profile.stats.captures[Capture.FAILED] += count
        self._profile.stats.note("not captured: the ring was full before it was read", count)

    def _forget_ended(self) -> None:
        """Drop what is kept for threads that have ended."""
        alive = set(self.target.proc.threads())
        self._threads = {tid: thread for tid, thread in self._threads.items() if tid in alive}
        self._names = {tid: name for tid, name in self._names.items() if tid in alive}

    def finish(self) -> None:
        """Tell what is known only at the end."""
        self._tally.charge_process(self._cpu_ns)
        self._tally.finish(self.target, self._looker)
