"""From a place in a module to a name.

Law: runs after the sampling, once per distinct place; a symbol table is read when the first place in its
module is asked for, and only names that are asked for are demangled.
"""

from sfsample.formats.elf import ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.names import frame_name
from sfsample.symbolize.symtab import Symbol, SymbolTable


class Symbolizer:
    """Names places.  Keeps the tables of the modules it has met, so make one per result."""

    def __init__(self) -> None:
        self._tables: dict[ElfImage, SymbolTable | None] = {}
        self._names: dict[tuple[Module, int, int], str] = {}

    def symbol(self, module: Module, vaddr: int) -> Symbol | None:
        """Return the function symbol that covers `vaddr`."""
        if module.image not in self._tables:
            self._tables[module.image] = _read_table(module)
        table = self._tables[module.image]
        return None if table is None else table.find(vaddr)

    def name(self, module: Module | None, address: int, lookup: int) -> str:
        """Return the text of a frame at `address` whose function is found at `lookup` (both vaddrs)."""
        if module is None:
            return frame_name(None, None, address)
        key = (module, address, lookup)
        name = self._names.get(key)
        if name is None:
            symbol = self.symbol(module, lookup)
            name = frame_name(symbol.name if symbol else None, module.path, address)
            self._names[key] = name
        return name


def _read_table(module: Module) -> SymbolTable | None:
    found = module.image.symbols()
    if found is None:
        return None
    return SymbolTable(*found, module.image.byteorder, executable=module.image.code_sections)
