"""Assembles an ELF64 symbol table and its string table."""

from struct import pack
from typing import NamedTuple

LOCAL, GLOBAL, WEAK = 0, 1, 2
NOTYPE, OBJECT, FUNC, SECTION, IFUNC = 0, 1, 2, 3, 10
UNDEF, TEXT, ABS, COMMON, XINDEX = 0, 1, 0xFFF1, 0xFFF2, 0xFFFF


class Sym(NamedTuple):
    """One record; the defaults make a plain global function."""

    name: str
    start: int
    size: int = 0
    kind: int = FUNC
    binding: int = GLOBAL
    section: int = TEXT
    name_offset: int | None = None  # replaces the offset of `name`


def build(*symbols: Sym, byteorder: str = "little") -> tuple[bytes, bytes]:
    """Return (symtab, strtab), with the null record and the null name that a linker puts first."""
    records, strings = [bytes(24)], bytearray(b"\0")
    order = "<" if byteorder == "little" else ">"
    for name, start, size, kind, binding, section, name_offset in symbols:
        offset = len(strings) if name_offset is None else name_offset
        strings += name.encode("utf-8", "surrogateescape") + b"\0"
        records.append(pack(order + "IBBHQQ", offset, binding << 4 | kind, 0, section, start, size))
    return b"".join(records), bytes(strings)
