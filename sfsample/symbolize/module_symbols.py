"""Searches the symbol tables of one module, in its file and in debug files.

The order of the search: `.symtab`; a separate debug file; `.gnu_debugdata`; `.dynsym` (without section
headers, the dynamic symbols); a debuginfod server.  A later table is opened only if the earlier tables lack
the symbol.

A function without a size is a guess; functions with a size, in any table, are preferred.  If no table has
local functions, a guess ends where the next function begins.  PLT stubs get names from relocations.

`.gnu_debugdata` (MiniDebugInfo) is an ELF file, compressed with xz, that has the function symbols that
`.dynsym` lacks.  Each run unpacks this file, in 0.1 s for 1 MB.  Source: gdb manual, "MiniDebugInfo".

Invariant: no method raises, and the unpacked size is limited (tests/symbolize/test_module_symbols.py).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property

from sfsample.errors import FormatError
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import SHT_SYMTAB, ElfImage
from sfsample.modules.debug_files import DebugFile, DebugFiles
from sfsample.modules.module import Module
from sfsample.symbolize.dwarf_lines import has_dwarf
from sfsample.symbolize.plt_names import PltStubs, is_stub, stub_sections
from sfsample.symbolize.symbol_table import Symbol, SymbolTable, SymbolTables

_DEBUGDATA = ".gnu_debugdata"
_MAX_UNPACKED_BYTES = 96 << 20
_MAX_DECODER_BYTES = 128 << 20  # bytes of memory; files of xz -9 need 65 MiB


class ModuleSymbols:
    """The symbols of a module."""

    def __init__(self, module: Module, debug_files: DebugFiles, tables: SymbolTables | None = None) -> None:
        """`tables` are shared with other modules."""
        self._shared = tables or SymbolTables()
        self._module, self._image = module, module.image
        self._debug_files = debug_files
        self._opened: list[SymbolTable] = []
        self._unopened = self._open_tables()
        self._stub_sections = stub_sections(module.image)
        self._debug: DebugFile | None = None
        self._damage = ""
        self._is_complete = False  # True: a table of all functions was read, not only of exported functions

    def find(self, vaddr: int) -> Symbol | None:
        """Return the function symbol that covers `vaddr`, or None."""
        if is_stub(self._stub_sections, vaddr):
            return self._plt_stubs.find(vaddr)
        return self._find_in_tables(SymbolTable.find_stated, vaddr) or self._guess(vaddr)

    def debug_file(self) -> DebugFile:
        """Return the separate debug file on this machine.  Only the first call searches for a file."""
        if self._debug is None:
            self._debug = self._debug_files.find(self._image, self._module.path)
        return self._debug

    def dwarf_image(self) -> ElfImage | None:
        """Return the image that contains DWARF: the module's image, or its debug file; or None."""
        if has_dwarf(self._image):
            return self._image
        debug = self.debug_file().image or self._fetch_debug_image()
        return debug if debug and has_dwarf(debug) else None

    @property
    def problems(self) -> list[str]:
        """Texts about damage of the file and reached limits; each text begins with the path."""
        return [f"{self._module.path}: {problem}" for problem in (*self._image.problems, *self._limits())]

    def _limits(self) -> list[str]:
        return [table.limit for table in self._opened if table.limit]

    def why_unnamed(self) -> str:
        """Return the reason why some addresses of this module have no name."""
        refused = (self._debug.refused if self._debug else "") or self._damage
        if self._image.section_damage:
            return "its section headers are damaged"
        if refused:
            return refused
        if self._module.is_closed:
            return "it was unmapped long before the recording ended, and its file closed"
        if not self._image.sections:
            return "it has no section headers: copies of the target's memory have none"
        if self._is_complete:
            return "; ".join(["its symbol table has no function there", *self._limits()])
        build_id = f" for build-id {self._image.build_id}" if self._image.build_id else ""
        return f"stripped, and no debug file{build_id} was found"

    def _guess(self, vaddr: int) -> Symbol | None:
        """Return the last function without a size before `vaddr`; None: a function begins in between."""
        guess = self._find_in_tables(SymbolTable.find_guessed, vaddr)
        if guess is None or guess.size or self._is_complete:
            return guess
        function_start = self._module.tables.function_start(vaddr)
        if function_start is not None:
            return guess if function_start <= guess.start else None
        starts = self._function_starts
        return guess if bisect_right(starts, guess.start) == bisect_right(starts, vaddr) else None

    @cached_property
    def _function_starts(self) -> list[int]:
        from sfsample.formats.machine_code.functions import find_function_starts  # seldom needed

        return find_function_starts(self._image)

    def _find_in_tables(self, find: Callable[[SymbolTable, int], Symbol | None], vaddr: int) -> Symbol | None:
        return next((symbol for table in self._tables() if (symbol := find(table, vaddr))), None)

    def _tables(self) -> Iterator[SymbolTable]:
        yield from self._opened
        for table in self._unopened:
            self._opened.append(table)
            yield table

    def _open_tables(self) -> Iterator[SymbolTable]:
        yield from self._symtab_of(self._image)
        yield from self._symtab_of(self.debug_file().image)
        yield from self._symtab_of(self._unpack_debugdata())
        image = self._image
        dynamic = Dynamic(image).symbols
        if dynamic is not None:
            yield self._shared.table(image, *dynamic)
        if not self._is_complete:
            yield from self._symtab_of(self._fetch_debug_image())

    def _symtab_of(self, image: ElfImage | None) -> Iterator[SymbolTable]:
        """Yield the `.symtab` of `image` if the image has one, and note that all functions have been read."""
        symtab = image.symbols(SHT_SYMTAB) if image else None
        if image is None or symtab is None:
            return
        self._is_complete = True
        yield self._shared.table(image, *symtab)

    def _fetch_debug_image(self) -> ElfImage | None:
        fetched = self._debug_files.fetch(self._image)
        if fetched.image or fetched.refused:
            self._debug = fetched
        return fetched.image

    def _unpack_debugdata(self) -> ElfImage | None:
        section = self._image.section(_DEBUGDATA)
        if section is None:
            return None
        try:
            return ElfImage(unpack(self._image.contents(section)), _DEBUGDATA)
        except FormatError as damage:
            self._damage = str(damage)
            return None

    @cached_property
    def _plt_stubs(self) -> PltStubs:
        return PltStubs(self._image, self._name_of_resolver)

    def _name_of_resolver(self, vaddr: int) -> str | None:
        """Return the name of the function whose resolver is at `vaddr`; names of stubs do not count."""
        symbol = self._find_in_tables(SymbolTable.find_stated, vaddr)
        return symbol.name if symbol and symbol.start == vaddr else None


def unpack(data: bytes | memoryview) -> bytes:
    """Return the unpacked ELF file.  Raises FormatError."""
    from lzma import FORMAT_XZ, LZMADecompressor, LZMAError

    decoder = LZMADecompressor(FORMAT_XZ, memlimit=_MAX_DECODER_BYTES)
    try:
        unpacked = decoder.decompress(data[:_MAX_UNPACKED_BYTES], _MAX_UNPACKED_BYTES)
    except (LZMAError, MemoryError) as damage:
        raise FormatError(_DEBUGDATA, 0, f"cannot be unpacked: {damage}") from None
    if not decoder.eof:
        too_large = f"unpacks to more than {_MAX_UNPACKED_BYTES >> 20} MiB"
        raise FormatError(_DEBUGDATA, 0, "is cut off" if decoder.needs_input else too_large)
    return unpacked
