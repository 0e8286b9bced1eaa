"""Defines a stack: its frames, how each frame was found, and the reason why the walk ended."""

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
    SCAN = "scan"  # a word on the stack that a search has chosen as the return address (a guess)


class StopReason(StrEnum):
    """The reason why a walk ended.  Only OUTERMOST means that the stack is complete."""

    OUTERMOST = "outermost"
    NO_ROW = "no_row"  # no stepper knows this pc
    NO_MODULE = "no_module"  # the pc is in no executable mapping
    BAD_MEMORY = "bad_memory"  # the unwind row needs a word that is not in the stack copy
    STACK_COPY_ENDED = "stack_copy_ended"  # the row needs a word beyond the end of a limited copy
    REGISTER_UNKNOWN = "register_unknown"  # the row needs a register that an earlier step did not recover
    NO_PROGRESS = "no_progress"  # the caller's frame does not lie above this frame
    BAD_PC = "bad_pc"  # the return address is not executable
    MAX_FRAMES = "max_frames"
    OUT_OF_TIME = "out_of_time"  # the analysis of code took too long, or the recording ended
    PYTHON = "python"  # the native frames are complete, but a Python frame was not copied


class Frame(NamedTuple):
    """One activation of a function.  Addresses are run-time addresses."""

    pc: int
    sp: int
    cfa: int | None  # None: the walk ended at this frame
    found: str  # a value of `Found`, or the label of a user's stepper
    exact: bool  # True: pc is the next instruction; False: pc is a return address

    @property
    def lookup_pc(self) -> int:
        """The address to look up in tables and symbols.

        For a return address, this address lies inside the call instruction.  The return address itself may
        belong to the next function: the last instruction of a function may be `call abort`.  The innermost
        frame is exact, and so is a frame that a signal interrupted.  No other code subtracts 1.
        """
        return self.pc if self.exact else self.pc - 1


found_of = itemgetter(Frame._fields.index("found"))  # like `frame.found`, but faster in `map`


def common_tail(frames: tuple[Frame, ...], others: tuple[Frame, ...]) -> int:
    """Return the number of equal outermost frames of two stacks; fast if the stacks share frame objects."""
    same, limit = 0, min(len(frames), len(others))
    while same < limit:
        middle = (same + limit + 1) // 2
        if frames[-middle : len(frames) - same] == others[-middle : len(others) - same]:
            same = middle
        else:
            limit = middle - 1
    return same


class Stack(NamedTuple):
    """The frames of a stack, and the reason why the walk ended."""

    frames: tuple[Frame, ...]  # frames, innermost first
    stop_reason: StopReason
    stopped_at: str | None = None  # place of the last frame (a text), if the step from this frame failed
    missing: int | None = None  # address of the word that could not be read (BAD_MEMORY)
