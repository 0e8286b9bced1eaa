"""Limits memory and time for reading a file, because a few hundred bytes can describe a billion frames.

A reader charges the cost of each object before it makes the object, so a hostile file is refused in time.
The unit is a byte of memory, or about 20 ns of work, so a budget of 400 million units is less than 500 MB and
10 s.  A file of more than 50 MB has a larger budget, in proportion to its size.

Invariant: no file takes more than its budget (tests/report/test_hostile_files.py).
"""

from sfsample.errors import BadInput

_COST_PER_BYTE = 8
LEAST_SIZE = 50_000_000  # bytes; smaller files have the budget of this size


class ReadingBudget:
    """The budget for reading a file that has `size` bytes on the disk."""

    def __init__(self, size: int) -> None:
        self.left = _COST_PER_BYTE * max(size, LEAST_SIZE)
        self.place, self.number = "byte", 0  # the reader's place in the file, for the error: "line", 5

    def charge(self, cost: int) -> None:
        """Spend `cost`.  Raises BadInput if less than `cost` is left."""
        self.left -= cost
        if self.left < 0:
            raise BadInput(f"{self.place} {self.number}: more stacks and names than fit into memory: "
                           "split the file, or merge equal stacks in it")  # fmt: skip
