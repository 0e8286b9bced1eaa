"""Looks up Go functions, and the depth of their stack frames, in `.gopclntab`.

The table has an entry for each function.  A pcvalue table says how a property of the function changes with
the pc: the depth of the frame, the file, the line, or the index of the inlined call.  A look-up reads the
entry of one function.  Nothing is read in advance, because a large program has 100,000 functions.

Invariant: look-ups in damaged tables are short, and raise only FormatError (tests/formats/test_gopclntab.py).
Source: Go, src/runtime/symtab.go (pcHeader, _func, pcvalue), src/cmd/link/internal/ld/pcln.go; 1.18 to 1.27.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from struct import error as struct_error
from struct import unpack_from
from typing import NamedTuple

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage

SECTION = ".gopclntab"
_ENTRY_SIZE = 8  # bytes of an entry of the function table: offset from the text, offset of the `_func`
_MAX_ROWS = 100_000  # rows of one pcvalue table
_MAX_DATA = 16  # PCDATA or FUNCDATA tables of a function; Go 1.27 has 5 kinds of PCDATA, 11 of FUNCDATA
_MAX_VARINT_SIZE = 5  # bytes
_MAX_NAME_SIZE = 1 << 16  # bytes
_MAX_DEPTH = 1 << 31  # bytes of a frame; runtime.call1073741824 has the largest
NO_INDEX = 0xFFFFFFFF  # value of an absent offset or index


class GoLayout(NamedTuple):
    """Facts that depend on the version of the table."""

    function_size: int  # bytes of `_func` before the offsets of its PCDATA
    inline_size: int  # bytes of a record of the tree of inlined calls
    has_parents: bool  # True: a record has the index of its caller's record, and file and line of the call
    funcdata_word: int  # index of `gofunc` in moduledata, up to Go 1.25


LAYOUTS = {  # key: magic of the header
    0xFFFFFFF0: GoLayout(40, 20, True, 38),  # Go 1.18 and 1.19
    0xFFFFFFF1: GoLayout(44, 16, False, 40),  # Go 1.20 and later
}


class GoHeader(NamedTuple):
    """The header of the table.  From `names` on, fields are offsets from the header."""

    vaddr: int
    layout: GoLayout
    quantum: int  # bytes: smallest size of an instruction
    functions: int  # number of functions
    text: int  # vaddr from which offsets of code count; 0: moduledata states the vaddr (Go 1.26)
    names: int  # names of functions
    units: int  # offsets of the paths, for each file of each unit
    files: int  # paths
    values: int  # pcvalue tables
    table: int  # function table; offsets of `_func` count from here


class GoModuleData(NamedTuple):
    """Facts of the program's `runtime.moduledata`.  All fields are vaddrs."""

    text: int
    first_pc: int
    end_pc: int
    funcdata: int  # offsets of FUNCDATA tables count from here
    bss: tuple[tuple[int, int], ...]  # ranges [start, end) of variables with the initial value zero


class GoFunction(NamedTuple):
    """A function.  The fields `*_values` are offsets of pcvalue tables; 0: none."""

    entry: int  # vaddr
    end: int  # vaddr of the next function
    at: int  # offset of its `_func` from the header
    name: str
    depth_values: int
    file_values: int
    line_values: int
    unit: int  # index of the first file of the unit
    pcdata_count: int
    funcdata_count: int


