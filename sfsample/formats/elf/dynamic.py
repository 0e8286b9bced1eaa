"""Reads the dynamic section: symbols and relocations, found by PT_DYNAMIC.

No section headers are needed, so stripped files and copies of the target's memory can be read too.  If a
table is damaged or truncated, the readable records are returned.  If a table is too long, only its first
records are returned, and the problems of the image say so.

Source: System V gABI chapter 5 ("Dynamic Section", "Hash Table"); DT_GNU_HASH as binutils writes it.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice, takewhile
from operator import itemgetter
from struct import Struct, unpack_from
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.core.checkpoint import with_checkpoints
from sfsample.formats.elf.image import PT_DYNAMIC, SHT_DYNSYM, ElfImage

_DT_PLTRELSZ, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ = 2, 4, 5, 6, 7, 8
_DT_STRSZ, _DT_JMPREL, _DT_GNU_HASH = 10, 23, 0x6FFFFEF5
_POINTERS = (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL, _DT_GNU_HASH)
_SYM_SIZE, _RELA_SIZE = 24, 24
_STT_FUNC = 2
_MAX_TAGS = 1024  # entries of one dynamic section
_MAX_NAME_SIZE = 1 << 12  # bytes
# Records that are read from one table.  libclang-cpp has 31,000 symbols.  A large program has a million
# relocations, nearly all without a symbol.
_MAX_SYMBOLS, _MAX_RELOCATIONS = 1 << 20, 1 << 22
_MAX_USED_RELOCATIONS = 1 << 20  # relocations that are returned from one table
_HASH_NCHAIN = {22: "8xQ"}  # e_machine -> format of nchain in DT_HASH; other machines: "4xI"


def as_linked(section: bytes, bias: int, byteorder: ByteOrder) -> bytes:
    """Return the dynamic section as in the file; `section` is from memory, where glibc has added `bias`."""
    pair = Struct("<qQ" if byteorder == "little" else ">qQ")
    entries = pair.iter_unpack(section[: len(section) & -16])
    return b"".join(pair.pack(tag, value - bias if tag in _POINTERS and value >= bias else value)
                    for tag, value in entries)  # fmt: skip


def find_symbol(records: memoryview, strings: memoryview, name: str, byteorder: ByteOrder) -> int | None:
    """Return the vaddr of the symbol with this name in a symbol table; None: no record defines the symbol."""
    wanted, text, at, numbers = name.encode() + b"\0", bytes(strings), -1, set()
    while (at := text.find(wanted, at + 1)) >= 0:  # offset of the name, or of the end of a longer name
        numbers.add(at)
    whole = records[: len(records) // _SYM_SIZE * _SYM_SIZE]
    fields = Struct(f"{'<' if byteorder == 'little' else '>'}I2xHQ8x").iter_unpack(whole if numbers else b"")
    return next((value for number, section, value in fields if section and number in numbers), None)


class Relocation(NamedTuple):
    """An Elf64_Rela: the dynamic linker stores the address of `symbol` in `slot`."""

    slot: int  # r_offset, a vaddr
    type: int
    symbol: int  # index of the record in the dynamic symbol table; 0: none
    addend: int


class Dynamic:
    """The dynamic section of an image; empty if the image has none."""

    def __init__(self, image: ElfImage) -> None:
        self._image = image
        self._order = "<" if image.byteorder == "little" else ">"
        segment = image.segment(PT_DYNAMIC)
        data = image.loaded(segment.vaddr, segment.filesz) if segment else None
        entries = (data or memoryview(b""))[: _MAX_TAGS * 16]
        pairs = Struct(self._order + "qQ").iter_unpack(entries[: len(entries) & -16])
        self._tags: dict[int, int] = dict(takewhile(itemgetter(0), pairs))  # DT_NULL (0) ends the entries

    @cached_property
    def symbols(self) -> tuple[memoryview, memoryview] | None:
        """The symbol records and the string table; None if either table is missing.

        Section headers are tried first: a hash table does not count the symbols that are only imported.
        """
        records, strings = self._image.symbols(SHT_DYNSYM) or (None, None)
        if records is None:
            records, strings = self._table(_DT_SYMTAB), self._table(_DT_STRTAB, self._tags.get(_DT_STRSZ))
            records = None if records is None else records[: self._symbol_count() * _SYM_SIZE]
        if records is None or strings is None:
            return None
        return self._first(records, _MAX_SYMBOLS, _SYM_SIZE), strings

    def _first(self, table: memoryview, count: int, size: int) -> memoryview:
        if len(table) > count * size:
            self._image.note_problem(f"of {len(table) // size} dynamic symbols or relocations "
                                     f"only {count} were read")  # fmt: skip
        return table[: count * size]

    def defines(self, vaddr: int) -> bool:
        """Return True if this file exports a symbol at `vaddr`."""
        fields = Struct(f"{self._order}6xHQ8x").iter_unpack(self._records())  # st_shndx, st_value
        return any(value == vaddr and section for section, value in fields)

    def find(self, name: str) -> int | None:
        """Return the vaddr of a symbol; None: this file does not define the symbol."""
        _, strings = self.symbols or (None, memoryview(b""))
        return find_symbol(self._records(), strings, name, self._image.byteorder)

    def functions(self) -> Iterator[int]:
        """Yield the vaddrs of functions that have a symbol."""
        for info, value in Struct(f"{self._order}4xB3xQ8x").iter_unpack(self._records()):
            if info & 0xF == _STT_FUNC and value:
                yield value

    def _records(self) -> memoryview:
        records, _ = self.symbols or (memoryview(b""), None)
        return records[: len(records) // _SYM_SIZE * _SYM_SIZE]

    def symbol_name(self, number: int) -> str:
        """Return the name of the symbol in record `number`; "" if the name cannot be read."""
        records, strings = self.symbols or (memoryview(b""), memoryview(b""))
        if _SYM_SIZE * (number + 1) > len(records):
            return ""
        at = unpack_from(self._order + "I", records, _SYM_SIZE * number)[0]
        name, end, _ = bytes(strings[at : at + _MAX_NAME_SIZE]).partition(b"\0")
        return name.decode("utf-8", "replace") if end else ""

    def plt_relocations(self) -> list[Relocation]:
        """Return the relocations of PLT slots, in file order."""
        return list(self._relocations(_DT_JMPREL, _DT_PLTRELSZ))

    def relocations(self) -> Iterator[Relocation]:
        """Yield the relocations of DT_RELA that have a symbol, including those of slots in `.plt.got`."""
        return self._relocations(_DT_RELA, _DT_RELASZ, without_symbol=False)

    def imports(self) -> dict[int, str]:
        """Return the names of imported symbols; key: vaddr of the slot that holds the symbol's address."""
        relocations = (*self.relocations(), *self.plt_relocations())
        names = {relocation.slot: self.symbol_name(relocation.symbol) for relocation in relocations}
        return {slot: name for slot, name in names.items() if name}

    def _relocations(self, tag: int, size_tag: int, *, without_symbol: bool = True) -> Iterator[Relocation]:
        table = self._table(tag) or memoryview(b"")
        stated = table[: min(self._tags.get(size_tag, 0), len(table)) // _RELA_SIZE * _RELA_SIZE]
        records = self._first(stated, _MAX_RELOCATIONS, _RELA_SIZE)
        fields = with_checkpoints(Struct(self._order + "QQq").iter_unpack(records))
        used = ((slot, info, addend) for slot, info, addend in fields if without_symbol or info >> 32)
        for slot, info, addend in islice(used, _MAX_USED_RELOCATIONS):
            yield Relocation(slot, info & 0xFFFFFFFF, info >> 32, addend)

    def _table(self, tag: int, size: int | None = None) -> memoryview | None:
        vaddr = self._tags.get(tag)
        return None if vaddr is None else self._image.loaded(vaddr, size)

    def _symbol_count(self) -> int:
        """Return the number of dynamic symbols according to a hash table; 0 if there is no hash table."""
        table = self._table(_DT_HASH)
        if table is not None and len(table) >= 16:
            return int(unpack_from(self._order + _HASH_NCHAIN.get(self._image.machine, "4xI"), table)[0])
        table = self._table(_DT_GNU_HASH)
        return _gnu_symbol_count(table, self._order) if table is not None else 0


def _gnu_symbol_count(table: memoryview, order: str) -> int:
    """Return the number of symbols of a DT_GNU_HASH table: the index at the end of the last chain, plus 1."""
    if len(table) < 16:
        return 0
    buckets, first, blooms, _ = unpack_from(order + "IIII", table)
    buckets, start, word = min(buckets, _MAX_SYMBOLS), 16 + 8 * blooms, Struct(order + "I")
    area = table[start : start + 4 * buckets]
    last = max((number for (number,) in word.iter_unpack(area[: len(area) & -4])), default=0)
    if last < first:
        return int(first)
    chain = range(start + 4 * (buckets + last - first), len(table) - 3, 4)
    for at in chain[: _MAX_SYMBOLS + 1]:
        if word.unpack_from(table, at)[0] & 1:
            return int(last + 1)
        last += 1
    return int(last)
