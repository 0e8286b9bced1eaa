"""A stack: its frames, how each was found, and why the walk ended."""

from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple


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
