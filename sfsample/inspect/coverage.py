"""Measures how much of a module's code its unwind tables cover.

Bytes of executable sections are counted, each once (of segments, where the file has no sections); bytes that
a table claims outside of them do not count.  Only the extents of functions are decoded.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.modules.module import Module

Range = tuple[int, int]  # [start, end) in vaddrs


class Coverage(NamedTuple):
    """Bytes of code in a module, and how many of them SFrame covers, `.eh_frame` covers, or neither.

    `dropped` are the ranges of functions that `.eh_frame` has and SFrame does not: the assembler dropped
    them.  It is empty for a module without SFrame.
    """

    text_bytes: int
    sframe_bytes: int
    eh_frame_bytes: int
    uncovered_bytes: int
    eh_frame_fdes: int
    dropped: tuple[Range, ...]

    def share(self, part: int) -> float:
        """Return `part` bytes as a share of all code, 0 to 1."""
        return part / self.text_bytes if self.text_bytes else 0.0


def measure_coverage(module: Module) -> Coverage:
    """Return the coverage of a module."""
    text = merge_ranges(module.image.code_sections or module.image.executable)
    fdes = module.eh_frame.fdes() if module.eh_frame else ()
    cfi = sorted((fde.start, fde.start + fde.size) for fde in fdes)
    sframe = merge_ranges(extent for table in module.sframe for extent in table.extents())
    return Coverage(
        text_bytes=_size(text),
        sframe_bytes=shared_bytes(sframe, text),
        eh_frame_bytes=shared_bytes(merge_ranges(cfi), text),
        uncovered_bytes=_size(text) - shared_bytes(merge_ranges([*sframe, *cfi]), text),
        eh_frame_fdes=len(cfi),
        dropped=_outside(cfi, sframe) if module.sframe else (),
    )


def _outside(functions: list[Range], covered: list[Range]) -> tuple[Range, ...]:
    """Return the functions that share no byte with `covered`, which is a result of `merge_ranges`."""
    found = []
    for start, end in functions:
        at = bisect_right(covered, start, key=lambda extent: extent[1])  # the first that ends after `start`
        if start < end and (at == len(covered) or covered[at][0] >= end):
            found.append((start, end))
    return tuple(found)


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return sorted ranges; those that overlap or touch are joined, empty ones are left out."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def shared_bytes(first: list[Range], second: list[Range]) -> int:
    """Return how many bytes two results of `merge_ranges` share: what their union has less than their sum."""
    return _size(first) + _size(second) - _size(merge_ranges([*first, *second]))


def _size(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)
