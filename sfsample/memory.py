"""What an unwinder may read: a `Memory` answers with bytes or None, and never raises.

Law: nothing here touches a process.  A capture hands over a copy; a test hands over bytes.
"""

from struct import Struct
from typing import Protocol

from sfsample.arch import ByteOrder

_WORDS = {"little": Struct("<Q"), "big": Struct(">Q")}


class Memory(Protocol):
    """Read-only target memory by run-time address; None means "cannot be read"."""

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""
        ...

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes from `address`."""
        ...


class BytesMemory:
    """One contiguous copy: `data` was at `base`."""

    __slots__ = ("_last", "_unpack", "base", "data")

    def __init__(self, base: int, data: bytes, byteorder: ByteOrder = "little") -> None:
        self.base = base
        self.data = data
        self._last = len(data) - 8
        self._unpack = _WORDS[byteorder].unpack_from

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`, or None outside the copy."""
        offset = address - self.base
        if 0 <= offset <= self._last:
            value: int = self._unpack(self.data, offset)[0]
            return value
        return None

    def read(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes from `address`, or None where they are not all in the copy."""
        offset = address - self.base
        if offset < 0 or size < 0 or offset + size > len(self.data):
            return None
        return self.data[offset : offset + size]


class PiecewiseMemory:
    """Several copies taken at the same instant (a stack and the stack below a signal handler)."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: Memory) -> None:
        self.pieces = pieces

    def word(self, address: int) -> int | None:
        """Return the word from the first piece that has it."""
        for piece in self.pieces:
            value = piece.word(address)
            if value is not None:
                return value
        return None

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes from the first piece that has all of them."""
        for piece in self.pieces:
            value = piece.read(address, size)
            if value is not None:
                return value
        return None
