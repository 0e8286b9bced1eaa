"""Names the global variable at a data address, by the symbol table of the mapped file.

Only objects whose stated size covers the address are used.  Memory that is allocated at run time has no name.
A dump names the variable of each lock, so the symbol table of an image is cached.

Invariant: damaged tables never raise (tests/symbolize/test_variables.py).
"""

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import clean_name
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS
from sfsample.symbolize.spelling import spell
from sfsample.symbolize.symbol_table import OBJECTS, SymbolTable

_TABLES: "WeakKeyDictionary[ElfImage, SymbolTable | None]" = WeakKeyDictionary()


def variable_at(modules: Iterable[Module], address: int) -> str | None:
    """Return the name of the variable at a run-time address, or None; "name+0x8" inside a variable."""
    module = module_of(modules, address)
    return None if module is None else _variable(module.image, module.vaddr(address))


def module_of(modules: Iterable[Module], address: int) -> Module | None:
    """Return the module that has loaded code or data at a run-time address."""
    for module in modules:
        vaddr = module.vaddr(address)
        loaded = (s for s in module.image.segments if s.type == PT_LOAD)
        if any(s.vaddr <= vaddr < s.vaddr + s.memsz for s in loaded):
            return module
    return None


def _variable(image: ElfImage, vaddr: int) -> str | None:
    if image not in _TABLES:
        symtab = image.symbols()
        _TABLES[image] = SymbolTable(*symtab, image.byteorder, types=OBJECTS) if symtab else None
    table = _TABLES[image]
    symbol = table.find_stated(vaddr) if table else None
    if symbol is None:
        return None
    offset = f"+{vaddr - symbol.start:#x}" if vaddr > symbol.start else ""
    return f"{clean_name(spell(symbol.name, DEFAULT_SYMBOL_OPTIONS))}{offset}"
