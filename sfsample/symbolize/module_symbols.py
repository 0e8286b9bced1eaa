"""Where the symbols of one module are.

Law: asked in this order, each opened only when those before have no answer: `.symtab`; a separate debug file;
`.gnu_debugdata`; `.dynsym` (where there are no sections, the dynamic symbols); a debuginfod server.  What a
table states (a function with a size) beats what any other leaves to be guessed.  Where the functions that
others cannot call are in no table, a symbol without a size reaches no farther than to where another function
is known to begin.  Stubs of the PLT are in no table and are named by their relocation.  Nothing here raises;
`why` tells why an address has no name.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from sfsample.errors import FormatError
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import SHT_DYNSYM, SHT_SYMTAB, ElfImage
from sfsample.modules.debug_files import DebugFile, DebugFiles
from sfsample.modules.module import Module
from sfsample.symbolize.disk_cache import DiskCache
from sfsample.symbolize.dwarf_lines import has_dwarf
from sfsample.symbolize.mini_debug_info import SECTION, packed, unpack
from sfsample.symbolize.plt_names import PltStubs, is_stub
from sfsample.symbolize.symbol_index import SymbolIndex, checksum, from_bytes
from sfsample.symbolize.symbol_table import Symbol, SymbolTable

_WORTH_KEEPING = 24 * 4000  # bytes of records; below that, building takes no longer than opening


class ModuleSymbols:
    """The symbols of a module, wherever they are."""

    def __init__(self, module: Module, debug_files: DebugFiles, cache: DiskCache) -> None:
        self._module, self._image = module, module.image
        self._debug_files, self._cache = debug_files, cache
        self._read: list[SymbolTable] = []
        self._unread = self._sources()
        self._plt: PltStubs | None = None
        self._debug: DebugFile | None = None
        self._damage = ""
        self.full = False  # it has a table of all functions, not only of those that others may call

    def find(self, vaddr: int) -> Symbol | None:
        """Return the function symbol that covers `vaddr`."""
        if is_stub(self._image, vaddr):
            return self._stubs().find(vaddr)
        return self._first(SymbolTable.find_stated, vaddr) or self._guessed(vaddr)

    def debug_file(self) -> DebugFile:
        """Return the separate debug file that is here."""
        if self._debug is None:
            self._debug = self._debug_files.find(self._image, self._module.path)
        return self._debug

    def dwarf(self) -> ElfImage | None:
        """Return the image that knows source lines: the module's own, or its debug file."""
        if has_dwarf(self._image):
            return self._image
        found = self.debug_file().image or self._fetched()
        return found if found and has_dwarf(found) else None

    def why(self) -> str:
        """Return why addresses here have no name."""
        found_wrong = (self._debug.refused if self._debug else "") or self._damage
        if self._image.section_damage:
            return "its section headers are damaged"
        if found_wrong:
            return found_wrong
        if self._module.is_closed:
            return "it was unmapped long before the end, and its file closed"
        if not self._image.sections:
            return "it has no section headers, as a copy of the target's memory has none"
        if self.full:
            return "its symbol table has no function there"
        build_id = f" for build-id {self._image.build_id}" if self._image.build_id else ""
        return f"stripped, and no debug file{build_id} was found"

    def _guessed(self, vaddr: int) -> Symbol | None:
        found = self._first(SymbolTable.find_guessed, vaddr)
        if found is None or found.size or self.full or not self._begins_between(found.start, vaddr):
            return found
        return None

    def _begins_between(self, start: int, vaddr: int) -> bool:
        """Whether a function is known to begin above `start`, up to `vaddr`."""
        begin = self._module.tables.function_start(vaddr)
        if begin is not None:
            return begin > start
        return bisect_right(self._beginnings, start) != bisect_right(self._beginnings, vaddr)

    @cached_property
    def _beginnings(self) -> list[int]:
        from sfsample.formats.machine_code.function_starts import find_function_starts  # seldom needed

        return find_function_starts(self._image)

    def _first(self, look: Callable[[SymbolTable, int], Symbol | None], vaddr: int) -> Symbol | None:
        return next((found for table in self._tables() if (found := look(table, vaddr))), None)

    def _tables(self) -> Iterator[SymbolTable]:
        yield from self._read
        for table in self._unread:
            self._read.append(table)
            yield table

    def _sources(self) -> Iterator[SymbolTable]:
        yield from self._table(self._image, "symtab")
        yield from self._table(self.debug_file().image, "debug")
        yield from self._table(self._unpacked(), "debugdata")
        yield from self._exported()
        if not self.full:
            yield from self._table(self._fetched(), "debug")

    def _table(self, image: ElfImage | None, kind: str) -> Iterator[SymbolTable]:
        """Yield the `.symtab` of an image: the module's own, or one that belongs to it."""
        found = image.symbols(SHT_SYMTAB) if image else None
        if image is None or found is None:
            return
        self.full = True
        yield SymbolTable(*found, image.byteorder, image.code_sections, self._kept(kind))

    def _exported(self) -> Iterator[SymbolTable]:
        image = self._image
        found = image.symbols(SHT_DYNSYM) or Dynamic(image).symbols()
        if found is not None:
            yield SymbolTable(*found, image.byteorder, image.code_sections, self._kept("dynsym"))

    def _fetched(self) -> ElfImage | None:
        """Return the debug file of a server."""
        found = self._debug_files.fetch(self._image)
        if found.image or found.refused:
            self._debug = found
        return found.image

    def _unpacked(self) -> ElfImage | None:
        """Return the image in `.gnu_debugdata`."""
        data = packed(self._image)
        name = f"{self._image.build_id}.debugdata"
        try:
            kept = self._cache.get(name) if data is not None and self._image.build_id else None
            if data is None or kept is not None:
                return ElfImage(kept, SECTION) if kept is not None else None
            found = unpack(data)
            image = ElfImage(found, SECTION)
        except FormatError as damage:
            self._damage = str(damage)
            return None
        if self._image.build_id:
            self._cache.put(name, found)
        return image

    def _stubs(self) -> PltStubs:
        if self._plt is None:
            self._plt = PltStubs(self._image, self._name)
        return self._plt

    def _name(self, vaddr: int) -> str | None:
        """Return the name of an indirect function; never that of a stub, which would ask for it again."""
        symbol = self._first(SymbolTable.find_stated, vaddr)
        return symbol.name if symbol and symbol.start == vaddr else None

    def _kept(self, kind: str) -> Callable[..., SymbolIndex]:
        """Return the Keeper of a table: an index that was built before is used again."""

        def keep(records: memoryview, edges: Sequence[int], build: Callable[[], SymbolIndex]) -> SymbolIndex:
            if not self._image.build_id or len(records) < _WORTH_KEEPING:
                return build()
            name = f"{self._image.build_id}.{kind}-{checksum(records, edges):08x}"
            data = self._cache.get(name)
            index = from_bytes(data) if data is not None else None
            if index is None:
                index = build()
                self._cache.put(name, index.to_bytes())
            return index

        return keep
