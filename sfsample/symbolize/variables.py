"""What is at an address that is no code: the variable that a symbol table has there.

Law: only what the table of the mapped file itself states (an object with a size that covers the place); a
variable that is made at run time has no name.  It never raises on foreign bytes.
"""

from collections.abc import Iterable
from struct import Struct

from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS
from sfsample.symbolize.spelling import spell

_STT_OBJECT = 1
_SIZE, _INFO = 24, 4  # of a record; and where st_info is in it
_RECORD = {"little": Struct("<I4xQQ"), "big": Struct(">I4xQQ")}  # name, value, size
_LONGEST = 4096


def variable_at(modules: Iterable[Module], address: int) -> str | None:
    """Return the name of the variable at an address, "name+0x8" for a part of a larger one."""
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
    read = _RECORD[image.byteorder].unpack_from
    kinds = bytes(records[_INFO::_SIZE][: len(records) // _SIZE])
    for row in (at for at, info in enumerate(kinds) if info & 15 == _STT_OBJECT):
        name, start, size = read(records, row * _SIZE)
        if start <= vaddr < start + size:
            text = bytes(names[name : name + _LONGEST]).partition(b"\0")[0].decode("utf-8", "replace")
            offset = f"+{vaddr - start:#x}" if vaddr > start else ""
            return f"{clean_name(spell(text, DEFAULT_SYMBOL_OPTIONS))}{offset}" if text else None
    return None
