"""Reads the facts about threads of a live process that a dump shows together with their stacks.

No thread is stopped.  sfsample reads memory only at addresses that are arguments of a system call.

/proc does not say since when a thread waits.  But `se.exec_start` in the `sched` file of a thread says when
the thread last ran, on the clock of its CPU.  The clock of each CPU leaves out the time that this CPU spent
on interrupts (hours in a month), so the clocks differ.  So a thread of sfsample moves to the same CPU, and
reads the clock of the CPU from its own `sched` file.  If the kernel has moved a thread to the queue of
another CPU just after the thread fell asleep, `se.exec_start` is 0.

Source: proc(5); Linux kernel/sched/fair.c, enqueue_entity (ENQUEUE_MIGRATED), for sleeping threads since 6.12
(delayed dequeue).
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from sfsample.core.foreign import total
from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.process.facts.descriptors import Descriptor, DescriptorReader, NearEnd
from sfsample.process.facts.syscall_arguments import DecodedSyscall, TargetLookup, decode_syscall
from sfsample.process.proc_text import SchedStat, SyscallInfo, parse_last_run, parse_schedstat
from sfsample.process.procfs import ProcFs, read_text, stat_of
from sfsample.process.syscall_names import syscall_name
from sfsample.process.syscall_restart import number_made
from sfsample.process.vm import read_memory

# Bytes copied before and after a futex word: enough for every lock of glibc that may contain the word.
_BYTES_BEFORE_FUTEX, _BYTES_AFTER_FUTEX = 64, 128
_MAX_DESCRIPTORS = 2  # as splice(2) has; the peers of a call with more descriptors are not looked up
_STAT_CPU = 36  # index among the fields of a stat line after the name: the CPU on which the thread last ran


class LastRunTime(NamedTuple):
    """The time when a thread last ran."""

    cpu: int
    at_s: float  # time on the clock of the CPU
    read_at_s: float  # time.monotonic when sfsample read `at_s`


class FactReader:
    """Reads facts about the threads of one process, and up to `max_connections` sockets of an event loop."""

    def __init__(
        self, proc: ProcFs, max_connections: int = 0,
        descriptors: Callable[[ProcFs], DescriptorReader] = DescriptorReader,
    ) -> None:  # fmt: skip
        self._proc, self._max_connections, self._new_descriptors = proc, max_connections, descriptors
        self._clocks: dict[int, tuple[float, float] | None] = {}  # CPU: (its clock, monotonic clock), seconds
        self.begin()

    def begin(self) -> None:
        """Begin a new reading of the process: descriptors may refer to other files by now."""
        self._descriptors = self._new_descriptors(self._proc)
        self.descriptor = self._descriptors.read  # looks up the object of a descriptor
        self.read = partial(read_memory, self._proc.anchor())  # reads memory of the process
        self._target = TargetLookup(
            self.read, self.descriptor, total(time.clock_gettime), self._max_connections
        )

    def usage(self, tid: int) -> SchedStat | None:
        """Read the scheduler's counters of a thread."""
        return parse_schedstat(self._proc.thread(tid).read("schedstat"))

    def wchan(self, tid: int) -> str | None:
        """Return the kernel function in which a thread waits."""
        name = (self._proc.read(f"task/{tid}/wchan") or b"").decode("ascii", "replace")
        return None if name in ("", "0") else name

    def syscall(self, tid: int, wchan: str | None) -> SyscallInfo | None:
        """Return the system call in which a thread sleeps, with its original number; None: no system call."""
        info = self._proc.thread(tid).asleep()
        return None if info is None else as_made(info, wchan)

    def idle(self, last: LastRunTime) -> float | None:
        """Return the seconds from the last run of a thread until `last` was read; None: unknown.

        The calling OS thread moves to the CPU of `last` for a moment, and waits while this CPU is busy.  So
        call this function only when sfsample holds no stopped thread.
        """
        if last.cpu not in self._clocks:
            self._clocks[last.cpu] = _read_clock(last.cpu)
        clock = self._clocks[last.cpu]
        return None if clock is None else max(0.0, clock[0] - (clock[1] - last.read_at_s) - last.at_s)

    def last_ran(self, tid: int) -> LastRunTime | None:
        """Return the time when a thread last ran; None: unknown."""
        files = self._proc.thread(tid)
        at_s, read_at_s = exec_start_s(files.read("sched")), time.monotonic()
        fields = (files.read("stat") or b"").rpartition(b") ")[2].split()
        cpu = int(fields[_STAT_CPU]) if len(fields) > _STAT_CPU else -1
        return None if at_s is None else LastRunTime(cpu, at_s, read_at_s)

    def decode(self, info: SyscallInfo | None) -> DecodedSyscall | None:
        """Return a system call, and the objects to which its arguments refer."""
        return None if info is None else decode_syscall(info, syscall_name(info.number), self._target)

    def lock_memory(self, call: DecodedSyscall | None) -> PiecewiseMemory:
        """Return a copy of the memory around the futex word of a call; empty: the call is no futex(2)."""
        if call is None or call.name != "futex":
            return PiecewiseMemory()
        word = call.syscall.args[0]
        ranges = ((word - _BYTES_BEFORE_FUTEX, _BYTES_BEFORE_FUTEX), (word, _BYTES_AFTER_FUTEX))
        copies = [(start, self._target.read(start, size)) for start, size in ranges if start > 0]
        return PiecewiseMemory(*(BytesMemory(start, data, sys.byteorder) for start, data in copies if data))

    def peer_links(
        self, calls: Iterable[DecodedSyscall], others: Iterable[Descriptor] = ()
    ) -> dict[str, NearEnd]:
        """Return the other ends of the pipes and sockets of `calls`, as /proc/PID/fd shows them.

        `others`: descriptors for which the program waits without a system call.
        """
        few = (call.descriptors for call in calls if len(call.descriptors) <= _MAX_DESCRIPTORS)
        waited = {*others, *(descriptor for descriptors in few for descriptor in descriptors)}
        return dict(filter(None, map(self._peer_link, waited)))

    def _peer_link(self, descriptor: Descriptor) -> tuple[str, NearEnd] | None:
        if descriptor.kind == "pipe":
            return f"pipe:[{descriptor.inode}]", NearEnd(descriptor.inode)
        peer = self._descriptors.sockets.peer(descriptor.inode) if descriptor.kind == "socket" else None
        return (f"socket:[{peer.inode}]", NearEnd(descriptor.inode, peer.listens)) if peer else None

    def children(self) -> tuple[tuple[int, str], ...]:
        """Return pid and name of every child process that has not ended."""
        lists = (self._proc.read(f"task/{tid}/children") or b"" for tid in self._proc.threads())
        found = ((stat_of(int(word)), int(word)) for words in lists for word in words.split())
        return tuple(sorted((pid, stat.name) for stat, pid in found if stat and not stat.is_over))


def as_made(info: SyscallInfo, wchan: str | None) -> SyscallInfo | None:
    """Return a system call with its original number (`number_made`); None: no system call."""
    if info.number < 0:
        return None
    number = number_made(info.number, info.args, wchan)
    return info._replace(number=number, restarted=number != info.number)


def exec_start_s(sched: bytes | None) -> float | None:
    """Return the time in seconds when a thread last ran, from its `sched` file; None: unknown."""
    last = parse_last_run(sched)
    return float(last.at) / 1000 or None if last else None


def _read_clock(cpu: int) -> tuple[float, float] | None:
    """Return the time in seconds on a CPU's clock, and on the monotonic clock."""
    allowed = os.sched_getaffinity(0)
    if cpu not in allowed:
        return None
    os.sched_setaffinity(0, {cpu})
    try:
        at_s, now = exec_start_s(read_text("/proc/thread-self/sched").encode()), time.monotonic()
    finally:
        os.sched_setaffinity(0, allowed)
    return None if at_s is None else (at_s, now)
