"""Defines the options of a dump, for the library and the command line."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfsample.core.python_view import PythonView
from sfsample.core.walk_limits import DEFAULT_ORDER, DEFAULT_STACK_BYTES, MAX_FRAMES, check_stack_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfsample.unwind.stepper import Stepper


@dataclass(frozen=True, kw_only=True)
class DumpOptions:
    """How to dump.  Raises ValueError for invalid values."""

    looks: int = 2  # captures of each thread; two captures show which threads run
    interval: float = 0.05  # seconds between two looks
    timeout: float = 10.0  # seconds after which the dump ends, even if it is incomplete
    max_frames: int = MAX_FRAMES
    stack_bytes: int = DEFAULT_STACK_BYTES
    steppers: "Sequence[str | Stepper]" = DEFAULT_ORDER
    stop: bool = True  # True: sfsample may stop running threads
    consistent: bool = False  # True: capture all threads at one instant
    python: PythonView = PythonView.AUTO
    connections: int = 5  # how many connections of an event loop are listed
    locals: bool = False  # True: read arguments and local variables of Python frames

    def __post_init__(self) -> None:
        check_stack_bytes(self.stack_bytes)
        if self.looks < 1 or self.max_frames < 1:
            raise ValueError("looks and max_frames must be at least 1")


DEFAULT_DUMP_OPTIONS = DumpOptions()
