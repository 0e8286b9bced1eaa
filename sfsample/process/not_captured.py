"""Why a thread could not be captured."""

from enum import Enum
from typing import NamedTuple

from sfsample.core.snapshot import ThreadSnapshot
from sfsample.process.run_state import RunState

OTHER_PROCESS = "exited, and its id was given to another process"


class Reason(Enum):
    """The kind of a failed capture; the detail is for people."""

    GONE = "the thread has ended, which is normal"
    REFUSED = "the kernel refused, or another process traces the thread"
    PENDING = "the thread was asked to stop and has not yet: capture it again later"
    OFF_CPU = "the thread was not asked to stop, because it has no CPU"
    NOT_STOPPABLE = "the thread cannot be stopped, or must not be (--no-stop)"
    UNSTABLE = "libraries were replaced by others during the capture"


class NotCaptured(NamedTuple):
    """A thread that was not captured, and why.

    `counters` and `state` (OFF_CPU only): what the scheduler had counted for the thread, and whether it waits
    for a CPU or sleeps.  `stops`: snapshots for which the thread was stopped although they could not be used.
    """

    reason: Reason
    detail: str
    counters: bytes | None = None
    state: RunState = RunState.UNKNOWN
    stops: tuple[ThreadSnapshot, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether the thread has ended."""
        return self.reason is Reason.GONE

    @property
    def pending(self) -> bool:
        """Whether the thread was asked to stop and will."""
        return self.reason is Reason.PENDING
