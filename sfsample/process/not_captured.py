"""Defines the reasons why a thread was not captured."""

from enum import Enum
from typing import NamedTuple

from sfsample.core.snapshot import ThreadSnapshot
from sfsample.process.had_cpu import RunState

OTHER_PROCESS = "exited, and its id was given to another process"


class Reason(Enum):
    """The cause of a failed capture."""

    GONE = "the thread has ended, which is normal"
    REFUSED = "the kernel refused, or another process traces the thread"
    PENDING = "the thread was asked to stop, and has not stopped yet: capture it again later"
    OFF_CPU = "the thread was not asked to stop, because it has no CPU"
    NOT_STOPPABLE = "the thread cannot be stopped, or must not be (--no-stop)"
    UNSTABLE = "the program replaced libraries during the capture"


class NotCaptured(NamedTuple):
    """The result of a capture that failed or was not tried."""

    reason: Reason
    detail: str  # explanation for the reader of a report
    counters: bytes | None = None  # the scheduler's counters (OFF_CPU only)
    state: RunState = RunState.UNKNOWN  # the thread waits for a CPU, or sleeps (OFF_CPU only)
    stops: tuple[ThreadSnapshot, ...] = ()  # snapshots of stops that gave no usable stack
