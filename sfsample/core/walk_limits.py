"""Defines what users choose for a walk: limits and methods.  `sfsample --help` imports this small module."""

from typing import Final

DEFAULT_ORDER: Final = ("sframe", "eh_frame", "frame_pointer")  # all names that `--unwind` accepts
MAX_FRAMES: Final = 1024  # frames in a stack
DEFAULT_STACK_BYTES: Final = 256 << 10
_MIN_STACK_BYTES, _MAX_STACK_BYTES = 1 << 10, 1 << 30


def check_stack_bytes(stack_bytes: int) -> None:
    """Raise ValueError for a size outside the limits."""
    if not _MIN_STACK_BYTES <= stack_bytes <= _MAX_STACK_BYTES:
        raise ValueError(f"stack_bytes must be between 1 KiB and 1 GiB, not {stack_bytes}")
