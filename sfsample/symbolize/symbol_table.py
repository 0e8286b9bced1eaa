"""Finds the function that contains a vaddr in an ELF64 symbol table.

Tables may have 100,000 records, so records stay packed, and are sorted by operations on whole arrays.  The
order of preference is:

1. a function (STT_FUNC, STT_GNU_IFUNC) whose stated size covers the vaddr, the innermost first;
2. a guess: a function without a size, or a label (STT_NOTYPE: hand-written assembly), in an executable
   section.  A symbol without a size extends to the next symbol, but not beyond its section.

Of several aliases, a global or weak symbol is preferred, then a name without a leading underscore, then the
shortest name, then the first name in the alphabet.  Undefined, absolute and common symbols and ARM mapping
symbols (`$x`) are not code.

Invariant: no damaged table raises an exception; a look-up reads a limited number of names of limited size,
and `limit` names a limit that was reached (tests/symbolize/test_symbol_table.py).
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
from sfsample.formats.elf.image import ElfImage

_SYM = {"little": Struct("<IBBHQQ"), "big": Struct(">IBBHQQ")}  # name, info, other, shndx, value, size
_SYM_SIZE = 24
_STT_NOTYPE, _STT_OBJECT, _STT_FUNC, _STT_GNU_IFUNC = 0, 1, 2, 10
_STB_LOCAL = 0
_SHN_LORESERVE, _SHN_XINDEX = 0xFF00, 0xFFFF  # numbers from LORESERVE on are no sections, except XINDEX
# the byte at index `st_info` is 1 if the symbol has the type, else 0
FUNCTIONS = bytes(info & 15 in (_STT_FUNC, _STT_GNU_IFUNC) for info in range(256))
OBJECTS = bytes(info & 15 == _STT_OBJECT for info in range(256))
_LABELS = bytes(info & 15 == _STT_NOTYPE for info in range(256))
_ADDRESS_END = 1 << 64

_MAX_RECORDS = 1 << 22  # records of a table, which take 3 s and 0.7 GB; librustc_driver has 165,000
_MAX_TRIED = 512  # enclosing symbols or aliases that a look-up tries; a merged function has dozens of aliases
_MAX_NAME_BYTES = 10_000  # bytes; the longest name of half a million symbols has 1,230
_NAME_READ_BYTES = (256, _MAX_NAME_BYTES + 1)  # sizes of reads, tried in turn
_MAX_COPIES = 64  # tables whose bytes are kept; further tables are not shared

_Kind = tuple[object, ...]


class Symbol(NamedTuple):
    """A symbol as its table has it, or a generated function of a perf map."""

    name: str  # mangled name
    start: int  # vaddr; in a perf map, run-time address
    size: int  # bytes; 0: not stated


class _SortedRecords:
    """Records of a symbol table, sorted by start address.  Records with equal starts stay in table order."""

    def __init__(self, rows: list[int], values: "array[int]", sizes: "array[int]") -> None:
        rows.sort(key=values.__getitem__)
        ends = list(map(add, map(values.__getitem__, rows), map(sizes.__getitem__, rows)))
        if max(ends, default=0) >= _ADDRESS_END:  # records that end beyond the last address cover nothing
            ends = [end if end < _ADDRESS_END else 0 for end in ends]
        self.rows = array("I", rows)  # record numbers
        self.starts = array("Q", map(values.__getitem__, rows))
        self.max_ends = array("Q", accumulate(ends, max))  # greatest end of this record and all before it

    def first_alias(self, position: int) -> int:
        """Return the position of the first record with the same start as the record at `position`."""
        return bisect_left(self.starts, self.starts[position], 0, position)


class SymbolTable:
    """The functions (or the symbols of other `types`) of a `.symtab` or `.dynsym`, and its string table.

    `executable`: vaddr ranges of executable sections.  Without ranges, labels are not used.  Segments
    would be wrong: `_init`, which has no size, would extend over the next section, the PLT.
    """

    def __init__(
        self,
        symtab: bytes | memoryview,
        strtab: bytes | memoryview,
        byteorder: ByteOrder,
        executable: Sequence[tuple[int, int]] = (),
        types: bytes = FUNCTIONS,
    ) -> None:
        view = memoryview(symtab).cast("B")
        count = len(view) // _SYM_SIZE
        self.limit = f"only {_MAX_RECORDS} of {count} symbols were read" if count > _MAX_RECORDS else ""
        self._view = view[: min(count, _MAX_RECORDS) * _SYM_SIZE]
        self._names = memoryview(strtab).cast("B")
        self._unpack = _SYM[byteorder].unpack_from
        self._edges = _edges_of(executable)
        words = _native("Q", self._view, byteorder)
        values, sizes = words[1::3], words[2::3]
        functions, labels = _defined(self._view, byteorder, types), _defined(self._view, byteorder, _LABELS)
        inside = (row for row in labels if bisect_right(self._edges, values[row]) & 1)
        guessed = [row for row in functions if not sizes[row]] + list(filter(self._is_real_label, inside))
        self._stated = _SortedRecords([row for row in functions if sizes[row]], values, sizes)
        self._guessed = _SortedRecords(guessed, values, sizes)

    def find_stated(self, vaddr: int) -> Symbol | None:
        """Return the innermost function whose stated size covers `vaddr`, or None."""
        records, left = self._stated, _MAX_TRIED
        position = bisect_right(records.starts, vaddr) - 1
        while position >= 0 and records.max_ends[position] > vaddr:
            if left <= 0:
                self.limit = f"a look-up tries {_MAX_TRIED} symbols that may enclose an address"
                return None
            first = records.first_alias(position)
            best = self._best_alias(records.rows[first : min(position + 1, first + left)], vaddr)
            if best:
                return best
            left -= position + 1 - first
            position = first - 1
        return None

    def find_guessed(self, vaddr: int) -> Symbol | None:
        """Return the nearest label or function without a size before `vaddr`, or None."""
        records, edges = self._guessed, self._edges
        position = bisect_right(records.starts, vaddr) - 1
        if position < 0 or bisect_right(edges, records.starts[position]) != bisect_right(edges, vaddr):
            return None  # no symbol precedes `vaddr` in its executable section
        first = records.first_alias(position)
        best = self._best_alias(records.rows[first : min(position + 1, first + _MAX_TRIED)], vaddr)
        if best is None or best.size:
            return best
        starts = self._stated.starts  # a function with a size between `best` and `vaddr` ends the guess
        return best if bisect_right(starts, best.start) == bisect_right(starts, vaddr) else None

    def _best_alias(self, rows: Sequence[int], vaddr: int) -> Symbol | None:
        if len(rows) == 1:
            return self._symbol(rows[0], vaddr)
        named = [(self._rank(row, symbol), symbol) for row in rows if (symbol := self._symbol(row, vaddr))]
        return min(named)[1] if named else None

    def _symbol(self, row: int, vaddr: int) -> Symbol | None:
        offset, _, _, _, start, size = self._unpack(self._view, row * _SYM_SIZE)
        if size and not vaddr < start + size < _ADDRESS_END:
            return None
        name = self._name(offset)
        return Symbol(name, start, size) if name else None

    def _rank(self, row: int, symbol: Symbol) -> tuple[bool, bool, bool, int]:
        info = self._view[row * _SYM_SIZE + 4]
        name = symbol.name.partition("@")[0]  # name without the symbol version
        return info & 15 == _STT_NOTYPE, info >> 4 == _STB_LOCAL, name[:1] == "_", len(name)

    def _is_real_label(self, row: int) -> bool:
        """Return True if a label is code, and has a name that is not internal to the assembler."""
        offset = self._unpack(self._view, row * _SYM_SIZE)[0]
        prefix = bytes(self._names[offset : offset + 2])
        return prefix[:1] not in (b"", b"\0", b"$") and prefix != b".L"

    def _name(self, offset: int) -> str:
        """Return the name at `offset`; "" if `offset` lies outside the string table."""
        for length in _NAME_READ_BYTES:
            name, end, _ = bytes(self._names[offset : offset + length]).partition(b"\0")
            if end:
                return name.decode("utf-8", "replace")
        if len(name) > _MAX_NAME_BYTES:
            self.limit = f"a name has more than {_MAX_NAME_BYTES} bytes"
        return ""


class SymbolTables:
    """The symbol tables of one result.  Files with equal bytes share a table.

    Each container has its own copy of a program.  A table of node takes 60 ms and 10 MB, so 20 copies would
    take 1.2 s and 200 MB.  To the kernel, copies are different files, and any file can claim a build-id, so
    all bytes are compared.  A shared table is made from a copy of the bytes, because the owner of a file can
    change the file later.  The first table of each size is not copied, because most sizes occur once.
    Invariant: only files with equal tables share names (tests/symbolize/test_symbol_table_shared.py).
    """

    def __init__(self) -> None:
        self._seen: set[_Kind] = set()
        self._shared: list[tuple[_Kind, bytes, bytes, SymbolTable]] = []

    def table(self, image: ElfImage, symtab: memoryview, strtab: memoryview) -> SymbolTable:
        """Return the table with these contents, which are parts of `image`."""
        sections = tuple(image.code_sections)
        kind = len(symtab), len(strtab), image.byteorder, sections
        if kind not in self._seen:
            self._seen.add(kind)
            return SymbolTable(symtab, strtab, image.byteorder, sections)
        records, names = bytes(symtab), bytes(strtab)
        image.release_pages()
        for shared in self._shared:
            if shared[:3] == (kind, records, names):
                return shared[3]
        table = SymbolTable(records, names, image.byteorder, sections)
        if len(self._shared) < _MAX_COPIES:
            self._shared.append((kind, records, names, table))
        return table


def _edges_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return starts and ends of the merged ranges; an address is inside if its `bisect_right` is odd."""
    merged: list[list[int]] = []
    for start, end in sorted((start, end) for start, end in ranges if start < end):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return list(chain.from_iterable(merged))


def _defined(symtab: memoryview, byteorder: ByteOrder, types: bytes) -> list[int]:
    """Return the record numbers of symbols with one of `types` that are defined in a section."""
    sections = _native("H", symtab, byteorder)[3::12]
    infos = bytes(symtab[4::_SYM_SIZE])
    chosen = compress(range(len(infos)), infos.translate(types))
    return [row for row in chosen if 0 < (n := sections[row]) < _SHN_LORESERVE or n == _SHN_XINDEX]


def _native(code: str, view: memoryview, byteorder: ByteOrder) -> "array[int]":
    numbers = array(code)
    numbers.frombytes(view)
    if byteorder != sys.byteorder:
        numbers.byteswap()
    return numbers
