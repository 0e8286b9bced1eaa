"""A thread at one instant: its registers, a copy of its stack, and the scheduler's counters.

Unwinding needs no other values, so a stack can be unwound later, or on another machine.
"""

from enum import StrEnum
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.memory import Memory

Registers = dict[int, int]  # DWARF number -> value; an absent register is unknown
# Facts of a Go thread, kept among the registers: no DWARF number is that large.  GOROUTINE_SP, PC and FP are
# those at which the thread's goroutine left its stack, [LOW, HIGH) is this stack; SCHEDULER_SP is that of g0.
GO_REGISTERS = range(1 << 16, (1 << 16) + 6)
GOROUTINE_SP, GOROUTINE_PC, GOROUTINE_FP, GOROUTINE_LOW, GOROUTINE_HIGH, SCHEDULER_SP = GO_REGISTERS


class Capture(StrEnum):
    """The way in which a thread's state was taken."""

    STOPPED = "stopped"
    READ = "read"  # the thread slept, and was not stopped
    REUSED = "reused"  # the thread has not run since its last capture
    EVENT = "event"  # the kernel took it in a timer interrupt
    CORE = "core"  # a core file has it
    FAILED = "failed"


class LastRun(NamedTuple):
    """The last time that a thread began or ceased to run, by /proc/PID/task/TID/sched."""

    at: bytes  # exec_start, a time on a clock of its own
    renewed_ns: int = 0  # time of the load average's last update, on another clock
    left: int = -1  # times that the thread was taken off a CPU; -1: unknown


class SchedulerEvidence(NamedTuple):
    """The scheduler's counters of a thread (`ThreadFiles.counters`) before and after a capture."""

    before: bytes | None  # counters before the capture
    after: bytes | None  # counters after it: while they stay the same, the thread has not run
    stopped_ns: int = 0  # perf_counter_ns when the thread was seen to be stopped; 0: it was not stopped
    interrupted_sleep: bool = False  # the stop interrupted a system call in which the thread slept
    preempted_by_us: bool | None = None  # the thread had lost its CPU to sfsample; None: unknown
    held_ns: tuple[int, int] = (0, 1 << 62)  # ns that the thread was stopped: at least, at most


class ThreadSnapshot(NamedTuple):
    """A thread at one instant, with all that its unwinding needs."""

    tid: int
    registers: Registers
    memory: Memory
    bounded: bool  # the copy ended at --stack-bytes, before the end of the mapping
    stop_ns: int  # ns from the request to stop to the release; 0: not stopped, or not measured
    eintr: bool  # this stop made a system call of the target fail with EINTR
    arch: Arch = AMD64
    capture: Capture = Capture.STOPPED
    scheduler: SchedulerEvidence | None = None
    assumed: bool = False  # True: some registers are from an earlier stop, so a failed walk accuses no table
