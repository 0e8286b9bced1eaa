"""Defines a stack: its frames, how each was found, and why the walk ended."""

from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple


class Found(StrEnum):
    """How a frame was found."""

    CONTEXT = "context"  # the innermost frame: by the registers of the thread
    SFRAME = "sframe"
    EH_FRAME = "eh_frame"
    FRAME_POINTER = "frame_pointer"
    SIGNAL_FRAME = "signal_frame"
    NULL_CALL = "null_call"  # by a call to an address without code
    START = "start"  # by the entry code of a process, thread or coroutine
    DEBUG_FRAME = "debug_frame"
    LEAF = "leaf"  # by the word at sp, and the call before it that leads to this function
    PLT = "plt"  # by the code of a PLT stub
    CODE = "code"  # by analysis of the instructions from the pc to the return
    SCAN = "scan"  # a guess: a word on the stack that looks like a return address


class StopReason(StrEnum):
    """Why a walk ended.  Only OUTERMOST means that the whole stack was seen."""

    OUTERMOST = "outermost"
    NO_ROW = "no_row"  # no stepper knows this pc
    NO_MODULE = "no_module"  # the pc is in no executable mapping
    BAD_MEMORY = "bad_memory"  # a word that the row needs is not in the stack copy and was never mapped
    STACK_COPY_ENDED = "stack_copy_ended"  # a word that the row needs lies beyond --stack-bytes
    REGISTER_UNKNOWN = "register_unknown"  # the row needs a register that an earlier step did not recover
    NO_PROGRESS = "no_progress"  # the caller's frame would not lie above this one
    BAD_PC = "bad_pc"  # the return address is not executable
    MAX_FRAMES = "max_frames"
    PYTHON = "python"  # the native walk is whole, but a Python frame was not copied


class Frame(NamedTuple):
    """One activation."""

    pc: int
    sp: int
    cfa: int | None
    found: str  # a Found, or the label of a user's stepper
    exact: bool  # pc is the instruction itself, not a return address

    @property
    def lookup_pc(self) -> int:
        """The address to look up in tables and symbols.

        A return address may belong to the next function when the call never returns (`call abort` as the last
        instruction), so the address of the call is looked up.  The innermost frame and the frame that a
        signal interrupted are exact.  This is the only place that subtracts one.
        """
        return self.pc if self.exact else self.pc - 1


found_of = itemgetter(Frame._fields.index("found"))  # faster than the attribute, for thousands of frames


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
    """The frames, innermost first, and why there are no more."""

    frames: tuple[Frame, ...]
    stop_reason: StopReason
    stopped_at: str | None = None  # text for people: module of the failed step, and the reason
    missing: int | None = None  # the address of the word that could not be read (BAD_MEMORY)
