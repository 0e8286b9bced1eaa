"""How much of the code the tables cover.

Law: counts bytes of executable sections (segments where there are no sections), each once; a table that
claims bytes outside them gains nothing.  Nothing is decoded but the extents of functions.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sfsample.modules.module import Module

Range = tuple[int, int]  # [start, end) in vaddrs


class Coverage(NamedTuple):
    """Bytes of code: all, under SFrame, under `.eh_frame`, under neither; and the functions gas dropped.

    `dropped` are the functions of `.eh_frame` that SFrame does not have, as ranges; empty without SFrame.
    """

    text: int
    sframe: int
    eh_frame: int
    neither: int
    eh_frame_fdes: int
    sframe_size: int  # of the tables themselves
    cfi_size: int  # of .eh_frame and .eh_frame_hdr; 0 where there are no section headers to tell
    dropped: tuple[Range, ...]

    def share(self, part: int) -> float:
        """Return `part` of all code, 0 to 1."""
        return part / self.text if self.text else 0.0


def cover(module: Module) -> Coverage:
    """Measure a module."""
    text = merge(module.image.code_sections or module.image.executable)
    cfi = sorted(module.eh_frame.extents()) if module.eh_frame else []
    rows = sorted(extent for table in module.sframe for extent in table.extents())
    by_sframe, by_cfi = intersect(merge(rows), text), intersect(merge(cfi), text)
    either = merge(sorted([*by_sframe, *by_cfi]))
    dropped = _missing(cfi, merge(rows)) if module.sframe else ()
    return Coverage(
        text=_size(text),
        sframe=_size(by_sframe),
        eh_frame=_size(by_cfi),
        neither=_size(text) - _size(either),
        eh_frame_fdes=len(cfi),
        sframe_size=sum(table.used for table in module.sframe),
        cfi_size=sum(s.size for s in map(module.image.section, (".eh_frame", ".eh_frame_hdr")) if s),
        dropped=dropped,
    )


def _missing(functions: list[Range], covered: list[Range]) -> tuple[Range, ...]:
    """Return the functions that share no byte with `covered`; both are sorted."""
    found, at = [], 0
    for start, end in functions:
        while at < len(covered) and covered[at][1] <= start:
            at += 1
        if start < end and (at == len(covered) or covered[at][0] >= end):
            found.append((start, end))
    return tuple(found)


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Join overlapping and touching ranges; empty ones vanish."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def intersect(ours: list[Range], theirs: list[Range]) -> list[Range]:
    """Return what two merged lists share."""
    shared, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        start, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if start < end:
            shared.append((start, end))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return shared


def _size(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)
