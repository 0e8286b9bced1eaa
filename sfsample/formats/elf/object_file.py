"""Lays out and relocates object files (ET_REL), so that their unwind tables can be read like a program's.

Code sections follow one another from vaddr 0, then the other allocated sections.  Only unwind tables are
relocated, by the types that assemblers use there.  A relocation that cannot be applied is counted.

Source: gABI chapter 4, "Relocation"; AMD64 psABI table 4.9; AAELF64 section 5.7; s390x ELF ABI, "Relocation".
"""

from collections.abc import Iterator
from struct import error as struct_error
from struct import pack_into, unpack_from
from typing import NamedTuple

from sfsample.core.arch import RELOCATIONS
from sfsample.errors import FormatError
from sfsample.formats.elf.image import SHF_EXECINSTR, SHT_RELA, SHT_SYMTAB, ElfImage, Section
from sfsample.formats.sframe.table import SECTION, Flag

_SHF_ALLOC = 2
_SHDR, _SYMBOL, _RELA = 64, 24, 24  # bytes of a record
_ALIGN = 64  # bytes; sections are laid out at multiples of it
_TABLES = (SECTION, ".eh_frame", ".debug_frame")


class LinkedObject(NamedTuple):
    """An object file, laid out like a linked file."""

    image: ElfImage
    layout: tuple[tuple[str, int], ...]  # (name, vaddr) of each code section
    left_out: int  # relocations that were not applied


def lay_out(image: ElfImage) -> LinkedObject:
    """Return `image` with a vaddr for each allocated section, and with relocated unwind tables.

    Raises FormatError if headers, symbols or relocations lie outside the file.
    """
    linker = _Linker(image)
    try:
        linker.place_sections()
        linker.move_symbols()
        linker.relocate()
    except (struct_error, IndexError, OverflowError) as damage:
        raise FormatError(image.name, 0, f"damaged object file: {damage}") from None
    linked = ElfImage(bytes(linker.data), image.name)
    code = [section for section in linked.sections if section.flags & SHF_EXECINSTR and section.size]
    return LinkedObject(linked, tuple((section.name, section.vaddr) for section in code), linker.left_out)


class _Linker:
    def __init__(self, image: ElfImage) -> None:
        self.data = bytearray(image.data)
        self.left_out = 0
        self._sections = image.sections
        self._relocation_kinds = RELOCATIONS.get(image.machine, {})
        self._order = "<" if image.byteorder == "little" else ">"
        self._addresses = [0] * len(image.sections)

    def place_sections(self) -> None:
        """Give every allocated section an address of its own."""
        (headers,), end = self._read("Q", 0x28), 0  # e_shoff
        for execinstr in (SHF_EXECINSTR, 0):
            for index, section in enumerate(self._sections):
                if section.flags & (_SHF_ALLOC | SHF_EXECINSTR) == _SHF_ALLOC | execinstr and section.size:
                    self._addresses[index] = end
                    self._write("Q", headers + index * _SHDR + 0x10, end)  # sh_addr
                    end += section.size + _ALIGN - 1 & -_ALIGN

    def move_symbols(self) -> None:
        """Change symbol values from offsets in a section to vaddrs; symbols without a section stay."""
        table = next((section for section in self._sections if section.type == SHT_SYMTAB), None)
        for at in _records(table, _SYMBOL) if table else ():
            index, value = self._read("HQ", at + 6)  # st_shndx, st_value
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
        place, info, addend = self._read("QQq", at)  # r_offset, r_info, r_addend
        symbol, number = info >> 32, info & 0xFFFF_FFFF
        size, pc_relative = self._relocation_kinds.get(number, (0, False))
        if not size or place + size > table.size:
            self.left_out += 1
            return
        (value,) = self._read("Q", self._sections[symbols].offset + symbol * _SYMBOL + 8)
        value += addend
        if pc_relative:
            # values of SFrame V1 and V2 count from the start of the table, unless a flag says otherwise
            version, flags = self._read("BB", table.offset + 2) if table.name == SECTION else (0, 0)
            from_table = 0 < version < 3 and not flags & Flag.FDE_FUNC_START_PCREL
            value -= address if from_table else address + place
        self._write("I" if size == 4 else "Q", table.offset + place, value % (1 << 8 * size))

    def _read(self, fields: str, at: int) -> tuple[int, ...]:
        return unpack_from(self._order + fields, self.data, at)

    def _write(self, fields: str, at: int, value: int) -> None:
        pack_into(self._order + fields, self.data, at, value)


def _records(section: Section, size: int) -> Iterator[int]:
    yield from range(section.offset, section.offset + section.size - size + 1, size)
