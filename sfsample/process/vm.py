"""Reads another process's memory, with one system call per read, into buffers that are allocated beforehand.

Source: process_vm_readv(2).
"""

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from errno import EPERM
from itertools import accumulate, chain, pairwise
from typing import Generic, TypeVar

from sfsample.core.memory import ADDRESS_SPACE, ReadMemory, Span

_IOV_MAX = 1024  # pieces that one call can read
_MAX_KEPT_PIECES = 200  # pieces of memory of an answer that is kept
_IOVEC_BYTES = 16  # size of a `struct iovec`
_T = TypeVar("_T")
libc = ctypes.CDLL(None, use_errno=True)


class Iovec(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


readv = libc.process_vm_readv
readv.restype = ctypes.c_ssize_t
readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong,
                   ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]  # fmt: skip


class CopyBuffer:
    """A reusable buffer of `size` bytes for copies of target memory."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)
        self.address = _address_of(self.bytes)
        self._local, self._remote = Iovec(self.address, size), Iovec(0, 0)
        self._local_at = ctypes.addressof(self._local)
        self._remote_at = ctypes.addressof(self._remote)

    def fill(self, pid: int, address: int, size: int, at: int = 0) -> int:
        """Copy up to `size` bytes from `address` of `pid` to position `at`; return the number of bytes read.

        The kernel copies page by page and stops at the first page that is not mapped.
        """
        local, remote = self._local, self._remote
        size = min(size, len(self.bytes) - at)
        local.base = self.address + at
        local.len = remote.len = size
        remote.base = address
        count: int = readv(pid, self._local_at, 1, self._remote_at, 1, 0)
        return max(count, 0)


class Pieces:
    """Small pieces of target memory (address, size), which sfsample reads together, again and again."""

    def __init__(self, pieces: Sequence[Span]) -> None:
        self._offsets = [0, *accumulate(size for _, size in pieces)]
        self._bytes = bytearray(self._offsets[-1])
        address = _address_of(self._bytes)
        self._calls = []
        for at in range(0, len(pieces), _IOV_MAX):
            batch = [(start % ADDRESS_SPACE, size) for start, size in pieces[at : at + _IOV_MAX]]
            size = sum(size for _, size in batch)
            self._calls.append((iovecs([(address, size), *batch]), len(batch), size))
            address += size

    def read_each(self, pid: int) -> list[bytes | None] | None:
        """Return the bytes of each piece; None: a piece is unreadable."""
        data = bytes(self.read(pid))
        return [data[start:end] for start, end in pairwise(self._offsets)] if data else None

    def read(self, pid: int) -> bytearray:
        """Return the joined pieces, valid until the next call; empty: a piece is unreadable."""
        for spans, count, size in self._calls:
            at, _ = spans.buffer_info()
            if readv(pid, at, 1, at + _IOVEC_BYTES, count, 0) != size:
                return bytearray()
        return self._bytes


class KeptAnswer(Generic[_T]):
    """Keeps the last answer of a function that reads memory of the target.

    The function is called again if its arguments, or the memory that it has read, have changed.
    """

    def __init__(self) -> None:
        self._arguments: object = self  # no argument is equal to it
        self._answer: _T | None = None
        self._used: dict[Span, bytes | None] = {}  # memory on which the answer depends
        self._pieces = Pieces(())

    def get(self, pid: int, arguments: object, function: Callable[[ReadMemory], _T], read: ReadMemory) -> _T:
        """Return `function(read)`; `arguments`: all values, except memory, on which the answer depends."""
        now = dict(zip(self._used, self._pieces.read_each(pid) or (), strict=False))
        if self._answer is not None and arguments == self._arguments and now == self._used:
            return self._answer
        used: dict[Span, bytes | None] = {}

        def read_once(address: int, size: int) -> bytes | None:
            span = address, size
            if span not in used:
                used[span] = now.get(span) or read(address, size)
            return used[span]

        self._answer = function(read_once)
        is_short = len(used) <= _MAX_KEPT_PIECES
        self._arguments, self._used = (arguments, used) if is_short else (self, {})
        self._pieces = Pieces([*self._used])
        return self._answer


def iovecs(spans: Iterable[Span]) -> "array[int]":
    """Return an array with a `struct iovec` for each span."""
    return array("Q", [*chain.from_iterable(spans)])


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if buffer else 0


def may_access(pid: int) -> bool:
    """Return True if the kernel would permit PTRACE_SEIZE (ptrace(2), access mode checking)."""
    nowhere = ctypes.byref(Iovec(0, 1))
    return readv(pid, nowhere, 1, nowhere, 1, 0) == 1 or ctypes.get_errno() != EPERM


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Return exactly `size` bytes at `address`; None: unreadable, or no byte is wanted."""
    if not size:
        return None
    data = bytearray(size)
    spans = array("Q", (_address_of(data), size, address % ADDRESS_SPACE, size))  # two `struct iovec`
    at, _ = spans.buffer_info()
    return bytes(data) if readv(pid, at, 1, at + _IOVEC_BYTES, 1, 0) == size else None
