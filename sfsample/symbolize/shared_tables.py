"""Reads symbol tables; those of files with the same table are read once, and kept once.

Containers have copies of the same programs: 20 processes of node would take 20 times 60 ms and 10 MB for each
result.  The kernel says that copies are different files, and a build-id can be claimed by any file; so the
bytes decide, all of them.  A table that is shared is made of a copy of them, because the owner of a file can
change it later.

Invariant: no file gives names to another one, except by being equal to it
(tests/symbolize/test_shared_tables.py).
"""

from sfsample.formats.elf.image import ElfImage
from sfsample.symbolize.symbol_table import SymbolTable

_MAX_COPIES = 64  # of tables; further ones are not shared

_Kind = tuple[object, ...]


class SymbolTables:
    """The tables of one result.  The first one of a kind is not copied: mostly there is no other."""

    def __init__(self) -> None:
        self._seen: set[_Kind] = set()
        self._shared: list[tuple[_Kind, bytes, bytes, SymbolTable]] = []

    def table(self, image: ElfImage, symtab: memoryview, strtab: memoryview) -> SymbolTable:
        """Return the table with these contents, of an image."""
        sections = tuple(image.code_sections)
        kind = len(symtab), len(strtab), image.byteorder, sections
        if kind not in self._seen:
            self._seen.add(kind)
            return SymbolTable(symtab, strtab, image.byteorder, sections)
        records, names = bytes(symtab), bytes(strtab)
        image.release_pages()
        for shared in self._shared:
            if shared[:3] == (kind, records, names):
                return shared[3]
        table = SymbolTable(records, names, image.byteorder, sections)
        if len(self._shared) < _MAX_COPIES:
            self._shared.append((kind, records, names, table))
        return table
