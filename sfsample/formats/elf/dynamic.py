"""What the dynamic linker is told: symbols and PLT relocations, by PT_DYNAMIC alone.

Law: given an image, gives values; needs no section headers, so it serves files without them and copies of the
target's memory.  A table that is damaged or cut is as short as what can be read of it.

Source: System V gABI chapter 5 ("Dynamic Section", "Hash Table"); DT_GNU_HASH as binutils writes it.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.core.checkpoint import checkpoint
from sfsample.formats.elf.image import PT_DYNAMIC, SHT_DYNSYM, ElfImage

_DT_PLTRELSZ, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ = 2, 4, 5, 6, 7, 8
_DT_STRSZ, _DT_JMPREL, _DT_GNU_HASH = 10, 23, 0x6FFFFEF5
_POINTERS = (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL, _DT_GNU_HASH)
_SYM_SIZE, _RELA_SIZE = 24, 24
_STT_FUNC = 2
_MOST_TAGS = 1024
_LONGEST_NAME = 256
_COUNT = {22: "8xQ"}  # where a DT_HASH table has its second entry: those of s390x are 64-bit


def as_linked(section: bytes, bias: int, byteorder: ByteOrder) -> bytes:
    """Return a dynamic section out of memory as its file has it: glibc adds the load bias to its pointers."""
    pair = Struct("<qQ" if byteorder == "little" else ">qQ")
    entries = pair.iter_unpack(section[: len(section) & -16])
    return b"".join(pair.pack(tag, value - bias if tag in _POINTERS and value >= bias else value)
                    for tag, value in entries)  # fmt: skip


class Relocation(NamedTuple):
    """An Elf64_Rela: `slot` is filled with what `symbol` (a record number of the dynamic symbols) means."""

    slot: int
    type: int
    symbol: int
    addend: int


class Dynamic:
    """The dynamic section of an image; empty where there is none."""

    def __init__(self, image: ElfImage) -> None:
        self._image = image
        self._order = "<" if image.byteorder == "little" else ">"
        segment = image.segment(PT_DYNAMIC)
        data = image.loaded(segment.vaddr, segment.filesz) if segment else None
        self._tags = dict(self._pairs(data or memoryview(b"")))

    def _pairs(self, data: memoryview) -> Iterator[tuple[int, int]]:
        pair = Struct(self._order + "qQ")
        for tag, value in pair.iter_unpack(data[: min(len(data), _MOST_TAGS * 16) & -16]):
            if tag == 0:
                return
            yield tag, value

    def symbols(self) -> tuple[memoryview, memoryview] | None:
        """Return (symbol records, string table), or None."""
        records, strings = self._table(_DT_SYMTAB), self._table(_DT_STRTAB, self._tags.get(_DT_STRSZ))
        if records is None or strings is None:
            return None
        return records[: self._count() * _SYM_SIZE], strings

    def defines(self, vaddr: int) -> bool:
        """Whether a symbol that other modules can see is at `vaddr`."""
        whole = self._records()
        return any(
            value == vaddr and section for section, value in Struct(f"{self._order}6xHQ8x").iter_unpack(whole)
        )

    def functions(self) -> Iterator[int]:
        """Yield the vaddrs of functions that have a symbol."""
        for info, value in Struct(f"{self._order}4xB3xQ8x").iter_unpack(self._records()):
            if info & 0xF == _STT_FUNC and value:
                yield value

    def _records(self) -> memoryview:
        """Return the symbol records that are there whole."""
        records, _ = self.symbols() or (memoryview(b""), None)
        return records[: len(records) // _SYM_SIZE * _SYM_SIZE]

    def plt_relocations(self) -> list[Relocation]:
        """Return the relocations of PLT slots, in their order: a lazy stub pushes its number."""
        return list(self._relocations(_DT_JMPREL, self._tags.get(_DT_PLTRELSZ, 0)))

    def relocations(self) -> Iterator[Relocation]:
        """Yield the other relocations that have a symbol; those of `.plt.got` are among them."""
        return self._relocations(_DT_RELA, self._tags.get(_DT_RELASZ, 0), without_symbol=False)

    def imports(self) -> dict[int, str]:
        """Return the names of what is found elsewhere, by the slot in which its address is put."""
        found = self._image.symbols(SHT_DYNSYM) or self.symbols()
        if found is None:
            return {}
        names = {
            one.slot: _name(*found, one.symbol, self._order)
            for one in (*self.relocations(), *self.plt_relocations())
        }
        return {slot: name for slot, name in names.items() if name}

    def _relocations(self, tag: int, size: int, *, without_symbol: bool = True) -> Iterator[Relocation]:
        table = self._table(tag)
        if table is None:
            return
        record = Struct(self._order + "QQq")
        for slot, info, addend in record.iter_unpack(
            table[: min(size, len(table)) // _RELA_SIZE * _RELA_SIZE]
        ):
            checkpoint()  # there may be 100,000
            if without_symbol or info >> 32:
                yield Relocation(slot, info & 0xFFFFFFFF, info >> 32, addend)

    def _table(self, tag: int, size: int | None = None) -> memoryview | None:
        vaddr = self._tags.get(tag)
        return None if vaddr is None else self._image.loaded(vaddr, size)

    def _count(self) -> int:
        """Return how many symbols there are, which only the hash tables tell."""
        table = self._table(_DT_HASH)
        if table is not None and len(table) >= 16:
            return int(Struct(self._order + _COUNT.get(self._image.machine, "4xI")).unpack_from(table)[0])
        table = self._table(_DT_GNU_HASH)
        return _gnu_count(table, self._order) if table is not None else 0


def _name(records: memoryview, strings: memoryview, number: int, order: str) -> str:
    """Return the name of a symbol; "" where it cannot be read."""
    record = records[_SYM_SIZE * number :][:4]
    if len(record) < 4:
        return ""
    start = Struct(order + "I").unpack(record)[0]
    return bytes(strings[start : start + _LONGEST_NAME]).partition(b"\0")[0].decode("utf-8", "replace")


def _gnu_count(table: memoryview, order: str) -> int:
    """Return the number after that of the last symbol: the end of the chain that begins last."""
    if len(table) < 16:
        return 0
    buckets, first, blooms, _ = Struct(order + "IIII").unpack_from(table)
    word = Struct(order + "I")
    start = 16 + 8 * blooms
    area = table[start : start + 4 * buckets]
    last = max((number for (number,) in word.iter_unpack(area[: len(area) & -4])), default=0)
    if last < first:
        return int(first)
    for at in range(start + 4 * (buckets + last - first), len(table) - 3, 4):
        if word.unpack_from(table, at)[0] & 1:
            return int(last + 1)
        last += 1
    return int(last)
