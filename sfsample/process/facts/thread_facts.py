"""What /proc tells of one thread: CPU time, since when it waits, where in the kernel, in which system call.

Law: reads files only; disturbs nobody; what cannot be known is None.  Source: proc(5).

Since when a thread waits is nowhere in /proc; when it last ran is: `se.exec_start` in its `sched` file, on
its processor's own clock.  Those clocks differ (each leaves out the time its processor spent on interrupts,
hours in a month), so the same clock is read: from our own `sched` file, on that processor.  It is 0 where
the kernel has forgotten it: a thread that went to sleep a moment ago can still be moved to another
processor's queue.  Source: Linux kernel/sched/fair.c, enqueue_entity (ENQUEUE_MIGRATED), since 6.12 for
sleepers (delayed dequeue).
"""

import os
import re
import time
from typing import NamedTuple

from sfsample.core.snapshot import parse_schedstat
from sfsample.process.kernel_stack import kernel_stack
from sfsample.process.procfs import ProcFs
from sfsample.process.syscall_restart import number_made

_EXEC_START = re.compile(rb"se\.exec_start\s*:\s*(\d+\.\d+)")


class Syscall(NamedTuple):
    """The system call that a thread is in, and where it entered it.

    `again`: it was interrupted, and the kernel carries on with it.
    """

    number: int
    args: tuple[int, ...]
    sp: int = 0
    pc: int = 0
    again: bool = False


class LastRan(NamedTuple):
    """When a thread last ran: on which processor, by its clock; `seen_s`: when we looked (monotonic)."""

    processor: int
    at_s: float
    seen_s: float


class Usage(NamedTuple):
    """Of processors: time on one, time in which it wanted one and had none, how often it was given one."""

    cpu_ns: int | None
    starved_ns: int | None
    runs: int | None


class ThreadFacts(NamedTuple):
    """One thread."""

    usage: Usage
    last_ran: LastRan | None
    syscall: Syscall | None
    wchan: str | None
    kernel_stack: tuple[str, ...]


class FactReader:
    """Reads facts of the threads of one process.  `idle` may move our OS thread between processors."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._clocks: dict[int, tuple[float, float] | None] = {}  # processor: (its clock, monotonic), seconds

    def facts(self, tid: int) -> ThreadFacts:
        """Read everything about one thread."""
        wchan = self._wchan(tid)
        return ThreadFacts(self.usage(tid), self._last_ran(tid), self._syscall(tid, wchan), wchan,
                           kernel_stack(self._proc, tid) or ())  # fmt: skip

    def usage(self, tid: int) -> Usage:
        """Read the scheduler's figures."""
        counted = parse_schedstat(self._proc.task(tid, "schedstat"))
        return Usage(*counted) if counted else Usage(None, None, None)

    def _syscall(self, tid: int, wchan: str | None) -> Syscall | None:
        """Parse "running", "-1 SP PC" or "NR ARG*6 SP PC"."""
        fields = (self._proc.task(tid, "syscall") or b"").split()
        if len(fields) != 9 or fields[0] == b"-1":
            return None
        number, (*args, sp, pc) = int(fields[0]), (int(field, 16) for field in fields[1:])
        made = number_made(number, args, wchan)
        return Syscall(made, tuple(args), sp, pc, again=made != number)

    def _wchan(self, tid: int) -> str | None:
        text = (self._proc.read(f"task/{tid}/wchan") or b"").decode("ascii", "replace")
        return None if text in ("", "0") else text

    # -- since when

    def idle(self, last: LastRan) -> float | None:
        """Return for how many seconds a thread had not run when it was looked at.

        May take as long as the processor it ran on is busy, so it is asked for when nothing waits for us.
        """
        if last.processor not in self._clocks:
            self._clocks[last.processor] = _look_at_clock(last.processor)
        clock = self._clocks[last.processor]
        return None if clock is None else max(0.0, clock[0] - (clock[1] - last.seen_s) - last.at_s)

    def _last_ran(self, tid: int) -> LastRan | None:
        at_s = exec_start_s(self._proc.read(f"task/{tid}/sched"))
        seen = time.monotonic()
        return None if at_s is None else LastRan(self._processor(tid), at_s, seen)

    def _processor(self, tid: int) -> int:
        fields = (self._proc.task(tid, "stat") or b"").rpartition(b") ")[2].split()
        return int(fields[36]) if len(fields) > 36 else -1


def exec_start_s(sched: bytes | None) -> float | None:
    """Return when a thread last ran, in seconds, from its `sched` file; None: the kernel does not tell."""
    found = _EXEC_START.search(sched or b"")
    return float(found[1]) / 1000 or None if found else None


def _look_at_clock(processor: int) -> tuple[float, float] | None:
    allowed = os.sched_getaffinity(0)
    if processor not in allowed:
        return None
    os.sched_setaffinity(0, {processor})
    try:
        with open("/proc/thread-self/sched", "rb", buffering=0) as file:
            at_s, now = exec_start_s(file.read(8192)), time.monotonic()
    except OSError:
        return None
    finally:
        os.sched_setaffinity(0, allowed)
    return None if at_s is None else (at_s, now)
