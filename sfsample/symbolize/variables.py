"""Names the global variable at a data address, by the symbol table of the mapped file.

Only objects whose stated size covers the address count; memory that is allocated at run time has no name.
Invariant: it never raises on damaged tables (tests/symbolize/test_variables.py).
"""

from collections.abc import Iterable
from struct import Struct

from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS
from sfsample.symbolize.spelling import spell

_STT_OBJECT = 1
_RECORD_BYTES, _INFO_AT = 24, 4  # size of Elf64_Sym, offset of st_info in it
_STRUCT = {"little": Struct("<I4xQQ"), "big": Struct(">I4xQQ")}  # name, value, size
_MAX_NAME_BYTES = 4096


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
    if tables is None:
        return None
    records, names = tables
    read = _STRUCT[image.byteorder].unpack_from
    kinds = bytes(records[_INFO_AT::_RECORD_BYTES][: len(records) // _RECORD_BYTES])
    for row in (at for at, info in enumerate(kinds) if info & 15 == _STT_OBJECT):
        name, start, size = read(records, row * _RECORD_BYTES)
        if start <= vaddr < start + size:
            text = bytes(names[name : name + _MAX_NAME_BYTES]).partition(b"\0")[0].decode("utf-8", "replace")
            offset = f"+{vaddr - start:#x}" if vaddr > start else ""
            return f"{clean_name(spell(text, DEFAULT_SYMBOL_OPTIONS))}{offset}" if text else None
    return None
