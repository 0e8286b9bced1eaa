"""A profile: the number of samples of each stack, and the time that the samples stand for.

Addresses are kept as (module, vaddr), so sfsample can find names later and on another machine.
"""

import os
from array import array
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.stack import StopReason
from sfsample.modules.location import PROCESS_KEY_STEP, pid_of
from sfsample.process.labels import Identity
from sfsample.recording.sample import Sample, StackKey, ThreadKey
from sfsample.recording.stats import Stats

KeepRecord = Callable[[StackKey, int, int, int, int], None]
TIMELINE_LIMIT = 4_000_000  # records, 40 bytes each
STACK_LIMIT = 200_000  # distinct stacks, some KB each: a JIT compiler can make any number
THREAD_LIMIT = 20_000  # distinct threads: a service may start one for each request
PROCESS_LIMIT = 20_000  # distinct processes: a shell script starts any number
SECONDS_LIMIT = 120  # first seconds of a recording; the CPU time of each of them is kept
OTHERS = 0  # process key of all processes beyond `PROCESS_LIMIT`


class Timeline:
    """Records of samples in order of time, as arrays of one length."""

    def __init__(self) -> None:
        self.keys: list[StackKey] = []
        self.at_ns = array("q")  # time of the record since the start of the recording
        self.stack = array("l")  # index into `keys`
        self.wall_ns = array("q")  # elapsed time, up to `at_ns`, that the record stands for
        self.cpu_ns = array("q")  # CPU time that the record stands for
        self.times = array("l")  # number of samples
        self.dropped = 0  # number of records beyond `TIMELINE_LIMIT`, which are not kept
        self._indexes: dict[StackKey, int] = {}

    def __len__(self) -> int:
        return len(self.at_ns)

    def add(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        """Keep one record."""
        if len(self) >= TIMELINE_LIMIT:
            self.dropped += 1
            return
        index = self._indexes.setdefault(key, len(self.keys))
        if index == len(self.keys):
            self.keys.append(key)
        self.at_ns.append(at_ns)
        self.stack.append(index)
        self.wall_ns.append(wall_ns)
        self.cpu_ns.append(cpu_ns)
        self.times.append(times)


class StackTotals:
    """The number of samples of a stack, and the elapsed time and CPU time that the samples stand for."""

    __slots__ = ("cpu_ns", "times", "wall_ns")

    def __init__(self) -> None:
        self.times = self.wall_ns = self.cpu_ns = 0


class Waiters(Counter[Hashable]):
    """For each thing, such as a lock: the number of threads that wait for the thing now."""

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[Hashable, StackKey] = {}  # thing with a new waiter in this tick -> waiter's stack
        self.most = Counter[StackKey]()  # stack of a waiter -> most waiters at the end of a tick

    def end_tick(self) -> None:
        """For the stack of each new waiter, note the largest number of waiters at the end of any tick."""
        for thing, stack in self.joined.items():
            if stack in self.most or len(self.most) < STACK_LIMIT:
                self.most[stack] = max(self.most[stack], self[thing])
        self.joined.clear()


class Profile:
    """Stacks with their totals.  `processes` and `threads` have the names of processes and of threads.

    `keep` is called with each record (stack, time of the sample, elapsed time and CPU time in ns, number of
    samples).  Without `keep`, the profile adds the records to its totals.
    """

    def __init__(self, rate_hz: float, *, timeline: bool = False, keep: KeepRecord | None = None) -> None:
        self.totals: dict[StackKey, StackTotals] = {}
        self.timeline = Timeline() if timeline else None
        self.keep = keep or self._add_to_totals
        self.prompt = timeline or keep is not None  # True: every sample is added at once
        self.started_ns = 0  # start of the recording since the epoch
        self.host = os.uname().nodename
        self.identities: dict[int, Identity] = {}  # pid -> identity of a process that the user named
        self.labels: dict[str, str] = {}  # labels of the user; they override labels that sfsample finds
        self.processes: dict[int, str] = {}
        self.threads: dict[ThreadKey, str] = {}
        self.roots: dict[int, ProcessRoot] = {}  # root directories in which files of modules are opened
        self.charged_ns: Counter[int] = Counter()  # CPU time by process key; set at the end
        self.unseen_ns = Counter[int]()  # CPU time that ended threads used unseen, by process key
        self.waiters = Waiters()
        self._by_second: Counter[tuple[int, int]] = Counter()  # CPU time in ns, by process key and second
        self._start_times: dict[int, int] = {}  # process key -> start time in clock ticks since boot
        self._sampled: set[int] = set()  # keys of processes with a sample
        self.stats = Stats(rate_hz)

    @property
    def counts(self) -> Counter[StackKey]:
        """The number of samples of each stack."""
        return Counter({key: total.times for key, total in self.totals.items()})

    def register_process(self, pid: int, start_time: int, root: ProcessRoot, name: str) -> int:
        """Return the key of the process that started at `start_time` (clock ticks since boot).

        The key is the pid, unless an earlier process had the same pid, or there are too many processes.
        """
        key = pid
        while self._start_times.get(key, start_time) != start_time:
            key += PROCESS_KEY_STEP
        if key not in self._start_times and len(self._start_times) >= PROCESS_LIMIT:
            self.stats.note(f"more than {PROCESS_LIMIT} processes: later processes are counted together")
            self.processes[OTHERS] = "other processes"
            return OTHERS
        self._start_times[key], self.roots[key] = start_time, root
        self.processes.setdefault(key, name)
        return key

    def name_process(self, key: int, name: str) -> None:
        """Note the current name of a process."""
        if key != OTHERS:
            self.processes[key] = name

    def identify(self, pid: int, identity: Identity) -> None:
        """Store the identity of a process; None keeps an old value (but not another program's build-id)."""
        before = self.identities.get(pid, Identity({}))
        known = {name: value for name, value in identity._asdict().items() if value is not None}
        if identity.exe not in (None, before.exe):
            known["build_id"] = identity.build_id
        self.identities[pid] = before._replace(**known | {"labels": before.labels | identity.labels})

    def forget_process(self, key: int) -> None:
        """Drop the name, the root and the start time of a process that has no sample."""
        if key != OTHERS and key not in self._sampled:
            for known in (self.processes, self.roots, self._start_times):
                known.pop(key, None)

    def add(self, sample: Sample) -> None:
        """Count a sample, once for each tick that it stands for."""
        stack, times, stats = sample.stack, sample.times, self.stats
        thread = self.name_thread(sample.thread, sample.thread_name)
        stats.count_stack(stack, times)
        stats.captures[sample.capture] += times
        stats.cpu_sampled_ns += sample.cpu_ns
        if stack.stopped_at is not None and stack.stop_reason is not StopReason.MAX_FRAMES:
            stats.note(f"{stack.stop_reason} at {stack.stopped_at}", times)
        self._sampled.add(thread.process_key)
        if sample.cpu_ns and sample.at_ns < SECONDS_LIMIT * 10**9:
            self._by_second[thread.process_key, sample.at_ns // 10**9] += sample.cpu_ns
        key = StackKey(thread.process_key, thread.tid, sample.places, stack.stop_reason, thread.start_time)
        self.keep(key, sample.at_ns, sample.wall_ns, sample.cpu_ns, times)

    def cpu_ms_by_second(self, pids: Container[int | None] | None = None) -> list[int]:
        """Return the sampled CPU time of each second in ms, of all processes or of `pids`."""
        chosen = {at: ns for at, ns in self._by_second.items() if pids is None or pid_of(at[0]) in pids}
        last = max((second for _, second in chosen), default=-1)
        cpu_ms = [0] * max(last + 1, min(round(self.stats.duration_s), SECONDS_LIMIT))
        for (_, second), ns in chosen.items():
            cpu_ms[second] += round(ns / 1e6)
        return cpu_ms

    def spread_cpu_time(self, living: AbstractSet[ThreadKey]) -> None:
        """Spread the CPU time of each thread evenly over its samples; `living`: threads that have not ended.

        A thread that lives only for one request ends soon after its sample, or without a sample.  So samples
        of ended threads share CPU time for which no sample stands; each gets at most the time of one tick.
        """
        tick_ns = 1e9 * self.stats.duration_s / max(1, self.stats.taken_ticks)
        stacks: dict[ThreadKey, list[StackTotals]] = {}
        for key, total in self.totals.items():
            stacks.setdefault(key.thread, []).append(total)
        room_ns: Counter[ThreadKey] = Counter()  # CPU time that the samples of an ended thread may get
        room_of: Counter[int] = Counter()  # sum of `room_ns` by process key
        for thread in stacks.keys() - living:
            ns = sum(round(total.times * tick_ns) - total.cpu_ns for total in stacks[thread])
            room_ns[thread] = max(0, ns)
            room_of[thread.process_key] += room_ns[thread]
        for thread, totals in stacks.items():
            share = self.unseen_ns[thread.process_key] / max(1, room_of[thread.process_key])
            added_ns = round(min(1.0, share) * room_ns[thread])
            cpu_ns, times = sum(t.cpu_ns for t in totals) + added_ns, sum(t.times for t in totals)
            for total in totals:
                total.cpu_ns = cpu_ns * total.times // times
            self.stats.cpu_sampled_ns += added_ns
        self.unseen_ns.clear()

    def leave(self, sampler_cpu_s: float) -> None:
        """Note the CPU time of a stuck sampling thread, before another thread continues the recording."""
        self.stats.sampler_cpu_s += sampler_cpu_s
        self.stats.subprocesses.watched = 0  # the other thread opens living descendants again

    def name_thread(self, thread: ThreadKey, name: str) -> ThreadKey:
        """Note the name of a thread; return its key, with id 0 if there are too many threads."""
        if thread not in self.threads and len(self.threads) >= THREAD_LIMIT:
            thread, name = ThreadKey(thread.process_key, 0), "other threads"
            self.stats.note(f"more than {THREAD_LIMIT} threads: later threads are counted together")
        self.threads[thread] = name
        self.stats.threads = len(self.threads)
        return thread

    def _add_to_totals(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        total = self.totals.get(key)
        if total is None:
            if len(self.totals) >= STACK_LIMIT:
                key = key._replace(locations=())
                self.stats.note(f"more than {STACK_LIMIT} stacks that differ: later stacks have no frames")
            total = self.totals.setdefault(key, StackTotals())
        total.times += times
        total.wall_ns += wall_ns
        total.cpu_ns += cpu_ns
        if self.timeline is not None:
            self.timeline.add(key, at_ns, wall_ns, cpu_ns, times)


class WindowRecord(NamedTuple):
    """One sample, or several samples of an unchanged stack."""

    key: StackKey
    at_ns: int
    wall_ns: int
    cpu_ns: int
    times: int


class LiveWindow:
    """The samples of the last `length_ns`, for `top`.  They come from a recording into `self.profile`.

    The recording thread adds samples, and the drawing thread reads them.  Each access is one call of a deque,
    which the other thread cannot interrupt.
    """

    def __init__(self, rate_hz: float, length_s: float) -> None:
        self.profile = Profile(rate_hz, keep=self._keep)
        self.length_ns = round(length_s * 1e9)
        self._records: deque[WindowRecord] = deque()

    def _keep(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        records = self._records
        records.append(WindowRecord(key, at_ns, wall_ns, cpu_ns, times))
        while records[0].at_ns < at_ns - self.length_ns:
            records.popleft()

    def last(self, now_ns: int) -> list[WindowRecord]:
        """Return the records of the window that ends `now_ns` after the start of the recording."""
        return [record for record in self._records.copy() if record.at_ns >= now_ns - self.length_ns]
