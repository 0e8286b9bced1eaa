"""A thread at one instant: registers, a copy of its stack, and what the scheduler had counted.

These values are all that unwinding needs, so a stack can be unwound later and on another machine.
"""

from enum import StrEnum
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.memory import Memory

Registers = dict[int, int]  # DWARF number -> value; absent = unknown


class Capture(StrEnum):
    """How a thread's state was taken."""

    STOPPED = "stopped"
    READ = "read"
    REUSED = "reused"
    EVENT = "event"  # by the kernel, in a timer interrupt
    CORE = "core"  # from a core file
    FAILED = "failed"


class LastRun(NamedTuple):
    """What /proc/PID/task/TID/sched says of when a thread last began or ceased to run.

    `at` (exec_start) and `renewed_ns` (the load average's last update) are on clocks of their own; `left` is
    how often the thread was taken off a CPU, -1: unknown.
    """

    at: bytes
    renewed_ns: int = 0
    left: int = -1


class SchedulerEvidence(NamedTuple):
    """What the scheduler had counted for a thread (`ThreadFiles.counters`), before and after it was captured.

    At `after` the thread was off the CPU: as long as the counters stay the same, it has not run.
    `stopped_ns` is when it was seen to be stopped (perf_counter_ns), 0: it was not stopped.  `held_ns` is for
    how long it was stopped: at least (since that was seen), and at most (since it was last seen to run).
    """

    before: bytes | None
    after: bytes | None
    stopped_ns: int = 0
    interrupted_sleep: bool = False  # in a system call, by the stop
    preempted_by_us: bool | None = None  # it had lost its CPU to sfsample; None: unknown
    held_ns: tuple[int, int] = (0, 1 << 62)


class ThreadSnapshot(NamedTuple):
    """A thread at one instant: enough to unwind it later, elsewhere."""

    tid: int
    registers: Registers
    memory: Memory
    bounded: bool  # the copy ended at --stack-bytes, not at the end of the mapping
    stop_ns: int  # from the request to stop to the release; 0: not stopped, or not measured
    eintr: bool  # this stop made a system call of the target fail with EINTR
    arch: Arch = AMD64
    capture: Capture = Capture.STOPPED
    scheduler: SchedulerEvidence | None = None
    assumed: bool = False  # some registers are of an earlier stop: a failed walk is no table's fault
