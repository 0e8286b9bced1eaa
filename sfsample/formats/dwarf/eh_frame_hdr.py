"""Reads `.eh_frame_hdr`: the address of `.eh_frame`, and a sorted table to search it by.

The table is bisected in place.  One of another encoding than what every linker writes is not searched.

Source: LSB 5.0 core, ".eh_frame_hdr section": version, three encodings, eh_frame_ptr, fde_count, then pairs
(location, FDE).
"""

import sys
from array import array
from bisect import bisect_right

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError
from sfsample.formats.dwarf.reader import DwarfReader

_SECTION = ".eh_frame_hdr"
_DATAREL_SDATA4 = 0x3B  # signed 4-byte distances from the section's start


class SearchTable:
    """The (location, FDE) pairs of the table.  Raises FormatError when they are not all there."""

    __slots__ = ("_fdes", "_starts", "_vaddr")

    def __init__(self, hdr: DwarfReader, begin: int, count: int) -> None:
        data = hdr.data[begin : begin + 8 * count]
        if len(data) < 8 * count:
            raise hdr.damaged(begin, f"{count} table entries do not fit")
        words: memoryview[int] | array[int] = memoryview(data).cast("i")
        if hdr.byteorder != sys.byteorder:
            words = array("i", bytes(data))
            words.byteswap()
        self._vaddr = hdr.vaddr
        self._starts, self._fdes = words[::2], words[1::2]

    def locate(self, vaddr: int) -> int | None:
        """Return the vaddr of the FDE that starts last at or before `vaddr`; None: all start above it."""
        index = bisect_right(self._starts, vaddr - self._vaddr) - 1
        return None if index < 0 else self._vaddr + self._fdes[index]


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
        if hdr.u8(3) != _DATAREL_SDATA4:  # table_enc
            return None
        count, pos = hdr.pointer(pos, hdr.u8(2), vaddr)  # fde_count_enc, fde_count
        return SearchTable(hdr, pos, count)
    except FormatError:
        return None
