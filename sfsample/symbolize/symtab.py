"""Which function contains a vaddr, by an ELF64 symbol table.

Law: pure, and it never raises on foreign bytes.  The table stays packed: one sorted array of start
addresses, one of record numbers, one of how far they reach; a `Symbol` is made only for an answer.

What a table states beats what we guess from it:

1. a function (STT_FUNC, STT_GNU_IFUNC) with a size that covers the vaddr, the innermost first;
2. a function without a size, or a label (STT_NOTYPE: hand-written assembly) in an executable section;
   without a size it reaches to the next symbol, never beyond its executable section.

Aliases: global and weak before local, no leading underscore before one, then shortest, then alphabetical.
Undefined, absolute and common symbols and ARM mapping symbols (`$x`) are nobody's code.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress
from operator import add
from struct import Struct
from typing import NamedTuple

from sfsample.arch import ByteOrder

_SYM_SIZE = 24
_SYM = {"little": Struct("<IBBHQQ"), "big": Struct(">IBBHQQ")}  # name, info, other, shndx, value, size
_STT_NOTYPE, _STT_FUNC, _STT_GNU_IFUNC = 0, 2, 10
_STB_LOCAL = 0
_SHN_LORESERVE, _SHN_XINDEX = 0xFF00, 0xFFFF  # 0: undefined; above: absolute, common; XINDEX: a section

_IS_FUNC = bytes(info & 15 in (_STT_FUNC, _STT_GNU_IFUNC) for info in range(256))  # by st_info
_IS_LABEL = bytes(info & 15 == _STT_NOTYPE for info in range(256))

_MAX_OUTER = 256  # starts to walk back over in search of an enclosing symbol
_MAX_ALIASES = 256  # of one start; identical code folding makes dozens
_NAME_READS = (256, 4096, 1 << 16, 1 << 20)  # bytes tried in turn; a longer name is no name
_ADDRESS_END = 1 << 64


class Symbol(NamedTuple):
    """A symbol as the table states it: raw name, vaddr, size (0: not stated)."""

    name: str
    start: int
    size: int


class _Index(NamedTuple):
    """Record numbers in order of their start."""

    starts: "array[int]"
    rows: "array[int]"
    reach: "array[int]"  # the greatest end among this record and all before it

    def first_alias(self, position: int) -> int:
        """Return the position of the first record that starts where the one at `position` does."""
        start = self.starts[position]
        if not position or self.starts[position - 1] != start:
            return position
        return bisect_left(self.starts, start, 0, position)


class SymbolTable:
    """The functions of a `.symtab` (or `.dynsym`) and its string table.

    `executable` holds the vaddr ranges of executable sections.  Sections, not segments: a segment would let
    a sizeless `_init` reach over the PLT behind it.  Without them labels are not used.
    """

    __slots__ = ("_edges", "_guessed", "_names", "_stated", "_unpack", "_view")

    def __init__(
        self,
        symtab: bytes | memoryview,
        strtab: bytes | memoryview,
        byteorder: ByteOrder,
        executable: Sequence[tuple[int, int]] = (),
    ) -> None:
        view = memoryview(symtab).cast("B")
        self._view = view[: len(view) - len(view) % _SYM_SIZE]
        self._names = memoryview(strtab).cast("B")
        self._unpack = _SYM[byteorder].unpack_from
        self._edges = _edges(executable)
        words = _native("Q", self._view, byteorder)
        values, sizes = words[1::3], words[2::3]
        functions, labels = self._defined(byteorder)
        stated = [row for row in functions if sizes[row]]
        sizeless = [row for row in functions if not sizes[row]] if len(stated) < len(functions) else []
        self._stated = _index(stated, values, sizes)
        self._guessed = _index(sizeless + self._real_labels(labels, values), values, sizes)

    def __len__(self) -> int:
        return len(self._stated.rows) + len(self._guessed.rows)

    def find(self, vaddr: int) -> Symbol | None:
        """Return the symbol that contains `vaddr`, or None."""
        if not 0 <= vaddr < _ADDRESS_END:
            return None
        return self._find_stated(vaddr) or self._find_guessed(vaddr)

    def _find_stated(self, vaddr: int) -> Symbol | None:
        index = self._stated
        position = bisect_right(index.starts, vaddr) - 1
        for _ in range(_MAX_OUTER):
            if position < 0 or index.reach[position] <= vaddr:
                return None
            first = index.first_alias(position)
            best = self._best(index.rows[first : position + 1], vaddr)
            if best:
                return best
            position = first - 1
        return None

    def _find_guessed(self, vaddr: int) -> Symbol | None:
        index = self._guessed
        position = bisect_right(index.starts, vaddr) - 1
        if position < 0 or not self._same_section(index.starts[position], vaddr):
            return None
        best = self._best(index.rows[index.first_alias(position) : position + 1], vaddr)
        return best if best and (best.size or not self._function_began(best.start, vaddr)) else None

    def _function_began(self, start: int, vaddr: int) -> bool:
        """Whether a function with a size starts after `start`, up to `vaddr`."""
        starts = self._stated.starts
        return bisect_right(starts, start) != bisect_right(starts, vaddr)

    def _best(self, rows: Sequence[int], vaddr: int) -> Symbol | None:
        """Return the best of the aliases that have a name and reach `vaddr`."""
        if len(rows) == 1:
            return self._symbol(rows[0], vaddr)
        named = [
            (self._rank(row, symbol), symbol)
            for row in rows[:_MAX_ALIASES]
            if (symbol := self._symbol(row, vaddr))
        ]
        return min(named)[1] if named else None

    def _symbol(self, row: int, vaddr: int) -> Symbol | None:
        offset, _, _, _, start, size = self._unpack(self._view, row * _SYM_SIZE)
        if size and not vaddr < start + size < _ADDRESS_END:
            return None
        name = self._name(offset)
        return Symbol(name, start, size) if name else None

    def _rank(self, row: int, symbol: Symbol) -> tuple[bool, bool, bool, int]:
        """Return the place of an alias among its like: the lowest is shown."""
        info = self._view[row * _SYM_SIZE + 4]
        name = symbol.name
        return info & 15 == _STT_NOTYPE, info >> 4 == _STB_LOCAL, name[0] == "_", len(name)

    def _name(self, offset: int) -> str:
        """Return the name at `offset`; empty when it is outside the table or does not end in it."""
        for length in _NAME_READS:
            name, end, _ = bytes(self._names[offset : offset + length]).partition(b"\0")
            if end:
                return name.decode("utf-8", "replace")
            if len(name) < length:
                break
        return ""

    def _defined(self, byteorder: ByteOrder) -> tuple[list[int], list[int]]:
        """Return the record numbers of the functions and labels that are defined in a section."""
        sections = _native("H", self._view, byteorder)[3::12]
        infos = bytes(self._view[4::_SYM_SIZE])

        def rows(mask: bytes) -> list[int]:
            """Rows whose type is in `mask`."""
            chosen = compress(range(len(infos)), infos.translate(mask))
            return [row for row in chosen if 0 < (n := sections[row]) < _SHN_LORESERVE or n == _SHN_XINDEX]

        return rows(_IS_FUNC), rows(_IS_LABEL) if self._edges else []

    def _real_labels(self, rows: Iterable[int], values: "array[int]") -> list[int]:
        """Return the labels that are code and have a name of their own."""
        executable = (row for row in rows if bisect_right(self._edges, values[row]) & 1)
        return [row for row in executable if self._is_real_label(row)]

    def _is_real_label(self, row: int) -> bool:
        offset: int = self._unpack(self._view, row * _SYM_SIZE)[0]
        prefix = bytes(self._names[offset : offset + 2])
        return prefix[:1] not in (b"", b"\0", b"$") and prefix != b".L"

    def _same_section(self, start: int, vaddr: int) -> bool:
        """Whether no executable section ends or begins between them."""
        return bisect_right(self._edges, start) == bisect_right(self._edges, vaddr)


def _native(code: str, view: memoryview, byteorder: ByteOrder) -> "array[int]":
    """Return the bytes as host integers."""
    numbers = array(code)
    numbers.frombytes(view)
    if byteorder != sys.byteorder:
        numbers.byteswap()
    return numbers


def _index(rows: list[int], values: "array[int]", sizes: "array[int]") -> _Index:
    """Sort the records by start; those of one start stay in table order."""
    rows.sort(key=values.__getitem__)
    starts = list(map(values.__getitem__, rows))
    ends = list(map(add, starts, map(sizes.__getitem__, rows)))
    if max(ends, default=0) >= _ADDRESS_END:  # a size that wraps around covers nothing
        ends = [end if end < _ADDRESS_END else 0 for end in ends]
    return _Index(array("Q", starts), array("I", rows), array("Q", list(accumulate(ends, max))))


def _edges(ranges: Sequence[tuple[int, int]]) -> list[int]:
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
