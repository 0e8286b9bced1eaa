"""Defines a stack: its frames, and the reason why the walk ended.  Each frame says how it was found."""

from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple


class Found(StrEnum):
    """The evidence by which a frame was found."""

    CONTEXT = "context"  # the thread's registers: the innermost frame
    SFRAME = "sframe"
    EH_FRAME = "eh_frame"
    GO = "gopclntab"  # the table of a Go program
    FRAME_POINTER = "frame_pointer"
    SIGNAL_FRAME = "signal_frame"
    NULL_CALL = "null_call"  # a call to an address without code
    START = "start"  # the entry code of a process, thread or coroutine
    DEBUG_FRAME = "debug_frame"
    PLT = "plt"  # the code of a PLT stub
    CODE = "code"  # the instructions from the pc to the return
    SCAN = "scan"  # a word on the stack that looks like a return address (a guess)


class StopReason(StrEnum):
    """The reason why a walk ended.  Only OUTERMOST means that the stack is whole."""

    OUTERMOST = "outermost"
    NO_ROW = "no_row"  # no stepper knows this pc
    NO_MODULE = "no_module"  # the pc is in no executable mapping
    BAD_MEMORY = "bad_memory"  # the row needs a word that the stack copy lacks, and that was never mapped
    STACK_COPY_ENDED = "stack_copy_ended"  # the row needs a word that lies beyond --stack-bytes
    REGISTER_UNKNOWN = "register_unknown"  # the row needs a register that an earlier step did not recover
    NO_PROGRESS = "no_progress"  # the caller's frame does not lie above this one
    BAD_PC = "bad_pc"  # the return address is not executable
    MAX_FRAMES = "max_frames"
    PYTHON = "python"  # the native frames are whole, but a Python frame was not copied


class Frame(NamedTuple):
    """One activation of a function.  Addresses are run-time addresses."""

    pc: int
    sp: int
    cfa: int | None  # None: not computed, as the walk ended here
    found: str  # a Found, or the label of a user's stepper
    exact: bool  # True: pc is the next instruction; False: pc is a return address

    @property
    def lookup_pc(self) -> int:
        """The address to look up in tables and symbols.

        For a return address it lies inside the call.  The return address itself may belong to the next
        function, if the call never returns (`call abort` as the last instruction).  The innermost frame is
        exact, and so is a frame that a signal interrupted.  This is the only place that subtracts one.
        """
        return self.pc if self.exact else self.pc - 1


found_of = itemgetter(Frame._fields.index("found"))  # function: frame -> label; faster than the attribute


def common_tail(frames: tuple[Frame, ...], others: tuple[Frame, ...]) -> int:
    """Return the number of outermost frames that are equal.  It is quick if they are the same objects."""
    same, limit = 0, min(len(frames), len(others))
    while same < limit:
        middle = (same + limit + 1) // 2
        if frames[-middle : len(frames) - same] == others[-middle : len(others) - same]:
            same = middle
        else:
            limit = middle - 1
    return same


class Stack(NamedTuple):
    """The frames of a stack, and the reason why there are no more."""

    frames: tuple[Frame, ...]  # frames, innermost first
    stop_reason: StopReason
    stopped_at: str | None = None  # text for people: the place of the last frame, if a step failed there
    missing: int | None = None  # address of the word that could not be read (BAD_MEMORY)
