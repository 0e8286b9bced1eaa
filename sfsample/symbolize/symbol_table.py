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

from bisect import bisect_right
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.symbolize.symbol_index import ADDRESS_END, SYM_SIZE, SymbolIndex, build_index, edges_of

_SYM = {"little": Struct("<IBBHQQ"), "big": Struct(">IBBHQQ")}  # name, info, other, shndx, value, size
_STT_NOTYPE = 0
_STB_LOCAL = 0

_MAX_OUTER = 256  # starts to walk back over in search of an enclosing symbol
_MAX_ALIASES = 256  # of one start; identical code folding makes dozens
_NAME_READS = (256, 4096, 1 << 16, 1 << 20)  # bytes tried in turn; a longer name is no name


# given the records, the edges and a function that builds the index, returns the index
Keeper = Callable[[memoryview, Sequence[int], Callable[[], SymbolIndex]], SymbolIndex]


class Symbol(NamedTuple):
    """A symbol as the table states it: raw name, vaddr, size (0: not stated)."""

    name: str
    start: int
    size: int


class SymbolTable:
    """The functions of a `.symtab` (or `.dynsym`) and its string table.

    `executable` holds the vaddr ranges of executable sections.  Sections, not segments: a segment would let
    a sizeless `_init` reach over the PLT behind it.  Without them labels are not used.  `kept` may know the
    index of the table already.
    """

    __slots__ = ("_edges", "_guessed", "_names", "_stated", "_unpack", "_view")

    def __init__(
        self,
        symtab: bytes | memoryview,
        strtab: bytes | memoryview,
        byteorder: ByteOrder,
        executable: Sequence[tuple[int, int]] = (),
        kept: Keeper | None = None,
    ) -> None:
        view = memoryview(symtab).cast("B")
        self._view = view[: len(view) - len(view) % SYM_SIZE]
        self._names = memoryview(strtab).cast("B")
        self._unpack = _SYM[byteorder].unpack_from
        self._edges = edges_of(executable)

        def build() -> SymbolIndex:
            return build_index(self._view, self._names, byteorder, self._edges)

        self._stated, self._guessed = kept(self._view, self._edges, build) if kept else build()

    def __len__(self) -> int:
        return len(self._stated.rows) + len(self._guessed.rows)

    def find(self, vaddr: int) -> Symbol | None:
        """Return the symbol that contains `vaddr`, or None."""
        if not 0 <= vaddr < ADDRESS_END:
            return None
        return self.find_stated(vaddr) or self.find_guessed(vaddr)

    def find_stated(self, vaddr: int) -> Symbol | None:
        """Return the function whose size covers `vaddr`."""
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

    def find_guessed(self, vaddr: int) -> Symbol | None:
        """Return the nearest function without a size, or label."""
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
        offset, _, _, _, start, size = self._unpack(self._view, row * SYM_SIZE)
        if size and not vaddr < start + size < ADDRESS_END:
            return None
        name = self._name(offset)
        return Symbol(name, start, size) if name else None

    def _rank(self, row: int, symbol: Symbol) -> tuple[bool, bool, bool, int]:
        """Return the place of an alias among its like: the lowest is shown."""
        info = self._view[row * SYM_SIZE + 4]
        name = symbol.name.partition("@")[0]  # a version is no part of it
        return info & 15 == _STT_NOTYPE, info >> 4 == _STB_LOCAL, name[:1] == "_", len(name)

    def _name(self, offset: int) -> str:
        """Return the name at `offset`; empty when it is outside the table or does not end in it."""
        for length in _NAME_READS:
            name, end, _ = bytes(self._names[offset : offset + length]).partition(b"\0")
            if end:
                return name.decode("utf-8", "replace")
            if len(name) < length:
                break
        return ""

    def _same_section(self, start: int, vaddr: int) -> bool:
        """Whether no executable section ends or begins between them."""
        return bisect_right(self._edges, start) == bisect_right(self._edges, vaddr)
