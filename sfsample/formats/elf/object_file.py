"""Object files (ET_REL): laid out and relocated, so that their tables can be read like a program's.

Law: bytes in, bytes out.  Only unwind tables are relocated, and only by the types that assemblers use there;
a relocation that cannot be applied is left out and counted.  The layout is as good as any linker's: the code
sections one after another from 0, then the other allocated ones.

Source: gABI chapter 4, "Relocation"; AMD64 psABI table 4.9; AAELF64 section 5.7; s390x ELF ABI, "Relocation".
"""

from collections.abc import Iterator
from struct import error as struct_error
from struct import pack_into, unpack_from
from typing import NamedTuple

from sfsample.errors import FormatError
from sfsample.formats.elf.image import SHF_EXECINSTR, SHT_RELA, SHT_SYMTAB, ElfImage, Section
from sfsample.formats.sframe.table import SECTION, Flag

_SHF_ALLOC = 2
_SHDR, _SYMBOL, _RELA = 64, 24, 24  # bytes of a record
_ALIGN = 64
_TABLES = (SECTION, ".eh_frame", ".debug_frame")

_PC32, _PC64, _ABS32, _ABS64 = (4, True), (8, True), (4, False), (8, False)  # bytes; counted from the place?
_KINDS = {
    62: {1: _ABS64, 2: _PC32, 10: _ABS32, 24: _PC64},
    183: {257: _ABS64, 258: _ABS32, 260: _PC64, 261: _PC32},
    22: {4: _ABS32, 5: _PC32, 22: _ABS64, 23: _PC64},
}  # ELF machine -> relocation type -> how it is applied


class LinkedObject(NamedTuple):
    """An object file as if it were linked: `layout` tells where each code section was put."""

    image: ElfImage
    layout: tuple[tuple[str, int], ...]
    left_out: int  # relocations that were not applied


def lay_out(image: ElfImage) -> LinkedObject:
    """Return `image` with an address for each allocated section, and its unwind tables relocated.

    Raises FormatError when headers, symbols or relocations lie outside the file.
    """
    work = _Object(image)
    try:
        work.place_sections()
        work.move_symbols()
        work.relocate()
    except (struct_error, IndexError, OverflowError) as damage:
        raise FormatError(image.name, 0, f"damaged object file: {damage}") from None
    linked = ElfImage(bytes(work.data), image.name)
    code = [section for section in linked.sections if section.flags & SHF_EXECINSTR and section.size]
    return LinkedObject(linked, tuple((section.name, section.vaddr) for section in code), work.left_out)


class _Object:
    """The file's bytes, changed in place."""

    def __init__(self, image: ElfImage) -> None:
        self.data = bytearray(image.data)
        self.left_out = 0
        self._sections = image.sections
        self._kinds = _KINDS.get(image.machine, {})
        self._order = "<" if image.byteorder == "little" else ">"
        self._addresses = [0] * len(image.sections)

    def place_sections(self) -> None:
        """Give every allocated section an address of its own."""
        (headers,) = self._read("Q", 0x28)
        end = 0
        for wanted in (SHF_EXECINSTR, 0):
            for index, section in enumerate(self._sections):
                if section.flags & (_SHF_ALLOC | SHF_EXECINSTR) == _SHF_ALLOC | wanted and section.size:
                    self._addresses[index] = end
                    self._write("Q", headers + index * _SHDR + 0x10, end)
                    end += section.size + _ALIGN - 1 & -_ALIGN

    def move_symbols(self) -> None:
        """Make addresses of symbols, whose values are offsets in their sections (the others stay)."""
        table = next((section for section in self._sections if section.type == SHT_SYMTAB), None)
        for at in _records(table, _SYMBOL) if table else ():
            index, value = self._read("HQ", at + 6)
            if index < len(self._addresses):
                self._write("Q", at + 8, (value + self._addresses[index]) % 2**64)

    def relocate(self) -> None:
        """Apply the relocations of the unwind tables."""
        tables = {s.name: (s, address) for s, address in zip(self._sections, self._addresses, strict=True)}
        lists = {s.name: s for s in self._sections if s.type == SHT_RELA}
        for name in _TABLES:
            if name in tables and f".rela{name}" in lists:
                relocations = lists[f".rela{name}"]
                for at in _records(relocations, _RELA):
                    self._apply(*tables[name], relocations.link, at)

    def _apply(self, table: Section, address: int, symbols: int, at: int) -> None:
        place, info, addend = self._read("QQq", at)
        symbol, kind = info >> 32, info & 0xFFFF_FFFF
        size, from_place = self._kinds.get(kind, (0, False))
        if not size or place + size > table.size:
            self.left_out += 1
            return
        (value,) = self._read("Q", self._sections[symbols].offset + symbol * _SYMBOL + 8)
        value += addend
        if from_place:
            value -= address if self._counts_from_section(table) else address + place
        self._write("I" if size == 4 else "Q", table.offset + place, value % (1 << 8 * size))

    def _counts_from_section(self, table: Section) -> bool:
        """Tell whether the linker rewrites start addresses, as it does for V1 and V2 without the flag."""
        version, flags = self._read("BB", table.offset + 2) if table.name == SECTION else (0, 0)
        return 0 < version < 3 and not flags & Flag.FDE_FUNC_START_PCREL

    def _read(self, fields: str, at: int) -> tuple[int, ...]:
        return unpack_from(self._order + fields, self.data, at)

    def _write(self, fields: str, at: int, value: int) -> None:
        pack_into(self._order + fields, self.data, at, value)


def _records(section: Section, size: int) -> Iterator[int]:
    yield from range(section.offset, section.offset + section.size - size + 1, size)
