"""Bounds the cost of one look at a process.

A look is one capture of a thread, or all reads of locks and tasks for one dump.  Lists and pointers in a
target may lead to any number of objects.  So each read reduces the budget of the look.  When the budget is
spent, sfsample reads nothing more in this look.

sfsample estimates the cost from the number and the size of reads.  A measured cost would be higher on a busy
machine, and frames would be lost.
"""

import time
from collections.abc import Callable
from math import inf

from sfsample.core.arch import ByteOrder
from sfsample.core.checkpoint import OutOfTime, checkpoint

# CPU time in ns, as measured with Python 3.11
READ_NS = 4_000  # one process_vm_readv(2)
GOROUTINE_NS = 25_000  # one goroutine: stack, walk and wait; the read of its fields costs READ_NS more
COPIED_NS = 1_000  # one read from copied memory, with the placing and naming of a frame
_BYTE_NS = 200  # each byte after the first 512 bytes of a read, with the decoding of line tables
_SMALL_BYTES = 512

# The first look took 8 ms with 2,000 threads, and 49 ms with 300 large functions on one stack.  Later looks
# usually took 0.3 ms; 16 ms if one of 2,000 threads was new; 9 ms with 100,000 frames of recursion.
CAPTURE_NS = 80_000_000
# 10,000 asyncio tasks that wait for a lock took 1.9 s.
DUMP_NS = 2_500_000_000
# 100,000 goroutines took 2.7 s and 72 MB.  The budget is enough for a million goroutines.
GOROUTINES_NS = 30_000_000_000
TASKS_NS = 100_000_000  # one look at tasks or goroutines for a profile: enough for 100 of 2,000 tasks
TASKS_PER_LOOK = 100  # tasks or goroutines that sfsample reads in one look for a profile
_FIRST_INSTRUCTIONS, _INSTRUCTIONS_PER_S = 150_000, 30_000  # instructions in code without tables: 10 us each


class Budget:
    """The time that is left for a look.  The look also ends if `should_stop` returns True."""

    def __init__(self, ns: int, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._ns = self._left = ns
        self._should_stop = should_stop
        self.why = ""  # reason why the look ended early

    def begin(self) -> None:
        """Begin another look: add a quarter of the whole budget to the time that is left."""
        self._left, self.why = min(self._ns, max(self._left, 0) + self._ns // 4), ""

    def renew(self) -> None:
        """Begin another look with the whole budget."""
        self._left, self.why = self._ns, ""

    def take(self, size: int, small_ns: int = READ_NS) -> bool:
        """Subtract the cost of a read (`small_ns` up to 512 bytes); return False if the budget is spent."""
        self._left -= small_ns if size <= _SMALL_BYTES else small_ns + _BYTE_NS * (size - _SMALL_BYTES)
        if self._left < 0:
            self.why = self.why or "there are too many"
        return not self.why

    def permits(self, size: int, small_ns: int = READ_NS) -> bool:
        """Subtract the cost as `take` does; return False if the budget is spent, or a stop is wanted."""
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
        """Return exactly `size` bytes from `address`; None: unreadable, or the budget is spent."""
        return self._read(address, size) if self._budget.take(size, self._small_ns) else None

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""
        data = self._read(address, 8) if self._budget.take(8, self._small_ns) else None
        return None if data is None else int.from_bytes(data, "little")


class InstructionBudget:
    """Bounds how many instructions of code without tables a recording follows.  A dump has no such limit."""

    _left, _filled_s = inf, 0.0

    def begin(self, instructions: float = _FIRST_INSTRUCTIONS) -> None:
        """Allow this number of instructions from now on; inf: no limit."""
        self._left, self._filled_s = instructions, time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime if the budget is spent; it refills with time."""
        if self._left <= 0:
            new = (time.monotonic() - self._filled_s) * _INSTRUCTIONS_PER_S
            if self._left + new <= 0:
                raise OutOfTime
            self.begin(min(self._left + new, _FIRST_INSTRUCTIONS))

    def take(self) -> None:
        """Subtract one instruction."""
        self._left -= 1
        checkpoint()


INSTRUCTIONS = InstructionBudget()
