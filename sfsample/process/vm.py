"""Reading another process's memory.

Law: one system call per read, into buffers made beforehand; nothing is written.  Source: process_vm_readv(2).
"""

import ctypes
from collections.abc import Sequence

_IOV_MAX = 1024  # pieces that one call reads
_libc = ctypes.CDLL(None, use_errno=True)


class Iovec(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


_readv = _libc.process_vm_readv
_readv.restype = ctypes.c_ssize_t
_readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong,
                   ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]  # fmt: skip


class CopyBuffer:
    """`size` bytes that target memory is copied into, again and again."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)
        self._address = ctypes.addressof((ctypes.c_char * size).from_buffer(self.bytes))
        self._local, self._remote = Iovec(self._address, size), Iovec(0, 0)
        self._local_at = ctypes.addressof(self._local)
        self._remote_at = ctypes.addressof(self._remote)

    def fill(self, pid: int, address: int, size: int, at: int = 0) -> int:
        """Copy up to `size` bytes from `address` of `pid` to position `at`; return how many were there.

        The kernel copies page by page and stops at the first page that is not there.
        """
        local, remote = self._local, self._remote
        size = min(size, len(self.bytes) - at)
        local.base = self._address + at
        local.len = remote.len = size
        remote.base = address
        count: int = _readv(pid, self._local_at, 1, self._remote_at, 1, 0)
        return max(count, 0)


class Pieces:
    """Small pieces of target memory (address, size), read all at once, again and again."""

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        self._bytes = bytearray(sum(size for _, size in pieces))
        start = (ctypes.c_char * len(self._bytes)).from_buffer(self._bytes)
        address = ctypes.addressof(start)
        self._calls = []
        for at in range(0, len(pieces), _IOV_MAX):
            some = pieces[at : at + _IOV_MAX]
            local = Iovec(address, sum(size for _, size in some))
            self._calls.append((local, (Iovec * len(some))(*(Iovec(*piece) for piece in some))))
            address += local.len

    def read(self, pid: int) -> bytearray:
        """Return the pieces, one behind the other, until the next call; nothing: one could not be read."""
        for local, remote in self._calls:
            if _readv(pid, ctypes.byref(local), 1, remote, len(remote), 0) != local.len:
                return bytearray()
        return self._bytes


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Return exactly `size` bytes at `address`, or None.  For the odd small read, not for sampling."""
    buffer = CopyBuffer(size)
    return bytes(buffer.bytes) if size and buffer.fill(pid, address, size) == size else None
