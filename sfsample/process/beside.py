"""Copies more of a thread than its stack, in the same system call: where a language keeps its frames.

A plan says before the pause what to copy, and all memory for it is allocated then.  In the pause the plan may
copy what it did not foresee, by a call for each step.  What it does there is paid by the target: it works on
plain integers.

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
from sfsample.process.vm import CopyBuffer, readv

_MAX_CALLS = 5  # for the pieces of a plan; each call but the last ends at one that cannot be read
_FOLLOWED_BYTES = 1 << 19  # that are copied though they were not foreseen


class Room:
    """The buffer to which the threads of a process are copied, one after the other.

    `words` are its 8-byte words.  `is_whole`: all pieces of the plan are there, one behind the other.
    """

    def __init__(self) -> None:
        self._local = array("Q", bytes(32))  # two `struct iovec`: a part of the room, and a stack
        self._local_at = self._local.buffer_info()[0]
        self._remote = array("Q", bytes(16))
        self._one = self._remote.buffer_info()[0], 1
        self._pid = 0
        self._index, self._is_own = JointMemory(b"", (), "little"), True  # it is not that of a plan
        self.is_whole, self.until_ns = False, 0
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Make room for the pieces of a plan, of `size` bytes, and for what is followed."""
        self.size = self._used = size
        self.bytes = bytearray((size & -8) + _FOLLOWED_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.words = memoryview(self.bytes).cast("Q")

    def read(self, pid: int, at: int, size: int, remote: Span, stack: Span = (0, 0)) -> int:
        """Copy pieces to position `at`, then a stack to its own buffer; return how many bytes were readable.

        `remote`: the address and the number of `struct iovec`; `stack`: address and size of its buffer.
        """
        local = self._local
        local[0], local[1] = self._address + at, size
        local[2], local[3] = stack
        got: int = readv(pid, self._local_at, 2, *remote, 0)
        return max(got, 0)

    def begin(self, pid: int, index: JointMemory, used: int, *, is_whole: bool) -> None:
        """Note what of a plan was copied to the first `used` bytes."""
        self._pid, self._index, self._used, self.is_whole = pid, index, used, is_whole
        self._is_own = False

    def is_late(self) -> bool:
        """Whether the time is over in which the thread may be held."""
        return perf_counter_ns() > self.until_ns

    def find(self, address: int, size: int) -> int:
        """Return the position of the word at an address that was copied with `size` bytes; -1: it was not."""
        found = self._index.offset(address, size)
        return -1 if found is None else found // 8

    def copy(self, address: int, size: int) -> int:
        """Copy a piece; return the position of its first word, or -1 where it cannot be read."""
        at, remote = self._used, self._remote
        if address >= USER_SPACE:
            return -1
        remote[0], remote[1] = address, size
        if at + size > len(self.bytes) or self.is_late() or self.read(self._pid, at, size, self._one) < size:
            return -1
        self._note(address, size)
        return at // 8

    def copy_all(self, pieces: Sequence[Span]) -> None:
        """Copy pieces together, but for those that cannot be read, and others where these are many."""
        left = [piece for piece in pieces if piece[0] < USER_SPACE]
        for _ in range(_MAX_CALLS):
            size = sum(size for _, size in left)
            if not left or self.is_late() or self._used + size > len(self.bytes):
                return
            remote, done = _iovecs(left), 0
            got = self.read(self._pid, self._used, size, (remote.buffer_info()[0], len(left)))
            for address, size in left:
                if got < size:
                    break
                self._note(address, size)
                got, done = got - size, done + 1
            left = left[done + 1 :]

    def _note(self, address: int, size: int) -> None:
        """Note that a piece was copied behind the others."""
        if not self._is_own:
            self._index, self._is_own = self._index.over(b""), True
        self._index.add(address, size, self._used)
        self._used += size

    def result(self) -> JointMemory:
        """Return what was copied; the next copy does not change it."""
        return self._index.over(bytes(memoryview(self.bytes)[: self._used]))


class BesidePlan(Protocol):
    """What to copy of one thread; all sizes are multiples of 8."""

    @property
    def groups(self) -> tuple[tuple[Span, ...], ...]:
        """Return what to copy.  Where one of a group cannot be read, those behind it are left out."""

    def follow(self, room: Room, stack: BytesMemory) -> None:
        """Copy what is needed beyond that, by what the room and the stack have."""


class Beside:
    """Copies what the plan of one thread says; `groups` is what it said when this was made."""

    def __init__(self, plan: BesidePlan, room: Room, order: ByteOrder) -> None:
        self.plan, self.groups = plan, plan.groups
        self._room, self._order = room, order
        pieces = [*chain.from_iterable(self.groups)]
        self._offsets = [0, *accumulate(size for _, size in pieces)]  # in the room
        ends = accumulate(map(len, self.groups))
        self._behind = [end for end, group in zip(ends, self.groups, strict=True) for _ in group]
        self._remote = _iovecs([*pieces, (0, 0)])
        self._remote_at = self._remote.buffer_info()[0]
        self._pieces = [(*piece, offset) for piece, offset in zip(pieces, self._offsets, strict=False)]
        self._index = JointMemory(b"", self._pieces, order)
        self._has_read = False
        if room.size < self._offsets[-1]:
            room.reserve(2 * self._offsets[-1])

    def fill(self, pid: int, buffer: CopyBuffer, address: int, size: int) -> int | None:
        """Copy the pieces and, in the same call, a stack to `buffer`; return how many bytes of the stack.

        None: too many of the pieces cannot be read.
        """
        remote, room, total = self._remote, self._room, self._offsets[-1]
        size = min(size, len(buffer.bytes))
        remote[-2], remote[-1] = address, size
        self._has_read = True
        got = room.read(pid, 0, total, (self._remote_at, len(self._offsets)), (buffer.address, size))
        if got >= total:
            room.begin(pid, self._index, total, is_whole=True)
            return got - total
        return self._fill_partly(pid, got, (buffer.address, size))

    def _fill_partly(self, pid: int, got: int, stack: Span) -> int | None:
        """Go on behind a piece that cannot be read, at the next group."""
        offsets, total, count = self._offsets, self._offsets[-1], len(self._offsets)
        first, read, rest = 0, list[tuple[int, int, int]](), None
        for _ in range(_MAX_CALLS):
            failed = bisect_right(offsets, offsets[first] + got) - 1
            read += self._pieces[first:failed]
            first = self._behind[failed]
            begin = offsets[first]
            remote = self._remote_at + 16 * first, count - first
            got = self._room.read(pid, begin, total - begin, remote, stack)
            if begin + got >= total:
                read += self._pieces[first:]
                rest = begin + got - total
                break
        self._room.begin(pid, JointMemory(b"", read, self._order), total, is_whole=False)
        return rest

    def follow(self, stack: BytesMemory, until_ns: int) -> None:
        """Copy what else is needed, until a time (perf_counter_ns)."""
        if self._has_read:
            self._room.until_ns = until_ns
            self.plan.follow(self._room, stack)

    def result(self) -> JointMemory | None:
        """Return what was copied; the next copy does not change it."""
        has_read, self._has_read = self._has_read, False
        return self._room.result() if has_read else None


def _iovecs(pieces: Sequence[Span]) -> "array[int]":
    """Return an array of `struct iovec`."""
    return array("Q", [*chain.from_iterable(pieces)])
