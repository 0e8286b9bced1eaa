"""A thread at one instant: registers, a copy of its stack, and what the scheduler had counted.

These values are all that unwinding needs, so a stack can be unwound later and on another machine.
"""

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.memory import Memory

_RECENT = 8  # readings, most of which are looked at several times


Registers = dict[int, int]  # DWARF number -> value; absent = unknown


class Capture(StrEnum):
    """How a thread's state was taken."""

    STOPPED = "stopped"
    READ = "read"
    REUSED = "reused"
    EVENT = "event"  # by the kernel, in a timer interrupt
    CORE = "core"  # from a core file
    FAILED = "failed"


class SchedStat(NamedTuple):
    """What the scheduler has counted for a thread: time run, time waited, number of times run."""

    ran_ns: int
    waited_ns: int
    times: int


@lru_cache(maxsize=_RECENT)
def parse_schedstat(counters: bytes | None) -> SchedStat | None:
    """Parse a schedstat file; None where the counters are others (`ProcFs.counters`)."""
    fields = (counters or b"").split()
    return SchedStat(*map(int, fields)) if len(fields) == len(SchedStat._fields) else None


class LastRun(NamedTuple):
    """When a thread began or ceased to run, and when its average was renewed; each on a clock of its own.

    `left`: how often it was taken off a processor; -1: not known.
    """

    at: bytes
    renewed_ns: int = 0
    left: int = -1


class Scheduled(NamedTuple):
    """What the scheduler had counted for a thread (`ProcFs.counters`): before it was captured, and meanwhile.

    At `after` the thread was off the processor: as long as it counts no more, it has not run.  `stopped_ns`
    is when it was seen to have stopped, on the clock of perf_counter_ns; 0: it was not stopped.  `kept_ns` is
    for how long it stood until it was let go: at least (since that was seen), and at most.
    """

    before: bytes | None
    after: bytes | None
    stopped_ns: int = 0
    slept: bool = False  # the stop has interrupted its sleep in a system call
    lost: bool | None = None  # it had lost the processor to us; None: not known
    kept_ns: tuple[int, int] = (0, 1 << 62)


class ThreadSnapshot(NamedTuple):
    """A thread at one instant: enough to unwind it later, elsewhere."""

    tid: int
    registers: Registers
    memory: Memory
    bounded: bool  # the copy ended at --stack-bytes, not at the end of the mapping
    stop_ns: int  # how long the thread was stopped; 0: not at all
    eintr: bool  # this stop made a system call of the target fail with EINTR
    arch: Arch = AMD64
    capture: Capture = Capture.STOPPED
    scheduled: Scheduled | None = None
    supposed: bool = False  # some registers are those of an earlier instant: what fails speaks against nobody
