"""Reads the frames of languages from the memory of the target; a package for each."""

from collections.abc import Sequence
from typing import Protocol

from sfsample.core.memory import Span


class Copying(Protocol):
    """What the plan of a language may do in the pause of a thread: the part of `process.beside.Room`."""

    words: memoryview  # 8-byte words of all copies of a thread
    bytes: bytearray  # bytes of the same copies

    def find(self, address: int, size: int) -> int:
        """Return the index in `words` of the copy of a piece; -1: the piece was not copied."""

    def copy(self, address: int, size: int) -> int:
        """Copy a piece; return the index of its first word, or -1 if it cannot be read."""

    def copy_all(self, pieces: Sequence[Span]) -> None:
        """Copy pieces together, without those that cannot be read."""

    def is_late(self) -> bool:
        """Return True if the thread must not be held any longer."""
