"""Sorts the functions of a symbol table by address, in packed arrays.

It never raises on damaged tables.  It works by operations on whole arrays, because a table may have 100,000
records: three arrays for the functions with a size, three for the symbols whose extent is guessed.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress
from operator import add
from struct import Struct
from typing import NamedTuple

from sfsample.core.arch import ByteOrder

SYM_SIZE = 24
ADDRESS_END = 1 << 64
_OFFSET = {"little": Struct("<I"), "big": Struct(">I")}
_STT_NOTYPE, _STT_FUNC, _STT_GNU_IFUNC = 0, 2, 10
_SHN_LORESERVE, _SHN_XINDEX = 0xFF00, 0xFFFF  # from LORESERVE on: absolute, common; XINDEX: a section
_IS_FUNC = bytes(info & 15 in (_STT_FUNC, _STT_GNU_IFUNC) for info in range(256))  # by st_info
_IS_LABEL = bytes(info & 15 == _STT_NOTYPE for info in range(256))


class SortedRecords(NamedTuple):
    """Records of a symbol table, sorted by start address: starts, record numbers, greatest ends."""

    starts: "array[int]"
    rows: "array[int]"
    max_ends: "array[int]"  # the greatest end of this record and all before it

    def first_alias(self, position: int) -> int:
        """Return the position of the first record with the same start as the record at `position`."""
        start = self.starts[position]
        if not position or self.starts[position - 1] != start:
            return position
        return bisect_left(self.starts, start, 0, position)


def sort_functions(
    symtab: memoryview, strtab: memoryview, byteorder: ByteOrder, edges: Sequence[int]
) -> tuple[SortedRecords, SortedRecords]:
    """Return the functions with a size, and those without one with the labels, of a symbol table.

    `edges`: those of the executable sections, by `edges_of`.
    """
    words = _native("Q", symtab, byteorder)
    values, sizes = words[1::3], words[2::3]
    functions, labels = _defined(symtab, byteorder, with_labels=bool(edges))
    stated = [row for row in functions if sizes[row]]
    guessed = [row for row in functions if not sizes[row]] if len(stated) < len(functions) else []
    executable = (row for row in labels if bisect_right(edges, values[row]) & 1)
    guessed += [row for row in executable if _is_real_label(symtab, strtab, byteorder, row)]
    return _sort(stated, values, sizes), _sort(guessed, values, sizes)


def edges_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return starts and ends of the ranges, alternating and ascending; overlapping ranges are merged.

    An address is inside a range if its `bisect_right` is odd.
    """
    merged: list[list[int]] = []
    for start, end in sorted((start, end) for start, end in ranges if start < end):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return list(chain.from_iterable(merged))


def _defined(symtab: memoryview, byteorder: ByteOrder, *, with_labels: bool) -> tuple[list[int], list[int]]:
    """Return the record numbers of the functions and labels that are defined in a section."""
    sections = _native("H", symtab, byteorder)[3::12]
    infos = bytes(symtab[4::SYM_SIZE])

    def rows(mask: bytes) -> list[int]:
        """Return the records whose type is in `mask`."""
        chosen = compress(range(len(infos)), infos.translate(mask))
        return [row for row in chosen if 0 < (n := sections[row]) < _SHN_LORESERVE or n == _SHN_XINDEX]

    return rows(_IS_FUNC), rows(_IS_LABEL) if with_labels else []


def _is_real_label(symtab: memoryview, strtab: memoryview, byteorder: ByteOrder, row: int) -> bool:
    """Whether a label is code and has a name that is not internal to the assembler."""
    offset: int = _OFFSET[byteorder].unpack_from(symtab, row * SYM_SIZE)[0]
    prefix = bytes(strtab[offset : offset + 2])
    return prefix[:1] not in (b"", b"\0", b"$") and prefix != b".L"


def _native(code: str, view: memoryview, byteorder: ByteOrder) -> "array[int]":
    """Return the bytes as integers in host byte order."""
    numbers = array(code)
    numbers.frombytes(view)
    if byteorder != sys.byteorder:
        numbers.byteswap()
    return numbers


def _sort(rows: list[int], values: "array[int]", sizes: "array[int]") -> SortedRecords:
    """Sort the records by start; records with the same start stay in table order."""
    rows.sort(key=values.__getitem__)
    starts = list(map(values.__getitem__, rows))
    ends = list(map(add, starts, map(sizes.__getitem__, rows)))
    if max(ends, default=0) >= ADDRESS_END:  # a size that wraps around covers nothing
        ends = [end if end < ADDRESS_END else 0 for end in ends]
    return SortedRecords(array("Q", starts), array("I", rows), array("Q", list(accumulate(ends, max))))
