"""Finds source lines and inlined functions in DWARF.  Only this file uses the library `symbolic`.

The library is an extra (`pip install 'sfsample[lines]'`), and converts all DWARF of a file at once (0.2 s for
the debug file of glibc).  A watch names places again and again, so the line tables are cached.  The `.dwo`
and `.dwp` files of split DWARF are not read.

Invariant: any exception of the library becomes a text in `problems` (tests/symbolize/test_dwarf_lines.py).
Source: DWARF 5 sections 3.1.2 and 7.3.2 (split DWARF).
"""

import re
from typing import Any, NamedTuple

from sfsample.errors import FormatError
from sfsample.formats.elf.image import PT_LOAD, SHF_COMPRESSED, ElfImage
from sfsample.symbolize.options import Progress

_SECTIONS = (".debug_info", ".zdebug_info")
_MAX_CACHED_BYTES = 256 << 20  # bytes of all cached tables
_CACHE: dict[bytes, bytes] = {}  # SHA-256 of a file (any file can claim a build-id) -> line tables
_MAX_FILE_BYTES = 2 << 30  # bytes of a file; 100 MB take 1 s, and the library cannot be interrupted


class SourcePlace(NamedTuple):
    """A function at an address.  Unknown fields are empty or 0."""

    symbol: str  # symbol or DWARF name
    file: str
    line: int
    is_cxx: bool = False


def available() -> bool:
    """Return True if the extra is installed."""
    from importlib.util import find_spec

    return find_spec("symbolic") is not None


def has_dwarf(image: ElfImage) -> bool:
    """Return True if an image contains DWARF."""
    return any(image.section(name) for name in _SECTIONS)


class DwarfLines:
    """Lines and inlined functions of all modules.  `progress` is called before slow work."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tables: dict[ElfImage, tuple[Any, int]] = {}
        self.problems: list[str] = []

    def at(self, image: ElfImage, vaddr: int) -> list[SourcePlace]:
        """Return the functions at a vaddr, innermost inlined function first; empty if DWARF has none."""
        if image not in self._tables:
            lowest = min((s.vaddr for s in image.segments if s.type == PT_LOAD), default=0)
            self._tables[image] = self._open(image), lowest  # table; vaddr of address 0 in the table
        table, base = self._tables[image]
        if table is None or vaddr < base:
            return []
        try:
            entries = table.lookup(vaddr - base)
        except Exception as damage:  # noqa: BLE001 - damaged DWARF reaches code of a library
            self._note_damage(image, damage)
            return []
        return [SourcePlace(entry.symbol or "", entry.full_path or "", entry.line or 0, entry.lang == "cpp")
                for entry in entries]  # fmt: skip

    def _open(self, image: ElfImage) -> Any:  # noqa: ANN401 - the library has no types
        problem = split_dwarf_problem(image)
        if problem:
            self.problems.append(problem)
        try:
            from symbolic.symcache import SymCache

            return SymCache.from_bytes(_view(self._converted(image)))  # this object keeps the view alive
        except ImportError:
            self.problems.append(f"{image.name}: no lines: they need pip install 'sfsample[lines]'")
            return None
        except Exception as damage:  # noqa: BLE001 - as above
            self._note_damage(image, damage)
            return None

    def _converted(self, image: ElfImage) -> bytes:
        from hashlib import sha256  # import of 3 MB

        size = len(image.data)
        if size > _MAX_FILE_BYTES:
            raise FormatError(image.name, 0, f"{size} bytes are more than {_MAX_FILE_BYTES >> 30} GiB")
        cached = _CACHE.get(sha256(image.data).digest())
        if cached is not None:
            return cached
        self._progress(f"reading DWARF of {image.name} ({size / 1e6:.0f} MB)")
        from symbolic.debuginfo import Archive

        copy = bytes(image.data)  # same bytes for hash and conversion, even if the file changes
        table = next(Archive.from_bytes(_view(copy)).iter_objects()).make_symcache()
        tables = bytes(table.open_stream().read())
        if sum(map(len, _CACHE.values())) + len(tables) > _MAX_CACHED_BYTES:
            _CACHE.clear()
        _CACHE[sha256(copy).digest()] = tables
        return tables

    def _note_damage(self, image: ElfImage, damage: Exception) -> None:
        problem = f"{image.name}: no lines: {type(damage).__name__}: {damage}"
        if problem not in self.problems:
            self.problems.append(problem)


def _view(data: bytes) -> Any:  # noqa: ANN401 - the library has no types
    """Return bytes in the form that the library reads without a copy."""
    from symbolic._lowlevel import ffi

    return ffi.from_buffer("uint8_t[]", data)


def split_dwarf_problem(image: ElfImage) -> str:
    """Return a text if uncompressed strings name `.dwo` files, which have some of the lines; else ""."""
    strings = image.section(".debug_str") if image.section(".debug_addr") else None
    if strings is None or strings.flags & SHF_COMPRESSED:
        return ""
    if not re.search(rb"\.dwo\0", image.contents(strings)):
        return ""
    return (
        f"{image.name}: some lines and inlined functions are in .dwo or .dwp files (split DWARF), "
        "which sfsample does not read; build without -gsplit-dwarf"
    )
