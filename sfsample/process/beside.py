"""Copies a thread's stack, and the memory in which Python or Go keeps frames, in one system call.

Before the pause, a plan lists the pieces to copy, and sfsample allocates a buffer for the pieces.  During the
pause, the plan may copy more pieces, with one call for each step.  For speed, integers replace C structures.

Source: process_vm_readv(2): a call ends at the first piece that cannot be read.
"""

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from time import perf_counter_ns
from typing import Protocol

from sfsample.core.arch import ByteOrder
from sfsample.core.memory import USER_SPACE, BytesMemory, JointMemory, Span
from sfsample.process.vm import CopyBuffer, iovecs, readv

_MAX_CALLS = 5  # calls for the pieces of a plan; a call ends at a piece that cannot be read
_FOLLOWED_BYTES = 1 << 19  # bytes for the pieces that a plan adds in the pause


class Room:
    """The buffer for the pieces of one thread.  The threads of a process use the same buffer in turn."""

    def __init__(self) -> None:
        self._local = array("Q", bytes(32))  # two `struct iovec`: a part of `bytes`, a buffer for the stack
        self._local_at = self._local.buffer_info()[0]
        self._remote = array("Q", bytes(16))  # one `struct iovec`
        self._one = self._remote.buffer_info()[0], 1
        self._pid = 0
        self._index, self._is_own = JointMemory(b"", (), "little"), True  # True: `_note` may add to the index
        self.until_ns = 0  # time after which nothing more is copied (perf_counter_ns)
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Allocate `size` bytes for the pieces of a plan, and `_FOLLOWED_BYTES` for later pieces."""
        self.size = self._used = size
        self.bytes = bytearray((size & -8) + _FOLLOWED_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.words = memoryview(self.bytes).cast("Q")  # 8-byte words of the buffer

    def read(self, pid: int, at: int, size: int, remote: Span, stack: Span = (0, 0)) -> int:
        """Copy pieces to position `at`, then a stack to another buffer; return the number of bytes copied.

        `remote`: address and length of an array of `struct iovec`.  `stack`: address and size of a buffer.
        """
        local = self._local
        local[0], local[1] = self._address + at, size
        local[2], local[3] = stack
        count: int = readv(pid, self._local_at, 2, *remote, 0)
        return max(count, 0)

    def begin(self, pid: int, index: JointMemory, used: int) -> None:
        """Store the index of a plan's pieces; these pieces fill the first `used` bytes."""
        self._pid, self._index, self._used = pid, index, used
        self._is_own = False

    def is_late(self) -> bool:
        """Return True if the thread must not be held any longer."""
        return perf_counter_ns() > self.until_ns

    def find(self, address: int, size: int) -> int:
        """Return the index in `words` at which a copied piece begins; -1: the piece was not copied."""
        offset = self._index.offset(address, size)
        return -1 if offset is None else offset // 8

    def copy(self, address: int, size: int) -> int:
        """Copy a piece; return the index of its first word, or -1 if it cannot be read."""
        at, remote = self._used, self._remote
        if address >= USER_SPACE:
            return -1
        remote[0], remote[1] = address, size
        if at + size > len(self.bytes) or self.is_late() or self.read(self._pid, at, size, self._one) < size:
            return -1
        self._note(address, size)
        return at // 8

    def copy_all(self, pieces: Sequence[Span]) -> None:
        """Copy the readable pieces together; give up after `_MAX_CALLS` unreadable pieces."""
        left = [piece for piece in pieces if piece[0] < USER_SPACE]
        for _ in range(_MAX_CALLS):
            size = sum(size for _, size in left)
            if not left or self.is_late() or self._used + size > len(self.bytes):
                return
            remote, done = iovecs(left), 0
            got = self.read(self._pid, self._used, size, (remote.buffer_info()[0], len(left)))
            for address, size in left:
                if got < size:
                    break
                self._note(address, size)
                got, done = got - size, done + 1
            left = left[done + 1 :]

    def _note(self, address: int, size: int) -> None:
        """Add a piece to the index; the piece was copied to the first unused bytes."""
        if not self._is_own:
            self._index, self._is_own = self._index.over(b""), True
        self._index.add(address, size, self._used)
        self._used += size

    def result(self) -> JointMemory:
        """Return the copied memory; later copies do not change the result."""
        return self._index.over(bytes(memoryview(self.bytes)[: self._used]))


