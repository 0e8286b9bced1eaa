"""Names the global variable at a data address, by the symbol table of the mapped file.

Only objects whose stated size covers the address count; memory that is allocated at run time has no name.
Invariant: it never raises on damaged tables (tests/symbolize/test_variables.py).
"""

from collections.abc import Iterable

from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import clean_name
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS
from sfsample.symbolize.spelling import spell
from sfsample.symbolize.symbol_table import OBJECTS, SymbolTable


def variable_at(modules: Iterable[Module], address: int) -> str | None:
    """Return the name of the variable at a run-time address, "name+0x8" for a part of it; or None."""
    for module in modules:
        vaddr = module.vaddr(address)
        loaded = (s for s in module.image.segments if s.type == PT_LOAD)
        if any(s.vaddr <= vaddr < s.vaddr + s.memsz for s in loaded):
            return _variable(module.image, vaddr)
    return None


def _variable(image: ElfImage, vaddr: int) -> str | None:
    tables = image.symbols()
    symbol = SymbolTable(*tables, image.byteorder, types=OBJECTS).find_stated(vaddr) if tables else None
    if symbol is None:
        return None
    offset = f"+{vaddr - symbol.start:#x}" if vaddr > symbol.start else ""
    return f"{clean_name(spell(symbol.name, DEFAULT_SYMBOL_OPTIONS))}{offset}"
