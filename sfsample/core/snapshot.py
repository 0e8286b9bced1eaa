"""Defines the snapshot of a thread.  It is enough to unwind the thread later, or on another machine."""

from enum import StrEnum
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.memory import Memory

Registers = dict[int, int]  # DWARF number -> value; an absent register is unknown
# Keys in `Registers` for values of a Go thread, greater than every DWARF number.  GOROUTINE_SP, _PC, _FP and
# _RA: registers when the goroutine left its own stack [LOW, HIGH).  SCHEDULER_SP: sp on the stack of g0.
# GO_CODE: an address in the module whose Go runtime has the goroutine.
GO_REGISTERS = range(1 << 16, (1 << 16) + 8)
(GOROUTINE_SP, GOROUTINE_PC, GOROUTINE_FP, GOROUTINE_RA, GOROUTINE_LOW, GOROUTINE_HIGH, SCHEDULER_SP,
 GO_CODE) = GO_REGISTERS  # fmt: skip


class Capture(StrEnum):
    """The way in which a thread was captured."""

    STOPPED = "stopped"
    READ = "read"  # the thread slept, and was not stopped
    REUSED = "reused"  # the thread has not run since its last capture
    EVENT = "event"  # the kernel copied registers and stack in a timer interrupt
    CORE = "core"  # from a core file
    FAILED = "failed"


class LastRun(NamedTuple):
    """The last time when a thread started or stopped running, from /proc/PID/task/TID/sched."""

    at: bytes  # se.exec_start, on the clock of the CPU
    renewed_ns: int = 0  # se.avg.last_update_time, on another clock
    left: int = -1  # times that the thread was taken off a CPU; -1: unknown


class SchedulerEvidence(NamedTuple):
    """The scheduler's counters of a thread (`ThreadFiles.counters`) before and after a capture."""

    before: bytes | None  # counters before the capture
    after: bytes | None  # counters after the capture; if they equal `before`, the thread has not run
    stopped_ns: int = 0  # perf_counter_ns when sfsample saw that the thread had stopped; 0: no stop
    interrupted_sleep: bool = False  # True: the stop interrupted a sleep in a system call
    preempted_by_us: bool | None = None  # True: the thread had lost its CPU to sfsample; None: unknown
    held_ns: tuple[int, int] = (0, 1 << 62)  # shortest and longest time that the stop may have lasted
    call: int | None = None  # number of the system call at the request to stop; None: no call, or unknown


class ThreadSnapshot(NamedTuple):
    """The values of a thread that unwinding needs, all from one instant."""

    tid: int
    registers: Registers
    memory: Memory
    bounded: bool  # True: the copy ended at --stack-bytes or --max-pause, before the end of the stack
    stop_ns: int  # ns from the request to stop to the release; 0: not stopped, or not measured
    eintr: bool  # True: this stop made a system call of the target fail with EINTR
    arch: Arch = AMD64
    capture: Capture = Capture.STOPPED
    scheduler: SchedulerEvidence | None = None
    assumed: bool = False  # True: some registers come from an earlier stop; old values may make the walk fail
