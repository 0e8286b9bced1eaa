"""Source lines and inlined functions, from DWARF.  The one door to `symbolic`.

Law: an extra (`pip install 'sfsample[lines]'`), imported when the first line is asked for.  All DWARF of a
file is converted once and kept by build-id; afterwards it is opened and not read.  Whatever the library
raises on foreign bytes is a module without lines, with a word in `problems`.
"""

import os
from typing import Any, NamedTuple

from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.symbolize.disk_cache import DiskCache
from sfsample.symbolize.options import Progress
from sfsample.symbolize.split_dwarf import without_lines

_SECTIONS = (".debug_info", ".zdebug_info")


class SourcePlace(NamedTuple):
    """One function at an address: its symbol or DWARF name, file and line; empty where not known."""

    symbol: str
    file: str
    line: int
    is_cxx: bool = False


def available() -> bool:
    """Whether the extra is installed."""
    from importlib.util import find_spec

    return find_spec("symbolic") is not None


def has_dwarf(image: ElfImage) -> bool:
    """Whether an image says something about lines."""
    return any(image.section(name) for name in _SECTIONS)


class Lines:
    """Lines of all modules."""

    def __init__(self, cache: DiskCache, progress: Progress) -> None:
        self._cache, self._progress = cache, progress
        self._tables: dict[ElfImage, tuple[Any, int]] = {}
        self.problems: list[str] = []

    def at(self, image: ElfImage, vaddr: int) -> list[SourcePlace]:
        """Return the functions at a vaddr, the most inlined first; none where DWARF says nothing."""
        if image not in self._tables:
            self._tables[image] = self._open(image), _base(image)
        table, base = self._tables[image]
        if table is None or vaddr < base:
            return []
        try:
            found = table.lookup(vaddr - base)
        except Exception as damage:  # noqa: BLE001 - hostile names reach code that is not ours
            self._lose(image, damage)
            return []
        return [SourcePlace(one.symbol or "", one.full_path or "", one.line or 0, one.lang == "cpp")
                for one in found]  # fmt: skip

    def _open(self, image: ElfImage) -> Any:  # noqa: ANN401 - of a library without types
        missing = without_lines(image)
        if missing:
            self.problems.append(missing)
        try:
            return self._kept(image) or self._built(image)
        except Exception as damage:  # noqa: BLE001 - as above
            self._lose(image, damage)
            return None

    def _kept(self, image: ElfImage) -> Any:  # noqa: ANN401
        library = _Library()
        data = self._cache.get(_name(image, library)) if image.build_id else None
        return library.open(data) if data is not None else None

    def _built(self, image: ElfImage) -> Any:  # noqa: ANN401
        library = _Library()
        self._progress(f"reading DWARF of {image.name} ({len(image.data) / 1e6:.0f} MB)")
        table = library.build(image.data)
        if image.build_id:
            self._cache.put(_name(image, library), table.open_stream().read())
        return table

    def _lose(self, image: ElfImage, damage: Exception) -> None:
        text = f"{image.name}: no lines: {type(damage).__name__}: {damage}"
        if text not in self.problems:
            self.problems.append(text)


class _Library:
    """What we use of symbolic.  It sets a variable of the environment when it is imported: that is undone."""

    def __init__(self) -> None:
        before = os.environ.get("RUST_BACKTRACE")
        from symbolic._lowlevel import ffi
        from symbolic.debuginfo import Archive
        from symbolic.symcache import SYMCACHE_LATEST_VERSION, SymCache

        if before is None:
            os.environ.pop("RUST_BACKTRACE", None)
        self._ffi, self._archive, self._cache = ffi, Archive, SymCache
        self.version = int(SYMCACHE_LATEST_VERSION)

    def open(self, data: memoryview) -> Any:  # noqa: ANN401
        return self._cache.from_bytes(self._view(data))  # which keeps the view

    def build(self, data: memoryview) -> Any:  # noqa: ANN401
        return next(self._archive.from_bytes(self._view(data)).iter_objects()).make_symcache()

    def _view(self, data: memoryview) -> Any:  # noqa: ANN401
        return self._ffi.from_buffer("uint8_t[]", data)


def _name(image: ElfImage, library: _Library) -> str:
    return f"{image.build_id}.symcache{library.version}"


def _base(image: ElfImage) -> int:
    """Return the vaddr from which symbolic counts."""
    return min((s.vaddr for s in image.segments if s.type == PT_LOAD), default=0)
