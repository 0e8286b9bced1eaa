"""Reads fields of DWARF tables: fixed-size integers, LEB128, strings, encoded pointers.

A method takes a position and returns the value.  If the size of values varies, the method also returns the
position after the value.  A reader stores no position.  A read beyond the span raises `FormatError`.

Source: DWARF 5 section 7.6 (LEB128); LSB 5.0 core "DWARF Extensions" (DW_EH_PE pointer encodings).
"""

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError

_INTEGERS = {
    (byteorder, size, signed): Struct(mark + (code.lower() if signed else code)).unpack_from
    for byteorder, mark in (("little", "<"), ("big", ">"))
    for size, code in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))
    for signed in (False, True)
}
_MAX_LEB128_SIZE = 10  # bytes of a 64-bit value
_WORD = (1 << 64) - 1

OMIT = 0xFF  # DW_EH_PE_omit
# low four bits of an encoding -> bytes: DW_EH_PE_absptr, udata2, 4, 8, signed, sdata2, 4, 8
_FIXED_SIZES = {0x0: 8, 0x2: 2, 0x3: 4, 0x4: 8, 0x8: 8, 0xA: 2, 0xB: 4, 0xC: 8}


class DwarfReader(NamedTuple):
    """Reads one span of a section."""

    section: str
    data: bytes | memoryview
    vaddr: int  # vaddr of the span
    byteorder: ByteOrder
    origin: int = 0  # offset of the span in the section

    def damaged(self, pos: int, what: str) -> FormatError:
        """Return an error at `pos` or, if the span ends before `pos`, at the end of the span."""
        return FormatError(self.section, self.origin + min(pos, len(self.data)), what)

    def span(self, begin: int, end: int) -> "DwarfReader":
        """Return a reader of the bytes [begin, end), so that reads stop at `end`."""
        data, vaddr = bytes(self.data[begin:end]), self.vaddr + begin
        return DwarfReader(self.section, data, vaddr, self.byteorder, origin=self.origin + begin)

    def block(self, pos: int, size: int) -> tuple[bytes, int]:
        """Read `size` bytes."""
        if size > len(self.data) - pos:
            raise self.damaged(pos, f"{size} bytes do not fit")
        return bytes(self.data[pos : pos + size]), pos + size

    def string(self, pos: int) -> tuple[bytes, int]:
        """Read a NUL-terminated string."""
        end = bytes(self.data[pos:]).find(0)
        if end < 0:
            raise self.damaged(pos, "string has no end")
        return bytes(self.data[pos : pos + end]), pos + end + 1

    def u8(self, pos: int) -> int:
        """Read one byte."""
        try:
            return self.data[pos]
        except IndexError:
            raise self.damaged(pos, "ends inside a field") from None

    def integer(self, pos: int, size: int, signed: bool = False) -> int:
        """Read a fixed-size integer of 1, 2, 4 or 8 bytes."""
        try:
            value: int = _INTEGERS[self.byteorder, size, signed](self.data, pos)[0]
        except struct_error:
            raise self.damaged(pos, "ends inside a field") from None
        return value

    def uleb128(self, pos: int) -> tuple[int, int]:
        """Read an unsigned LEB128, modulo 2**64."""
        byte = self.u8(pos)
        if byte < 0x80:
            return byte, pos + 1
        value, _, end = self._leb128(pos)
        return value & _WORD, end

    def sleb128(self, pos: int) -> tuple[int, int]:
        """Read a signed LEB128, modulo 2**64."""
        value, bits, end = self._leb128(pos)
        sign = 1 << min(bits, 64) - 1
        return (value & (2 * sign - 1) ^ sign) - sign, end

    def _leb128(self, pos: int) -> tuple[int, int, int]:
        value = bits = 0
        for index in range(pos, pos + _MAX_LEB128_SIZE):
            byte = self.u8(index)
            value |= (byte & 0x7F) << bits
            bits += 7
            if byte < 0x80:
                return value, bits, index + 1
        raise self.damaged(pos, "LEB128 is longer than 64 bits")

    def pointer(self, pos: int, encoding: int, data_base: int | None = None) -> tuple[int, int]:
        """Read a DW_EH_PE pointer.  Raises FormatError if it is indirect, or if its base is unknown."""
        if encoding & 0x80:  # DW_EH_PE_indirect, and DW_EH_PE_omit
            raise self.damaged(pos, f"pointer encoding {encoding:#x} has no value here")
        match encoding & 0x70:
            case 0x00:  # DW_EH_PE_absptr
                base = 0
            case 0x10:  # DW_EH_PE_pcrel
                base = self.vaddr + pos
            case 0x30 if data_base is not None:  # DW_EH_PE_datarel
                base = data_base
            case unknown:
                raise self.damaged(pos, f"pointer base {unknown:#x} is not known")
        value, end = self.plain(pos, encoding)
        return base + value & _WORD, end

    def plain(self, pos: int, encoding: int) -> tuple[int, int]:
        """Read a pointer in a DW_EH_PE encoding, but add no base."""
        match encoding & 0x0F:
            case 0x01:  # DW_EH_PE_uleb128
                return self.uleb128(pos)
            case 0x09:  # DW_EH_PE_sleb128
                return self.sleb128(pos)
        size = _FIXED_SIZES.get(encoding & 0x0F)
        if size is None:
            raise self.damaged(pos, f"pointer encoding {encoding:#x} does not exist")
        return self.integer(pos, size, encoding & 0x08 != 0), pos + size
