"""Finds source lines and inlined functions in DWARF.  Only this file uses the library `symbolic`.

The library is an extra (`pip install 'sfsample[lines]'`) and imported when the first line is needed.  It
converts all DWARF of a file once; the result is cached by build-id, and later opened without being read.  Of
split DWARF, the file has only skeleton units, and the rest, in `.dwo` or `.dwp` files, is not read.

Invariant: whatever the library raises on damaged DWARF, the module only has no lines, and that is reported in
`problems` (tests/symbolize/test_dwarf_lines.py).

Sources: DWARF 5, sections 7.5.1 (unit headers) and 7.5.3 (abbreviations); for version 4 GCC's "DebugFission".
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from sfsample.errors import FormatError
from sfsample.formats.dwarf.reader import DwarfReader
from sfsample.formats.elf.compressed import section_bytes
from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.symbolize.disk_cache import DiskCache
from sfsample.symbolize.options import Progress

_SECTIONS = (".debug_info", ".zdebug_info")
_DW_UT_SKELETON = 4
_DW_AT_GNU_DWO_NAME = 0x2130
_DWARF64 = 0xFFFFFFFF
_MAX_UNITS = 1 << 20


class SourcePlace(NamedTuple):
    """A function at an address: its symbol or DWARF name, file and line; empty or 0 where not known."""

    symbol: str
    file: str
    line: int
    is_cxx: bool = False


def available() -> bool:
    """Whether the extra is installed."""
    from importlib.util import find_spec

    return find_spec("symbolic") is not None


def has_dwarf(image: ElfImage) -> bool:
    """Whether an image contains DWARF."""
    return any(image.section(name) for name in _SECTIONS)


class DwarfLines:
    """Lines and inlined functions of all modules.  `progress` is called before slow work."""

    def __init__(self, cache: DiskCache, progress: Progress) -> None:
        self._cache, self._progress = cache, progress
        self._tables: dict[ElfImage, tuple[Any, int]] = {}
        self.problems: list[str] = []

    def at(self, image: ElfImage, vaddr: int) -> list[SourcePlace]:
        """Return the functions at a vaddr, the most inlined first; none where DWARF has none."""
        if image not in self._tables:
            lowest = min((s.vaddr for s in image.segments if s.type == PT_LOAD), default=0)
            self._tables[image] = self._open(image), lowest  # to which symbolic's addresses are relative
        table, base = self._tables[image]
        if table is None or vaddr < base:
            return []
        try:
            found = table.lookup(vaddr - base)
        except Exception as damage:  # noqa: BLE001 - damaged DWARF reaches code of a library
            self._note_damage(image, damage)
            return []
        return [SourcePlace(entry.symbol or "", entry.full_path or "", entry.line or 0, entry.lang == "cpp")
                for entry in found]  # fmt: skip

    def _open(self, image: ElfImage) -> Any:  # noqa: ANN401 - the library has no types
        problem = split_dwarf_problem(image)
        if problem:
            self.problems.append(problem)
        try:
            library = _Library()
            kind = f"symcache{library.version}"
            return library.open(
                self._cache.get_or_make(image.build_id, kind, lambda: self._convert(image, library))
            )
        except Exception as damage:  # noqa: BLE001 - as above
            self._note_damage(image, damage)
            return None

    def _convert(self, image: ElfImage, library: "_Library") -> bytes:
        self._progress(f"reading DWARF of {image.name} ({len(image.data) / 1e6:.0f} MB)")
        return library.convert(image.data)

    def _note_damage(self, image: ElfImage, damage: Exception) -> None:
        problem = f"{image.name}: no lines: {type(damage).__name__}: {damage}"
        if problem not in self.problems:
            self.problems.append(problem)


class _Library:
    """The used part of symbolic.  Its import sets a variable of the environment, which is undone here."""

    def __init__(self) -> None:
        before = os.environ.get("RUST_BACKTRACE")
        from symbolic._lowlevel import ffi
        from symbolic.debuginfo import Archive
        from symbolic.symcache import SYMCACHE_LATEST_VERSION, SymCache

        if before is None:
            os.environ.pop("RUST_BACKTRACE", None)
        self._ffi, self._archive, self._cache = ffi, Archive, SymCache
        self.version = int(SYMCACHE_LATEST_VERSION)

    def open(self, data: bytes | memoryview) -> Any:  # noqa: ANN401
        return self._cache.from_bytes(self._view(data))  # it keeps the view alive

    def convert(self, data: memoryview) -> bytes:
        table = next(self._archive.from_bytes(self._view(data)).iter_objects()).make_symcache()
        return bytes(table.open_stream().read())

    def _view(self, data: bytes | memoryview) -> Any:  # noqa: ANN401
        return self._ffi.from_buffer("uint8_t[]", data)


def split_dwarf_problem(image: ElfImage) -> str:
    """Return a text about units whose lines are in other files; empty if there are none.

    Never raises; damaged DWARF gives an empty text.
    """
    try:
        skeletons = list(_skeletons(image)) if image.section(".debug_addr") else []
    except FormatError:
        return ""
    if not any(skeletons):
        return ""
    return (
        f"{image.name}: lines and inlined functions of {sum(skeletons)} of its {len(skeletons)} units are in "
        ".dwo or .dwp files (split DWARF), which are not read; build it without -gsplit-dwarf to have them"
    )


def _skeletons(image: ElfImage) -> Iterator[bool]:
    """Yield for each unit whether it is a skeleton.  Raises FormatError."""
    info, abbreviations = (_section_reader(image, name) for name in ("debug_info", "debug_abbrev"))
    at = 0
    for _ in range(_MAX_UNITS):
        if at + 4 >= len(info.data):
            return
        size, width = info.integer(at, 4), 4
        at += 4
        if size == _DWARF64:
            size, width = info.integer(at, 8), 8
            at += 8
        version = info.integer(at, 2)
        if version >= 5:
            yield info.u8(at + 2) == _DW_UT_SKELETON
        else:
            yield _names_dwo(abbreviations, info.integer(at + 2, width))
        at += size


def _section_reader(image: ElfImage, name: str) -> DwarfReader:
    data, vaddr = section_bytes(image, name) or (b"", 0)
    return DwarfReader(name, data, vaddr, image.byteorder)


def _names_dwo(abbreviations: DwarfReader, at: int) -> bool:
    """Whether the first abbreviation at `at`, that of the unit itself, has the name of a `.dwo` file."""
    _, at = abbreviations.uleb128(at)
    _, at = abbreviations.uleb128(at)
    at += 1  # has children
    while True:
        attribute, at = abbreviations.uleb128(at)
        _, at = abbreviations.uleb128(at)
        if attribute in (0, _DW_AT_GNU_DWO_NAME):
            return attribute != 0
