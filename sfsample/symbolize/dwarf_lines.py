"""Finds source lines and inlined functions in DWARF.  Only this file uses the library `symbolic`.

The library is an extra (`pip install 'sfsample[lines]'`) and imported when the first line is needed.  It
converts all DWARF of a file once (0.2 s for the debug file of glibc); the result is cached by a hash of the
file (4 ms), and later opened without being read.  Of split DWARF, the file has only skeleton units, and the
rest, in `.dwo` or `.dwp` files, is not read.

Invariant: whatever the library raises on damaged DWARF, the module only has no lines, and that is reported in
`problems` (tests/symbolize/test_dwarf_lines.py).

Source: DWARF 5 sections 3.1.2 and 7.3.2 (split DWARF).
"""

import re
from typing import Any, NamedTuple

from sfsample.errors import FormatError
from sfsample.formats.elf.compressed import section_bytes
from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.symbolize.disk_cache import DiskCache
from sfsample.symbolize.options import Progress

_SECTIONS = (".debug_info", ".zdebug_info")
_MAX_FILE_BYTES = 2 << 30  # of a file with DWARF: the library cannot be interrupted, and 100 MB take it 1 s


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
            from symbolic.symcache import SymCache

            return SymCache.from_bytes(_view(self._converted(image)))  # it keeps the view alive
        except Exception as damage:  # noqa: BLE001 - as above
            self._note_damage(image, damage)
            return None

    def _converted(self, image: ElfImage) -> bytes | memoryview:
        """Return the tables of lines in an image, from the cache or into it."""
        size = len(image.data)
        if size > _MAX_FILE_BYTES:
            raise FormatError(image.name, 0, f"{size} bytes are more than {_MAX_FILE_BYTES >> 30} GiB")
        data = self._cache.get(_name_of(image.data))
        if data is not None:
            return data
        self._progress(f"reading DWARF of {image.name} ({size / 1e6:.0f} MB)")
        copy = bytes(image.data)  # what is hashed is what is converted, whatever a program does to its file
        made = _convert(copy)
        self._cache.put(_name_of(copy), made)
        return made

    def _note_damage(self, image: ElfImage, damage: Exception) -> None:
        problem = f"{image.name}: no lines: {type(damage).__name__}: {damage}"
        if problem not in self.problems:
            self.problems.append(problem)


def _name_of(data: bytes | memoryview) -> str:
    """Return the name in the cache of what is made from a file."""
    from hashlib import sha256  # it takes 3 MB of memory

    from symbolic.symcache import SYMCACHE_LATEST_VERSION

    return f"{sha256(data).hexdigest()}.symcache{SYMCACHE_LATEST_VERSION}"


def _convert(data: bytes) -> bytes:
    from symbolic.debuginfo import Archive

    table = next(Archive.from_bytes(_view(data)).iter_objects()).make_symcache()
    return bytes(table.open_stream().read())


def _view(data: bytes | memoryview) -> Any:  # noqa: ANN401 - the library has no types
    """Return bytes in the form that the library reads without a copy."""
    from symbolic._lowlevel import ffi

    return ffi.from_buffer("uint8_t[]", data)


def split_dwarf_problem(image: ElfImage) -> str:
    """Return a text that lines are in other files; empty if they are not.  Never raises.

    The units that split DWARF leaves behind need `.debug_addr`, and name their other file in `.debug_str`.
    """
    try:
        strings = section_bytes(image, "debug_str") if image.section(".debug_addr") else None
    except FormatError:
        return ""
    if strings is None or re.search(rb"\.dwo\0", strings[0]) is None:
        return ""
    return (
        f"{image.name}: lines and inlined functions of some of its units are in .dwo or .dwp files "
        "(split DWARF), which are not read; build it without -gsplit-dwarf to have them"
    )
