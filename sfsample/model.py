"""The values that flow from left to right: snapshot, frame, stack.

Law: immutable, no behaviour beyond a derived property, no I/O.  NamedTuples, because the `dataclasses`
import alone costs as much as a bare interpreter start (13 ms), and construction is twice as fast.
"""

from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, NewType

from sfsample.arch import AMD64, Arch
from sfsample.memory import Memory

_RECENT = 8  # readings, most of which are looked at several times

Address = NewType("Address", int)  # run-time address
Vaddr = NewType("Vaddr", int)  # address as stated in the ELF file

Registers = dict[int, int]  # DWARF number -> value; absent = unknown


CFA = -1  # as a rule's base: the frame's CFA instead of a register


class Rule(NamedTuple):
    """How to recover one value: base + offset, or the 8-byte word stored there.

    `base` is a DWARF register number or CFA.  A DWARF expression, where there is one, gives the address
    (`deref`) or the value instead of base + offset.
    """

    base: int
    offset: int
    deref: bool
    expression: bytes = b""


class Found(StrEnum):
    """How a frame was found."""

    CONTEXT = "context"
    SFRAME = "sframe"
    EH_FRAME = "eh_frame"
    FRAME_POINTER = "frame_pointer"
    SIGNAL_FRAME = "signal_frame"
    NULL_CALL = "null_call"  # by a call to where no code is
    START = "start"  # by the code in which stacks begin
    DEBUG_FRAME = "debug_frame"
    LEAF = "leaf"  # by the call that leads to it
    PLT = "plt"  # by the code of a linkage stub
    CODE = "code"  # by the instructions from the pc to the return
    SCAN = "scan"  # by the look of a word on the stack


class StopReason(StrEnum):
    """Why a walk ended.  Only OUTERMOST means that the whole stack was seen."""

    OUTERMOST = "outermost"
    NO_ROW = "no_row"  # no stepper knows this pc
    NO_MODULE = "no_module"  # the pc is in no executable mapping
    BAD_MEMORY = "bad_memory"  # a word that the row needs is not in the copy and never was mapped there
    STACK_COPY_ENDED = "stack_copy_ended"  # it lies beyond --stack-bytes
    REGISTER_UNKNOWN = "register_unknown"  # the row needs a register that an earlier step did not recover
    NO_PROGRESS = "no_progress"  # the caller's frame would not lie above this one
    BAD_PC = "bad_pc"  # the return address is not executable
    MAX_FRAMES = "max_frames"


class Capture(StrEnum):
    """How a thread's state was taken."""

    STOPPED = "stopped"
    READ = "read"
    REUSED = "reused"
    EVENT = "event"  # by the kernel, in a timer interrupt
    CORE = "core"  # from a core file
    FAILED = "failed"


class Counted(NamedTuple):
    """What the scheduler has counted for a thread: time run, time waited, number of times run."""

    ran_ns: int
    waited_ns: int
    times: int


@lru_cache(maxsize=_RECENT)
def parse_counters(counters: bytes | None) -> Counted | None:
    """Parse a schedstat file; None where the counters are others (`ProcFs.counters`)."""
    fields = (counters or b"").split()
    return Counted(*map(int, fields)) if len(fields) == len(Counted._fields) else None


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


class Frame(NamedTuple):
    """One activation."""

    pc: int
    sp: int
    cfa: int | None
    found: str  # a Found, or the label of a user's stepper
    exact: bool  # pc is the instruction itself, not a return address

    @property
    def lookup_pc(self) -> int:
        """The address to look up.

        A return address may already belong to the next function when the call never returns
        (`call abort` as the last instruction), so the call itself is looked up.  The innermost frame and
        the frame that a signal interrupted are exact.  This is the only place that subtracts one.
        """
        return self.pc if self.exact else self.pc - 1


found_of = itemgetter(Frame._fields.index("found"))  # of thousands of frames, the quick way


def common_tail(frames: tuple[Frame, ...], others: tuple[Frame, ...]) -> int:
    """Return how many of the outermost frames are equal; quick where they are the same objects."""
    same, limit = 0, min(len(frames), len(others))
    while same < limit:
        middle = (same + limit + 1) // 2
        if frames[-middle : len(frames) - same] == others[-middle : len(others) - same]:
            same = middle
        else:
            limit = middle - 1
    return same


class Stack(NamedTuple):
    """Frames, innermost first, and why there are no more."""

    frames: tuple[Frame, ...]
    stop_reason: StopReason
    stopped_at: str | None = None  # for people: module and reason of the failed step
    missing: int | None = None  # the address of the word for want of which it ended (BAD_MEMORY)