class GoTable:
    """The table of one file."""

    def __init__(
        self, image: ElfImage, data: memoryview, header: GoHeader, module: GoModuleData, version: str
    ) -> None:
        """Take the bytes from the start of the table on.  `version`: such as "go1.24.4"; "": unknown."""
        self.image, self.header, self.module, self.version = image, header, module, version
        self._data = data
        minor = re.match(r"go1\.(\d+)", version)
        self.minor = int(minor[1]) if minor else None  # minor version, such as 24; None: unknown

    def function_at(self, vaddr: int) -> GoFunction | None:
        """Return the function that covers `vaddr`; None: code of another language.  Raises FormatError."""
        if not self.module.first_pc <= vaddr < self.module.end_pc:
            return None
        wanted = vaddr - self.module.text
        indexes = range(1, self.header.functions)
        low = bisect_right(indexes, wanted, key=lambda index: self._entry(index)[0])
        (first, at), (end, _) = self._entry(low), self._entry(low + 1)
        if not first <= wanted < end:
            raise FormatError(SECTION, self.header.table + low * _ENTRY_SIZE, "functions are not in order")
        return self._function(first, end, self.header.table + at)

    def depth_at(self, function: GoFunction, vaddr: int) -> tuple[int, int, int] | None:
        """Return the depth of the frame at `vaddr`, and the range [start, end) of vaddrs with this depth.

        Depth: bytes from sp to the return address (AArch64: to the CFA).  None: unknown.  Raises FormatError.
        """
        for depth, start, end in self.values(function, function.depth_values):
            if start <= vaddr < end:
                if not 0 <= depth < _MAX_DEPTH or depth % 8:
                    raise FormatError(SECTION, function.at, f"{function.name}: a frame of {depth} bytes")
                return depth, start, end
        return None

    def value_at(self, function: GoFunction, values: int, vaddr: int) -> int:
        """Return the value of a pcvalue table at `vaddr`; -1: there is no value.  Raises FormatError."""
        rows = self.values(function, values)
        return next((value for value, _, end in rows if vaddr < end), -1)

    def values(self, function: GoFunction, values: int) -> Iterator[tuple[int, int, int]]:
        """Yield (value, start, end) of the rows of a pcvalue table.  Raises FormatError."""
        value, start, at = -1, function.entry, self.header.values + values
        for row in range(_MAX_ROWS if values else 0):
            change, at = self._varint(at)
            if not change and row:  # a change of 0 ends the table, except in the first row
                return
            value += -((change + 1) >> 1) if change & 1 else change >> 1  # zigzag
            size, at = self._varint(at)
            end = start + size * self.header.quantum
            yield value, start, end
            start = end
            if start >= function.end:
                return

    def pcdata(self, function: GoFunction, index: int, vaddr: int) -> int:
        """Return the value of a PCDATA table at `vaddr`; -1: there is no value.  Raises FormatError."""
        return self.value_at(function, self.pcdata_values(function, index), vaddr)

    def pcdata_values(self, function: GoFunction, index: int) -> int:
        """Return the offset of a PCDATA table; 0: no such table.  Raises FormatError."""
        if index >= function.pcdata_count:
            return 0
        (values,) = self.unpack("<I", function.at + self.header.layout.function_size + 4 * index)
        return values

    def funcdata(self, function: GoFunction, index: int) -> int | None:
        """Return the vaddr of a FUNCDATA table, or None.  Raises FormatError."""
        if index >= function.funcdata_count:
            return None
        at = function.at + self.header.layout.function_size + 4 * (function.pcdata_count + index)
        (offset,) = self.unpack("<I", at)
        return None if offset == NO_INDEX else self.module.funcdata + offset

    def file_name(self, function: GoFunction, index: int) -> str:
        """Return the path of a file of the function's unit; "" if unknown.  Raises FormatError."""
        if not 0 <= index < NO_INDEX or function.unit == NO_INDEX:
            return ""
        (offset,) = self.unpack("<I", self.header.units + 4 * (function.unit + index))
        return "" if offset == NO_INDEX else self._string(self.header.files + offset)

    def name(self, offset: int) -> str:
        """Return the name of a function by its offset.  Raises FormatError."""
        return self._string(self.header.names + offset)

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        """Return integers at an offset from the header.  Raises FormatError."""
        try:
            return unpack_from(form, self._data, offset)
        except struct_error:
            raise FormatError(SECTION, offset, "lies outside the table") from None

    def _entry(self, index: int) -> tuple[int, ...]:
        return self.unpack("<II", self.header.table + index * _ENTRY_SIZE)

    def _function(self, first: int, end: int, at: int) -> GoFunction:
        stated, name, _, _, depth, file, line, pcdata_count, unit = self.unpack("<IiIIIIIII", at)
        funcdata_count = self.unpack("<B", at + self.header.layout.function_size - 1)[0]
        if stated != first:
            raise FormatError(SECTION, at, f"the entry of text+{stated:#x}, not of text+{first:#x}")
        if max(pcdata_count, funcdata_count) > _MAX_DATA:
            raise FormatError(SECTION, at, f"{pcdata_count} PCDATA and {funcdata_count} FUNCDATA tables")
        text = self.module.text
        return GoFunction(text + first, text + end, at, self.name(name), depth, file, line, unit,
                          pcdata_count, funcdata_count)  # fmt: skip

    def _varint(self, at: int) -> tuple[int, int]:
        """Return an unsigned LEB128 number, and the offset of the byte after it."""
        value = 0
        for index, byte in enumerate(self._data[at : at + _MAX_VARINT_SIZE]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value, at + index + 1
        raise FormatError(SECTION, at, "a number has no end")

    def _string(self, at: int) -> str:
        text = bytes(self._data[at : at + _MAX_NAME_SIZE])
        end = text.find(0)
        if at < 0 or end < 0:
            raise FormatError(SECTION, at, "a string has no end")
        return text[:end].decode("utf-8", "replace")
