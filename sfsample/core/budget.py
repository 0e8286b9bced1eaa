"""Bounds the cost of one look at a process.

A look is one capture of a thread, or all reads of locks and tasks for one dump.  Lists and pointers in a
target may lead to any number of objects.  So each read reduces the budget of the look.  When the budget is
spent, sfsample reads nothing more in this look.

The cost is an estimate from the number and the size of reads, not a measured time.  So frames are not lost
because a machine is busy.
"""

from collections.abc import Callable

from sfsample.core.arch import ByteOrder
from sfsample.core.checkpoint import checkpoint

# CPU time in ns, as measured with Python 3.11
READ_NS = 4_000  # one process_vm_readv(2)
GOROUTINE_NS = 25_000  # a goroutine: its stack, the walk, and what it waits for; READ_NS for its fields
COPIED_NS = 1_000  # time for a frame that was copied before, with its place and name
_BYTE_NS = 200  # time for each byte after the first 512; line tables are decoded, too
_SMALL_BYTES = 512

# A first look took 8 ms with 2,000 threads, and 49 ms with 300 large functions on one stack.  Later looks
# took 0.3 ms usually, 16 ms if one of 2,000 threads had just begun, 9 ms with 100,000 frames of recursion.
CAPTURE_NS = 80_000_000
# 10,000 asyncio tasks that wait for a lock took 1.9 s.
DUMP_NS = 2_500_000_000
# 100,000 goroutines took 2.7 s and 72 MB; this is the time of a million.
GOROUTINES_NS = 30_000_000_000
TASKS_NS = 100_000_000  # 100 of 2,000 tasks, for a profile
TASKS_PER_LOOK = 100  # tasks or goroutines that a look for a profile reads


class Budget:
    """The time that is left for a look.  Each read of a process calls `should_stop`; True ends the look."""

    def __init__(self, ns: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._ns = self._left = ns
        self._should_stop = should_stop
        self.why = ""  # reason why the look has ended too early

    def begin(self) -> None:
        """Begin another look; its budget is the rest of the last one, plus a quarter of the whole budget."""
        self._left, self.why = min(self._ns, max(self._left, 0) + self._ns // 4), ""

    def renew(self) -> None:
        """Begin another look with the whole budget."""
        self._left, self.why = self._ns, ""

    def take(self, size: int, small_ns: int = READ_NS) -> bool:
        """Take the time of a read (`small_ns`: of a small read); return False if the budget is spent."""
        self._left -= small_ns if size <= _SMALL_BYTES else small_ns + _BYTE_NS * (size - _SMALL_BYTES)
        if self._left < 0:
            self.why = self.why or "there are too many"
        return not self.why

    def permits(self, size: int, small_ns: int = READ_NS) -> bool:
        """Take the time of a read of a process; return False if the budget is spent, or a stop is wanted.

        `small_ns`: time of a small read.
        """
        checkpoint()
        if self._should_stop():
            self.why = self.why or "sfsample was asked to end"
        return self.take(size, small_ns)


class CountedMemory:
    """Little-endian memory that can be read until the budget is spent."""

    byteorder: ByteOrder = "little"

    def __init__(self, read: Callable[..., bytes | None], budget: Budget, small_ns: int = COPIED_NS) -> None:
        self._read, self._budget, self._small_ns = read, budget, small_ns

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes from `address`; None: they cannot be read, or the budget is spent."""
        return self._read(address, size) if self._budget.take(size, self._small_ns) else None

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""
        data = self._read(address, 8) if self._budget.take(8, self._small_ns) else None
        return None if data is None else int.from_bytes(data, "little")
