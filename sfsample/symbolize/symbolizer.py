"""From a place in a module to a name.

Law: runs after the sampling, once per distinct place; a symbol table is read when the first place in its
module is asked for, and only names that are asked for are demangled.
"""

from typing import Literal, NamedTuple

from sfsample.formats.elf import ElfImage
from sfsample.modules.module import Module
from sfsample.profile import Location
from sfsample.symbolize.demangle import demangle
from sfsample.symbolize.names import clean_name, frame_name
from sfsample.symbolize.symtab import Symbol, SymbolTable

Kind = Literal["", "k", "j"]  # of a frame: native code, the kernel, code that the target has generated


class NamedFrame(NamedTuple):
    """A place with its name.  All text but `raw` is fit for a line of a terminal.

    `text` is what the folded format shows; `function` the demangled name, without suffix, or None; `raw` the
    symbol as its table states it; `offset` from its start.
    """

    text: str
    function: str | None
    raw: str | None
    offset: int | None
    file: str | None = None
    line: int | None = None
    inlined: bool = False
    kind: Kind = ""


class Symbolizer:
    """Names places.  Keeps the tables of the modules it has met, so make one per result."""

    def __init__(self) -> None:
        self._tables: dict[ElfImage, SymbolTable | None] = {}
        self._frames: dict[Location, tuple[NamedFrame, ...]] = {}

    def symbol(self, module: Module, vaddr: int) -> Symbol | None:
        """Return the function symbol that covers `vaddr`."""
        if module.image not in self._tables:
            self._tables[module.image] = _read_table(module)
        table = self._tables[module.image]
        return None if table is None else table.find(vaddr)

    def frames(self, location: Location) -> tuple[NamedFrame, ...]:
        """Return the functions at a place, at least one; the most inlined comes first."""
        found = self._frames.get(location)
        if found is None:
            found = self._frames[location] = (self._frame(location),)
        return found

    def _frame(self, location: Location) -> NamedFrame:
        module, address = location.module, location.address
        symbol = self.symbol(module, location.lookup) if module else None
        if symbol is None:
            return NamedFrame(frame_name(None, module.path if module else None, address), None, None, None)
        function = clean_name(demangle(symbol.name))
        return NamedFrame(function, function, symbol.name, address - symbol.start)

    def name(self, module: Module | None, address: int, lookup: int) -> str:
        """Return the text of the innermost frame at `address`, whose function is found at `lookup`."""
        return self.frames(Location(module, address, lookup))[0].text


def _read_table(module: Module) -> SymbolTable | None:
    found = module.image.symbols()
    if found is None:
        return None
    return SymbolTable(*found, module.image.byteorder, executable=module.image.code_sections)
