"""The order in which a symbol table is searched: record numbers by start address.

Law: pure, and it never raises on foreign bytes.  Built with array-speed code out of the packed records; three
packed arrays for the functions whose size is stated, three for what is guessed.  As bytes it can be kept and
opened again without being read: `from_bytes` takes a memory map.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress, pairwise
from operator import add
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from sfsample.core.arch import ByteOrder

SYM_SIZE = 24
ADDRESS_END = 1 << 64
_OFFSET = {"little": Struct("<I"), "big": Struct(">I")}
_STT_NOTYPE, _STT_FUNC, _STT_GNU_IFUNC = 0, 2, 10
_SHN_LORESERVE, _SHN_XINDEX = 0xFF00, 0xFFFF  # 0: undefined; above: absolute, common; XINDEX: a section
_IS_FUNC = bytes(info & 15 in (_STT_FUNC, _STT_GNU_IFUNC) for info in range(256))  # by st_info
_IS_LABEL = bytes(info & 15 == _STT_NOTYPE for info in range(256))
_COUNTS = Struct("=QQ")

Numbers = Sequence[int]  # an array, or a part of a memory map


class Order(NamedTuple):
    """Record numbers in order of their start."""

    starts: Numbers
    rows: Numbers
    reach: Numbers  # the greatest end among this record and all before it

    def first_alias(self, position: int) -> int:
        """Return the position of the first record that starts where the one at `position` does."""
        start = self.starts[position]
        if not position or self.starts[position - 1] != start:
            return position
        return bisect_left(self.starts, start, 0, position)


class SymbolIndex(NamedTuple):
    """`stated`: functions with a size; `guessed`: functions without, and labels."""

    stated: Order
    guessed: Order

    def to_bytes(self) -> bytes:
        """Return all of it packed."""
        parts = [_COUNTS.pack(len(self.stated.rows), len(self.guessed.rows))]
        for order in self:
            parts += [bytes(order.starts), bytes(order.reach)]
        return b"".join((*parts, *(bytes(order.rows) for order in self)))


def from_bytes(data: memoryview) -> SymbolIndex | None:
    """Return the index that was packed; None when the sizes are not those of one."""
    if len(data) < _COUNTS.size:
        return None
    counts = _COUNTS.unpack_from(data)
    if len(data) != _COUNTS.size + 20 * sum(counts):
        return None
    widths = (8 * counts[0], 8 * counts[0], 8 * counts[1], 8 * counts[1], 4 * counts[0], 4 * counts[1])
    ends = list(accumulate(widths, initial=_COUNTS.size))
    parts = [data[start:end] for start, end in pairwise(ends)]
    words = [part.cast("Q") for part in parts[:4]]
    stated, guessed = (part.cast("I") for part in parts[4:])
    return SymbolIndex(Order(words[0], stated, words[1]), Order(words[2], guessed, words[3]))


def checksum(symtab: memoryview, edges: Sequence[int]) -> int:
    """Return what an index depends on beside the names, as a number."""
    return crc32(repr(edges).encode(), crc32(symtab))


def build_index(
    symtab: memoryview, strtab: memoryview, byteorder: ByteOrder, edges: Sequence[int]
) -> SymbolIndex:
    """Index the records; `edges` are those of the executable sections."""
    words = _native("Q", symtab, byteorder)
    values, sizes = words[1::3], words[2::3]
    functions, labels = _defined(symtab, byteorder, with_labels=bool(edges))
    stated = [row for row in functions if sizes[row]]
    guessed = [row for row in functions if not sizes[row]] if len(stated) < len(functions) else []
    executable = (row for row in labels if bisect_right(edges, values[row]) & 1)
    guessed += [row for row in executable if _is_real_label(symtab, strtab, byteorder, row)]
    return SymbolIndex(_order(stated, values, sizes), _order(guessed, values, sizes))


def edges_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return starts and ends of the ranges, alternating and ascending; where they overlap they are one.

    An odd `bisect_right` is inside.
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
        """Rows whose type is in `mask`."""
        chosen = compress(range(len(infos)), infos.translate(mask))
        return [row for row in chosen if 0 < (n := sections[row]) < _SHN_LORESERVE or n == _SHN_XINDEX]

    return rows(_IS_FUNC), rows(_IS_LABEL) if with_labels else []


def _is_real_label(symtab: memoryview, strtab: memoryview, byteorder: ByteOrder, row: int) -> bool:
    """Whether a label is code and has a name of its own."""
    offset: int = _OFFSET[byteorder].unpack_from(symtab, row * SYM_SIZE)[0]
    prefix = bytes(strtab[offset : offset + 2])
    return prefix[:1] not in (b"", b"\0", b"$") and prefix != b".L"


def _native(code: str, view: memoryview, byteorder: ByteOrder) -> "array[int]":
    """Return the bytes as host integers."""
    numbers = array(code)
    numbers.frombytes(view)
    if byteorder != sys.byteorder:
        numbers.byteswap()
    return numbers


def _order(rows: list[int], values: "array[int]", sizes: "array[int]") -> Order:
    """Sort the records by start; those of one start stay in table order."""
    rows.sort(key=values.__getitem__)
    starts = list(map(values.__getitem__, rows))
    ends = list(map(add, starts, map(sizes.__getitem__, rows)))
    if max(ends, default=0) >= ADDRESS_END:  # a size that wraps around covers nothing
        ends = [end if end < ADDRESS_END else 0 for end in ends]
    return Order(array("Q", starts), array("I", rows), array("Q", list(accumulate(ends, max))))
