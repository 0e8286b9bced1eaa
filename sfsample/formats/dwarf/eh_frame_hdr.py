"""Reads `.eh_frame_hdr`: the address of `.eh_frame`, and a sorted table to search it by.

The table is bisected in place; a search reads only the entries that it needs.

Source: LSB 5.0 core, ".eh_frame_hdr section": version, three encodings, eh_frame_ptr, fde_count, then pairs
(location, FDE).
"""

import sys
from bisect import bisect_right

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError
from sfsample.formats.dwarf.reader import FIXED_SIZES, OMIT, DwarfReader

_SECTION = ".eh_frame_hdr"
_DATAREL_SDATA4 = 0x3B  # what every linker writes: signed 4-byte distances from the section's start


class SearchTable:
    """The (location, FDE) pairs of the table.  Raises FormatError when they cannot be searched."""

    __slots__ = ("_begin", "_count", "_encoding", "_hdr", "_starts", "_stride", "_words")

    def __init__(self, hdr: DwarfReader, begin: int, count: int, encoding: int) -> None:
        size = FIXED_SIZES.get(encoding & 0x0F)
        if size is None:
            raise hdr.damaged(3, f"a table of encoding {encoding:#x} cannot be searched")
        if 2 * size * count > len(hdr.data) - begin:
            raise hdr.damaged(begin, f"{count} table entries do not fit")
        self._hdr, self._begin, self._count = hdr, begin, count
        self._encoding, self._stride = encoding, 2 * size
        self._words = self._as_words()
        self._starts = None if self._words is None else self._words[::2]

    def _as_words(self) -> "memoryview[int] | None":
        """Return the usual table as integers, which bisect reads in C; None: another encoding."""
        if self._encoding != _DATAREL_SDATA4 or self._hdr.byteorder != sys.byteorder:
            return None
        return memoryview(self._hdr.data)[self._begin : self._begin + 8 * self._count].cast("i")

    def locate(self, vaddr: int) -> int | None:
        """Return the vaddr of the FDE that starts last at or before `vaddr`; None: all start above it."""
        if self._words is not None and self._starts is not None:
            index = bisect_right(self._starts, vaddr - self._hdr.vaddr) - 1
            return None if index < 0 else self._hdr.vaddr + self._words[2 * index + 1]
        index = bisect_right(range(self._count), vaddr, key=self._location) - 1
        return None if index < 0 else self._pointer(self._begin + index * self._stride + self._stride // 2)

    def _location(self, index: int) -> int:
        return self._pointer(self._begin + index * self._stride)

    def _pointer(self, pos: int) -> int:
        return self._hdr.pointer(pos, self._encoding, self._hdr.vaddr)[0]


def _fields(data: bytes | memoryview, vaddr: int, byteorder: ByteOrder) -> tuple[DwarfReader, int, int]:
    """Return a reader of the header, eh_frame_ptr as a vaddr, and the position after it."""
    hdr = DwarfReader(_SECTION, memoryview(data).cast("B"), vaddr, byteorder)
    if hdr.u8(0) != 1:
        raise hdr.damaged(0, f"version {hdr.u8(0)} is not known")
    eh_frame_vaddr, pos = hdr.pointer(4, hdr.u8(1), vaddr)  # eh_frame_ptr_enc, eh_frame_ptr
    return hdr, eh_frame_vaddr, pos


def eh_frame_address(hdr: bytes | memoryview, hdr_vaddr: int, byteorder: ByteOrder) -> int:
    """Return the vaddr of `.eh_frame` that the header states.  Raises FormatError when it is damaged."""
    return _fields(hdr, hdr_vaddr, byteorder)[1]


def search_table(data: bytes | memoryview, vaddr: int, byteorder: ByteOrder) -> SearchTable | None:
    """Return the search table; None: it is absent, damaged, or in an encoding that cannot be searched."""
    try:
        hdr, _, pos = _fields(data, vaddr, byteorder)
        count_encoding, encoding = hdr.u8(2), hdr.u8(3)  # fde_count_enc, table_enc
        if OMIT in (count_encoding, encoding):
            return None
        count, pos = hdr.pointer(pos, count_encoding, vaddr)
        return SearchTable(hdr, pos, count, encoding)
    except FormatError:
        return None
