"""Measures the share of a module's code that its unwind tables cover.

In a hostile file, many functions may share rows.  So the file's size limits the bytes and rows of a table.

Code is the bytes of executable sections or, if the file has no sections, of executable segments.  Each byte
counts once.  Only bytes of code count.  The extents of functions are read, but not the rows of functions.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.errors import SfsampleError
from sfsample.modules.module import Module

_LEAST_SIZE = 50_000_000  # bytes; a smaller file has the limits of a file of this size
_BYTES_PER_ROW = 25  # a file of 25 million bytes may have a million rows
_FILE_PER_TABLE = 4  # least ratio of the size of the file to the size of an unwind table

Range = tuple[int, int]  # [start, end) in vaddrs


class Coverage(NamedTuple):
    """The coverage of a module, in bytes of code."""

    text_bytes: int  # bytes of all code
    sframe_bytes: int  # bytes that SFrame covers
    eh_frame_bytes: int  # bytes that `.eh_frame` covers
    uncovered_bytes: int  # bytes that neither table covers
    eh_frame_fdes: int  # number of FDEs
    dropped: tuple[Range, ...]  # functions in `.eh_frame` that SFrame lacks; empty without SFrame

    def share(self, part: int) -> float:
        """Return `part` bytes as a share of all code, 0 to 1."""
        return part / self.text_bytes if self.text_bytes else 0.0


def check_tables(module: Module) -> None:
    """Raise SfsampleError if a table is too large, or has too many rows."""
    size = max(len(module.image.data), _LEAST_SIZE)
    eh_frame = module.tables.eh_frame
    table_bytes = max(sum(table.used for table in module.tables.sframe), eh_frame.size if eh_frame else 0)
    rows = sum(fde.num_fres for table in module.tables.sframe for fde in table.fdes())
    if table_bytes > size // _FILE_PER_TABLE:
        excess = f"an unwind table of {table_bytes} bytes"
    elif rows > size // _BYTES_PER_ROW:
        excess = f"SFrame functions with {rows} rows"
    else:
        return
    help_line = "give a file whose tables are not damaged"
    raise SfsampleError(f"cannot inspect: {module.path}: {excess}", help_line)


def measure_coverage(module: Module) -> Coverage:
    """Return the coverage of a module."""
    text = merge_ranges(module.image.code_sections or module.image.executable)
    fdes = module.tables.eh_frame.fdes() if module.tables.eh_frame else ()
    cfi = sorted((fde.start, fde.start + fde.size) for fde in fdes)
    sframe = merge_ranges(extent for table in module.tables.sframe for extent in table.extents())
    return Coverage(
        text_bytes=_size(text),
        sframe_bytes=shared_bytes(sframe, text),
        eh_frame_bytes=shared_bytes(merge_ranges(cfi), text),
        uncovered_bytes=_size(text) - shared_bytes(merge_ranges([*sframe, *cfi]), text),
        eh_frame_fdes=len(cfi),
        dropped=_outside(cfi, sframe) if module.tables.sframe else (),
    )


def _outside(functions: list[Range], covered: list[Range]) -> tuple[Range, ...]:
    """Return the functions that share no byte with `covered` (from `merge_ranges`)."""
    outside = []
    for start, end in functions:
        at = bisect_right(covered, start, key=lambda extent: extent[1])  # first range that ends after `start`
        if start < end and (at == len(covered) or covered[at][0] >= end):
            outside.append((start, end))
    return tuple(outside)


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return sorted ranges.  Ranges that overlap or touch are joined; empty ranges are left out."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def shared_bytes(first: list[Range], second: list[Range]) -> int:
    """Return the number of bytes that two results of `merge_ranges` share."""
    return _size(first) + _size(second) - _size(merge_ranges([*first, *second]))


def _size(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)
