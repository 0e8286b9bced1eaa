"""Bounds what one look at a process costs, whatever its memory holds.

A look is one capture of a thread, or all that one dump reads of locks and tasks.  Lists and pointers of a
target may lead to any number of things.  No reader counts these: each read takes from the budget of the look,
and once that is spent, nothing more is read.

The time is counted, not measured: a machine that is slow or busy must not decide which frames there are.
"""

from collections.abc import Callable

from sfsample.core.arch import ByteOrder
from sfsample.core.checkpoint import checkpoint

# CPU time in ns, as measured with Python 3.11
READ_NS = 4_000  # one process_vm_readv(2)
COPIED_NS = 1_000  # a frame that was copied before, with its place and name
_BYTE_NS = 200  # each byte behind the first 512: a large object is decoded or searched, as a line table is
_SMALL_BYTES = 512

# A first look took 8 ms with 2,000 threads, and 49 ms with 300 large functions on one stack.  Later ones took
# 0.3 ms usually, 16 ms if one of 2,000 threads had just begun, 9 ms with 100,000 frames of recursion.
CAPTURE_NS = 80_000_000
# 10,000 asyncio tasks that wait for a lock took 1.9 s.
DUMP_NS = 2_500_000_000


class Budget:
    """What is left of a look.  `should_stop` is asked at each read of a process, and ends the look."""

    def __init__(self, ns: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._ns = self._left = ns
        self._should_stop = should_stop
        self.why = ""  # the look has ended before it was complete

    def begin(self) -> None:
        """Begin another look: a process may cost as much as this one time, and a quarter of it each time."""
        self._left, self.why = min(self._ns, max(self._left, 0) + self._ns // 4), ""

    def take(self, size: int, small_ns: int = READ_NS) -> bool:
        """Take the cost of a read, `small_ns` of a small one; return whether there was enough."""
        self._left -= small_ns if size <= _SMALL_BYTES else small_ns + _BYTE_NS * (size - _SMALL_BYTES)
        if self._left < 0:
            self.why = self.why or "there are too many"
        return not self.why

    def permits(self, size: int) -> bool:
        """Take what a read of a process costs; return whether there was enough."""
        checkpoint()
        if self._should_stop():
            self.why = self.why or "sfsample was asked to end"
        return self.take(size)


class CountedMemory:
    """What `read` reads of little-endian memory, until the budget is spent."""

    byteorder: ByteOrder = "little"

    def __init__(self, read: Callable[..., bytes | None], budget: Budget, small_ns: int = COPIED_NS) -> None:
        self._read, self._budget, self._small_ns = read, budget, small_ns

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes from `address`; None: they cannot be read, or the budget is spent."""
        return self._read(address, size) if self._budget.take(size, self._small_ns) else None

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""
        data = self.read(address, 8)
        return None if data is None else int.from_bytes(data, "little")
