"""Fuzz targets for the readers that find names (see `fuzz_targets`)."""

import lzma
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from sfsample.core.filesystem import ProcessRoot
from sfsample.errors import FormatError
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import SHT_SYMTAB, ElfImage
from sfsample.modules.debug_files import DebugFiles, debug_link
from sfsample.modules.module import Module
from sfsample.symbolize.missing import module_without_name
from sfsample.symbolize.module_symbols import ModuleSymbols, unpack
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.perf_map import PerfMap
from sfsample.symbolize.plt_names import PltStubs
from sfsample.symbolize.spelling import demangle, simplify, spell
from tests.builders.symbol_tables import SymbolTable

MAX_ITEMS = 30  # of a kind that are read from one input
_ROOTS: dict[int, ProcessRoot] = {}


def module_names(data: bytes) -> None:
    """Name addresses of a whole file: symbol tables, stubs, dynamic section, mini debuginfo."""
    try:
        image = ElfImage(data, "fuzzed")
    except FormatError:
        return
    link = debug_link(image)
    assert link is None or (link[0] and "/" not in link[0])
    module = Module(image, 0, "fuzzed")
    symbols = ModuleSymbols(module, DebugFiles([]))
    stubs = PltStubs(image, lambda vaddr: f"f{vaddr:x}")
    dynamic = Dynamic(image)
    assert len(list(islice(dynamic.relocations(), MAX_ITEMS))) <= MAX_ITEMS
    places = [section.vaddr for section in image.sections[:MAX_ITEMS]] + [
        s.vaddr for s in image.segments[:MAX_ITEMS]
    ]
    for vaddr in (*places, *(at + 16 for at in places)):
        for found in (symbols.find(vaddr), stubs.find(vaddr)):
            assert found is None or (found.name and found.start <= vaddr)
    assert str(module_without_name(module, symbols.why_unnamed(), _ROOTS, 1))


def perf_map(data: bytes) -> None:
    """Look up the first addresses in the map."""
    table = PerfMap(data)
    for line in data.split(b"\n")[:MAX_ITEMS]:
        with suppress(ValueError):
            address = int(line.partition(b" ")[0], 16)
            for near in (address - 1, address, address + 1):
                found = table.find(near)
                assert found is None or found.start <= near < found.start + found.size


def debugdata(data: bytes) -> None:
    """Unpack mini debuginfo, and read its symbols."""
    with suppress(FormatError):
        ElfImage(unpack(data), "unpacked").symbols(SHT_SYMTAB)


def spelling(data: bytes) -> None:
    """Spell a name with each set of options."""
    name = data.decode("utf-8", "replace")
    for flags in range(8):
        naming = SymbolOptions(raw=bool(flags & 1), simplify=bool(flags & 2), merge_clones=bool(flags & 4))
        assert bool(spell(name, naming)) == bool(name)
    assert bool(simplify(name)) == bool(name)
    demangle(name)


NAMES = (module_names, perf_map, debugdata, spelling)


# -- seeds


def _programs(files: list[Path]) -> Iterator[bytes]:
    yield from (path.read_bytes() for path in files if path.stat().st_size < 1 << 16)


def _maps(_files: list[Path]) -> Iterator[bytes]:
    for count in range(1, 6):
        lines = (
            f"{0x7F0000000000 + 0x40 * n:x} {0x20 + n:x} JS:*f{n} a b.js:{n}\n" for n in range(3 * count)
        )
        yield "".join(lines).encode()


def _packed(files: list[Path]) -> Iterator[bytes]:
    yield from (lzma.compress(data[:6000], lzma.FORMAT_XZ, preset=0) for data in _programs(files))


def _names(files: list[Path]) -> Iterator[bytes]:
    yield from (b"_ZN1a1bIiLi3EEEvT_.cold", b"_ZNSt6vectorIiSaIiEEixEm", b"_RNvCs1234_7mycrate3foo",
                b"_ZN4core3ptr4drop17h0123456789abcdefE", b"void f<int>(a::b<c>) const")  # fmt: skip
    for path in files[:3]:
        image = ElfImage(path.read_bytes(), "x")
        table = SymbolTable(*(image.symbols() or (b"", b"")), image.byteorder, image.code_sections)
        found = (table.find(vaddr) for start, end in image.executable for vaddr in range(start, end, 97))
        yield from (symbol.name.encode() for symbol in islice(filter(None, found), 5))


SEEDS: dict[str, Callable[[list[Path]], Iterator[bytes]]] = {
    "module_names": _programs, "perf_map": _maps, "debugdata": _packed, "spelling": _names}  # fmt: skip
