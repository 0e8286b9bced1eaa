"""Defines `Memory`, from which the unwinder reads.  A read never raises.  This module reads no process."""

import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from struct import Struct
from typing import NewType, Protocol

from sfsample.core.arch import ByteOrder

Address = NewType("Address", int)  # run-time address in a process
Vaddr = NewType("Vaddr", int)  # address in the ELF file: vaddr = address - load bias

_SMALL_BYTES = 144  # largest size of a small piece (`JointMemory`)
ADDRESS_SPACE = 1 << 64  # bytes
USER_SPACE = 1 << 63  # end of the addresses that a process can use
_WORDS = {"little": Struct("<Q"), "big": Struct(">Q")}

Span = tuple[int, int]  # address, size in bytes
Words = tuple[int, memoryview]  # address, and the 8-byte words from this address on, as integers
ReadMemory = Callable[[int, int], bytes | None]  # function of (address, size): exactly `size` bytes, or None
ReadMany = Callable[[Sequence[Span]], list[bytes | None]]  # function that reads many spans per system call


def word_in(data: bytes | None, at: int = 0) -> int:
    """Return the little-endian 8-byte word at offset `at`; 0 if `data` is None (unreadable)."""
    return int.from_bytes(data[at : at + 8], "little") if data else 0


class Memory(Protocol):
    """Read-only memory of a target, by run-time address.  A read returns None if bytes are missing."""

    @property
    def byteorder(self) -> ByteOrder:
        """Return the byte order of the machine from which the memory comes."""

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
        """Return the unsigned 8-byte word at `address`; None outside the copy."""
        offset = address - self.base
        if 0 <= offset <= self._last:
            value: int = self._unpack(self.data, offset)[0]
            return value
        return None

    def read(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes from `address`; None if the copy lacks a byte."""
        offset = address - self.base
        if offset < 0 or size < 0 or offset + size > len(self.data):
            return None
        return self.data[offset : offset + size]

    @cached_property
    def words(self) -> Words | None:
        """The aligned words, for fast reading; None: this machine has the other byte order."""
        if self.byteorder != sys.byteorder:
            return None
        skipped = -self.base % 8
        whole = memoryview(self.data)[skipped:]
        return self.base + skipped, whole[: len(whole) & -8].cast("Q")


class PiecewiseMemory:
    """Copies from one instant: the stack of a signal handler, and the interrupted stack, for example."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: Memory) -> None:
        self.pieces = pieces

    @property
    def byteorder(self) -> ByteOrder:
        """Return the byte order of all pieces."""
        return self.pieces[0].byteorder if self.pieces else "little"

    def word(self, address: int) -> int | None:
        """Return the word from the first piece that has it."""
        for piece in self.pieces:  # a loop: quicker than a generator
            if (word := piece.word(address)) is not None:
                return word
        return None

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes from the first piece that has all bytes."""
        for piece in self.pieces:
            if (part := piece.read(address, size)) is not None:
                return part
        return None


class JointMemory:
    """Pieces of memory in one buffer: (address, size, offset).  A small piece is read only from its start."""

    def __init__(
        self, data: bytes | bytearray, pieces: Iterable[tuple[int, int, int]], order: ByteOrder
    ) -> None:
        self._data, self.byteorder = data, order
        self._unpack = _WORDS[order].unpack_from
        self._small: dict[int, tuple[int, int]] = {}  # address -> size, offset
        self._large: list[tuple[int, int, int]] = []  # address, end, offset
        for piece in pieces:
            self.add(*piece)

    def add(self, address: int, size: int, offset: int) -> None:
        """Add a piece that was copied to `offset`."""
        if size <= _SMALL_BYTES:
            self._small[address] = size, offset
        else:
            insort(self._large, (address, address + size, offset))

    def over(self, data: bytes | bytearray) -> "JointMemory":
        """Return a memory with the same pieces, whose bytes lie in the buffer `data`."""
        other = JointMemory(data, (), self.byteorder)
        other._small, other._large = self._small.copy(), self._large.copy()
        return other

    def word(self, address: int) -> int | None:
        """Return the word at `address`, if a piece has it."""
        offset = self.offset(address, 8)
        if offset is None:
            return None
        value: int = self._unpack(self._data, offset)[0]
        return value

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes from `address`, if a piece has all of them."""
        offset = self.offset(address, size)
        return None if offset is None else bytes(self._data[offset : offset + size])

    def offset(self, address: int, size: int) -> int | None:
        """Return the buffer offset at which bytes from `address` lie; None: no piece has all bytes."""
        small_size, offset = self._small.get(address, (-1, 0))
        if 0 <= size <= small_size:
            return offset
        index = bisect_right(self._large, (address, ADDRESS_SPACE)) - 1
        if index >= 0 and size >= 0:
            begin, end, offset = self._large[index]
            if address + size <= end:
                return offset + address - begin
        return None


def words_at(memory: Memory, address: int) -> Words | None:
    """Return the words of the copy that contains `address`; None: no `BytesMemory` contains `address`."""
    for piece in memory.pieces if isinstance(memory, PiecewiseMemory) else (memory,):
        if isinstance(piece, BytesMemory) and 0 <= address - piece.base < len(piece.data):
            return piece.words
    return None