class BesidePlan(Protocol):
    """The pieces of memory to copy for one thread; all sizes are multiples of 8."""

    @property
    def groups(self) -> tuple[tuple[Span, ...], ...]:
        """Return groups of pieces.  If a piece cannot be read, the later pieces of its group are left out."""

    def follow(self, room: Room, stack: BytesMemory) -> None:
        """Copy the pieces to which pointers in `room` and `stack` lead."""


class Beside:
    """Copies the pieces of one thread's plan; the constructor reads the list of pieces (`groups`) once."""

    def __init__(self, plan: BesidePlan, room: Room, order: ByteOrder) -> None:
        self.plan, self.groups = plan, plan.groups
        self._room, self._order = room, order
        pieces = [*chain.from_iterable(self.groups)]
        self._offsets = [0, *accumulate(size for _, size in pieces)]  # offsets of the pieces in the room
        ends = accumulate(map(len, self.groups))
        # for each piece: the index of the first piece of the next group
        self._next_group = [end for end, group in zip(ends, self.groups, strict=True) for _ in group]
        self._remote = iovecs([*pieces, (0, 0)])
        self._remote_at = self._remote.buffer_info()[0]
        self._pieces = [(*piece, offset) for piece, offset in zip(pieces, self._offsets, strict=False)]
        self._index = JointMemory(b"", self._pieces, order)
        self._has_read = False
        if room.size < self._offsets[-1]:
            room.reserve(2 * self._offsets[-1])

    def fill(self, pid: int, buffer: CopyBuffer, address: int, size: int) -> int | None:
        """Copy pieces and a stack, usually in one system call; return the number of bytes copied to `buffer`.

        `address`, `size`: the stack.  None: too many pieces cannot be read.
        """
        remote, room, total = self._remote, self._room, self._offsets[-1]
        size = min(size, len(buffer.bytes))
        remote[-2], remote[-1] = address, size
        self._has_read = True
        count = room.read(pid, 0, total, (self._remote_at, len(self._offsets)), (buffer.address, size))
        if count >= total:
            room.begin(pid, self._index, total)
            return count - total
        return self._fill_partly(pid, count, (buffer.address, size))

    def _fill_partly(self, pid: int, got: int, stack: Span) -> int | None:
        """If a call ended at an unreadable piece, continue with the next group."""
        offsets, total, count = self._offsets, self._offsets[-1], len(self._offsets)
        first, read, stack_bytes = 0, list[tuple[int, int, int]](), None
        for _ in range(_MAX_CALLS):
            failed = bisect_right(offsets, offsets[first] + got) - 1
            read += self._pieces[first:failed]
            first = self._next_group[failed]
            begin = offsets[first]
            remote = self._remote_at + 16 * first, count - first
            got = self._room.read(pid, begin, total - begin, remote, stack)
            if begin + got >= total:
                read += self._pieces[first:]
                stack_bytes = begin + got - total
                break
        self._room.begin(pid, JointMemory(b"", read, self._order), total)
        return stack_bytes

    def follow(self, stack: BytesMemory, until_ns: int) -> None:
        """Let the plan copy more pieces, until `until_ns` (perf_counter_ns)."""
        if self._has_read:
            self._room.until_ns = until_ns
            self.plan.follow(self._room, stack)

    def result(self) -> JointMemory | None:
        """Return the copied memory (None: no copy was made); later copies do not change the result."""
        has_read, self._has_read = self._has_read, False
        return self._room.result() if has_read else None
