"""Bounds what a file can make `inspect` spend, in proportion to its size; real files stay far below.

Tables may state functions of 4 GiB, rows that repeat at every byte, and rows that many functions share.
"""

from sfsample.errors import SfsampleError
from sfsample.modules.module import Module

_LEAST_SIZE = 50_000_000  # bytes: a smaller file may cost as much as one of this size
_BYTES_PER_ROW = 25  # of the file; a row of SFrame has at least 3 in its section
_BYTES_PER_INTERVAL = 100
_MAX_TABLE_SHARE = 4  # unwind tables take at most a quarter of the file


def check_tables(module: Module) -> None:
    """Raise SfsampleError where a table is too large to be read, or has too many rows."""
    size = max(len(module.image.data), _LEAST_SIZE)
    eh_frame = module.eh_frame
    table_bytes = max(sum(table.used for table in module.sframe), eh_frame.size if eh_frame else 0)
    if table_bytes > size // _MAX_TABLE_SHARE:
        raise _error(module, f"an unwind table of {table_bytes} bytes")
    rows = sum(fde.num_fres for table in module.sframe for fde in table.fdes())
    if rows > size // _BYTES_PER_ROW:
        raise _error(module, f"SFrame functions with {rows} rows")


class Intervals:
    """Counts the intervals that `verify` compares."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._left = max(len(module.image.data), _LEAST_SIZE) // _BYTES_PER_INTERVAL

    def take(self, count: int) -> None:
        """Raise SfsampleError where they have become too many."""
        self._left -= count
        if self._left < 0:
            raise _error(self.module, "too many places to compare with --verify")


def _error(module: Module, what: str) -> SfsampleError:
    return SfsampleError(f"cannot inspect: {module.path}: {what}", "give a file whose tables are not damaged")
