"""Defines what the unwinder reads: a `Memory` returns bytes, or None where it has none, and never raises.

A live capture hands over a copy of a stack, and a test hands over bytes; nothing here reads a process.
"""

import sys
from collections.abc import Iterable
from functools import cached_property
from struct import Struct
from typing import NewType, Protocol

from sfsample.core.arch import ByteOrder

Address = NewType("Address", int)  # in a process
Vaddr = NewType("Vaddr", int)  # as stated in the ELF file: address - load bias

_READ_BYTES = 64  # that a counted reading counts for, besides its own
_WORDS = {"little": Struct("<Q"), "big": Struct(">Q")}

Words = tuple[int, memoryview]  # an address, and the 8-byte words from there on as integers


class Memory(Protocol):
    """Read-only target memory by run-time address; None: it cannot be read."""

    @property
    def byteorder(self) -> ByteOrder:
        """Return the byte order of the machine that the memory comes from."""

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes from `address`."""


class BytesMemory:
    """One contiguous copy: `data` was at address `base`."""

    def __init__(self, base: int, data: bytes, byteorder: ByteOrder = "little") -> None:
        self.base = base
        self.data = data
        self.byteorder = byteorder
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

    @cached_property
    def words(self) -> Words | None:
        """The aligned words, quick to read in bulk; None where the byte order is not this machine's."""
        if self.byteorder != sys.byteorder:
            return None
        skipped = -self.base % 8
        whole = memoryview(self.data)[skipped:]
        return self.base + skipped, whole[: len(whole) & -8].cast("Q")


class PiecewiseMemory:
    """Several copies taken at one instant: a stack, and the stack that a signal handler interrupted."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: Memory) -> None:
        self.pieces = pieces

    @property
    def byteorder(self) -> ByteOrder:
        """Return the byte order of all pieces."""
        return self.pieces[0].byteorder if self.pieces else "little"

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


class IndexedMemory(PiecewiseMemory):
    """Copies among which are many small ones, each of which is read from its begin on."""

    __slots__ = ("_small",)

    def __init__(self, *pieces: Memory, small: Iterable[BytesMemory]) -> None:
        self._small = {piece.base: piece for piece in small}
        super().__init__(*pieces)

    def add(self, piece: BytesMemory) -> None:
        """Add a small copy."""
        self._small[piece.base] = piece

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes from the small copy at `address`, else from the first other one that has them."""
        small = self._small.get(address)
        value = None if small is None else small.read(address, size)
        return super().read(address, size) if value is None else value


class CountedMemory:
    """Memory that may be hostile, and has nothing more once `left` bytes of it have been read."""

    def __init__(self, memory: Memory, left: int) -> None:
        self._memory, self.left = memory, left

    @property
    def byteorder(self) -> ByteOrder:
        """Return the byte order of the memory."""
        return self._memory.byteorder

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes from `address`."""
        self.left -= size + _READ_BYTES
        return self._memory.read(address, size) if self.left > 0 else None

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""
        data = self.read(address, 8)
        return None if data is None else int.from_bytes(data, self.byteorder)


def words_at(memory: Memory, address: int) -> Words | None:
    """Return the words of the copy that holds `address`; None: no `BytesMemory` in `memory` does."""
    for piece in memory.pieces if isinstance(memory, PiecewiseMemory) else (memory,):
        if isinstance(piece, BytesMemory) and 0 <= address - piece.base < len(piece.data):
            return piece.words
    return None
