"""Finds the function that contains a vaddr in an ELF64 symbol table.

Invariant: it never raises on damaged tables (tests/symbolize/test_symbol_table.py).  The table stays packed
(`symbol_index`); a `Symbol` object is made only for a result.

The order of preference is:

1. a function (STT_FUNC, STT_GNU_IFUNC) whose stated size covers the vaddr, the innermost first;
2. a guess: a function without a size, or a label (STT_NOTYPE: hand-written assembly) in an executable
   section; without a size it extends to the next symbol, never beyond its executable section.

Of aliases, global and weak come before local, then names without a leading underscore, then the shortest,
then the first in the alphabet.  Undefined, absolute and common symbols and ARM mapping symbols (`$x`) are not
code.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.symbolize.symbol_index import ADDRESS_END, SYM_SIZE, edges_of, sort_functions

_SYM = {"little": Struct("<IBBHQQ"), "big": Struct(">IBBHQQ")}  # name, info, other, shndx, value, size
_STT_NOTYPE = 0
_STB_LOCAL = 0

_MAX_OUTER = 256  # earlier starts that are tried in search of an enclosing symbol
_MAX_ALIASES = 256  # symbols with the same start; identical code folding makes dozens
_NAME_READ_BYTES = (256, 4096, 1 << 16, 1 << 20)  # tried in turn; a longer name counts as none


class Symbol(NamedTuple):
    """A symbol as the table has it: mangled name, vaddr, size in bytes (0: not stated)."""

    name: str
    start: int
    size: int


class SymbolTable:
    """The functions of a `.symtab` (or `.dynsym`) and its string table.

    `executable`: the vaddr ranges of executable sections.  Not of segments: in a segment, `_init`, which has
    no size, would extend over the PLT that follows it.  Without them labels are not used.
    """

    def __init__(
        self,
        symtab: bytes | memoryview,
        strtab: bytes | memoryview,
        byteorder: ByteOrder,
        executable: Sequence[tuple[int, int]] = (),
    ) -> None:
        view = memoryview(symtab).cast("B")
        self._view = view[: len(view) - len(view) % SYM_SIZE]
        self._names = memoryview(strtab).cast("B")
        self._unpack = _SYM[byteorder].unpack_from
        self._edges = edges_of(executable)
        self._stated, self._guessed = sort_functions(self._view, self._names, byteorder, self._edges)

    def __len__(self) -> int:
        return len(self._stated.rows) + len(self._guessed.rows)

    def find(self, vaddr: int) -> Symbol | None:
        """Return the symbol that contains `vaddr`, or None."""
        if not 0 <= vaddr < ADDRESS_END:
            return None
        return self.find_stated(vaddr) or self.find_guessed(vaddr)

    def find_stated(self, vaddr: int) -> Symbol | None:
        """Return the innermost function whose stated size covers `vaddr`, or None."""
        index = self._stated
        position = bisect_right(index.starts, vaddr) - 1
        for _ in range(_MAX_OUTER):
            if position < 0 or index.max_ends[position] <= vaddr:
                return None
            first = index.first_alias(position)
            best = self._best_alias(index.rows[first : position + 1], vaddr)
            if best:
                return best
            position = first - 1
        return None

    def find_guessed(self, vaddr: int) -> Symbol | None:
        """Return the nearest function without a size, or label, before `vaddr`; or None."""
        index, edges = self._guessed, self._edges
        position = bisect_right(index.starts, vaddr) - 1
        if position < 0 or bisect_right(edges, index.starts[position]) != bisect_right(edges, vaddr):
            return None  # none before it in its executable section
        best = self._best_alias(index.rows[index.first_alias(position) : position + 1], vaddr)
        return best if best and (best.size or not self._function_begins_between(best.start, vaddr)) else None

    def _function_begins_between(self, start: int, vaddr: int) -> bool:
        """Whether a function with a size starts after `start` and not after `vaddr`."""
        starts = self._stated.starts
        return bisect_right(starts, start) != bisect_right(starts, vaddr)

    def _best_alias(self, rows: Sequence[int], vaddr: int) -> Symbol | None:
        """Return the preferred alias of those that have a name and cover `vaddr`."""
        if len(rows) == 1:
            return self._symbol(rows[0], vaddr)
        named = [
            (self._rank(row, symbol), symbol)
            for row in rows[:_MAX_ALIASES]
            if (symbol := self._symbol(row, vaddr))
        ]
        return min(named)[1] if named else None

    def _symbol(self, row: int, vaddr: int) -> Symbol | None:
        offset, _, _, _, start, size = self._unpack(self._view, row * SYM_SIZE)
        if size and not vaddr < start + size < ADDRESS_END:
            return None
        name = self._name(offset)
        return Symbol(name, start, size) if name else None

    def _rank(self, row: int, symbol: Symbol) -> tuple[bool, bool, bool, int]:
        """Return the sort key of an alias: the lowest is shown."""
        info = self._view[row * SYM_SIZE + 4]
        name = symbol.name.partition("@")[0]  # without the symbol version
        return info & 15 == _STT_NOTYPE, info >> 4 == _STB_LOCAL, name[:1] == "_", len(name)

    def _name(self, offset: int) -> str:
        """Return the name at `offset`; empty when it does not begin or not end in the string table."""
        for length in _NAME_READ_BYTES:
            name, end, _ = bytes(self._names[offset : offset + length]).partition(b"\0")
            if end:
                return name.decode("utf-8", "replace")
            if len(name) < length:
                break
        return ""
