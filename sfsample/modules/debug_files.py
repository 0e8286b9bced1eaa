"""Separate debug files: by build-id, and by `.gnu_debuglink`.

Law: a file is believed only if it belongs to the image: its build-id is the same, or, where the image has
none or the file has none, its CRC is the one in the link.  A file that was there and was not believed is
told.

Sources: gdb, "Debugging Information in Separate Files"; .gnu_debuglink is a name, padding to 4, a CRC-32.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from mmap import mmap
from typing import NamedTuple
from zlib import crc32

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import ElfImage

SYSTEM = "/usr/lib/debug"
_MOST_LINK = 4096

Fetch = Callable[[str], mmap | None]  # a debug file by build-id, from afar
Find = Callable[[ElfImage, str], "DebugFile"]  # that of an image that was mapped from a path


class DebugFile(NamedTuple):
    """What was found.  `refused`: why there is none although something was there."""

    image: ElfImage | None
    refused: str = ""


class DebugFiles:
    """Searches `directories` here, then the system's directory in the target's root and here."""

    def __init__(
        self, roots: Sequence[Root], directories: Sequence[str] = (), fetch: Fetch | None = None
    ) -> None:
        here = Root()
        self._places = [(here, os.path.abspath(directory)) for directory in directories]
        self._places += [(root, SYSTEM) for root in (*roots, here)]
        self._roots = (*roots, here)
        self._fetch = fetch

    def find(self, image: ElfImage, path: str) -> DebugFile:
        """Return the debug file of an image that was mapped from `path`."""
        refused = ""
        link = debug_link(image)
        for name, data in self._candidates(image.build_id, link[0] if link else None, path):
            try:
                found = ElfImage(data, name)
            except FormatError as damage:
                refused = f"a debug file is damaged: {damage}"
                continue
            refused = _mismatch(image, found, link) or ""
            if not refused:
                return DebugFile(found)
        return DebugFile(None, refused)

    def fetch(self, image: ElfImage) -> DebugFile:
        """Return the debug file that a server has for an image."""
        try:
            data = self._fetch(image.build_id) if self._fetch and image.build_id else None
            if data is None:
                return DebugFile(None)
            found = ElfImage(data, "debuginfod")
        except SfsampleError as failure:  # a FormatError too
            return DebugFile(None, str(failure))
        refused = _mismatch(image, found, None)
        return DebugFile(None, refused) if refused else DebugFile(found)

    def _candidates(self, build_id: str | None, link: str | None, path: str) -> Iterator[tuple[str, mmap]]:
        for root, name in self._names(build_id, link, path):
            data = root.map(name)
            if data is not None:
                yield name, data

    def _names(self, build_id: str | None, link: str | None, path: str) -> Iterator[tuple[Root, str]]:
        if build_id:
            for root, directory in self._places:
                yield root, f"{directory}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        if not link or not path.startswith("/"):
            return
        where = os.path.dirname(path)
        for root in self._roots:
            yield root, f"{where}/{link}"
            yield root, f"{where}/.debug/{link}"
        for root, directory in self._places:
            yield root, f"{directory}{where}/{link}"
            yield root, f"{directory}/{link}"


def finder(root: Root | None, directories: Sequence[str]) -> Find:
    """Return what finds debug files for unwinding, rarely: it keeps nothing open but `root`, the target's."""

    def find(image: ElfImage, path: str) -> DebugFile:
        return DebugFiles([root] if root else [], directories).find(image, path)

    return find


def debug_link(image: ElfImage) -> tuple[str, int] | None:
    """Return the file name and the CRC in `.gnu_debuglink`; a name that is a path is no name."""
    section = image.section(".gnu_debuglink")
    data = bytes(image.contents(section)[:_MOST_LINK]) if section else b""
    name, end, _ = data.partition(b"\0")
    at = len(name) + 4 & -4
    if not end or not name or b"/" in name or len(data) < at + 4:
        return None
    return os.fsdecode(name), int.from_bytes(data[at : at + 4], image.byteorder)


def _mismatch(image: ElfImage, found: ElfImage, link: tuple[str, int] | None) -> str | None:
    """Return why the file is not the image's, or None when it is."""
    if image.build_id and found.build_id:
        if image.build_id == found.build_id:
            return None
        return f"a debug file is not the one of this module: {found.name}: has build-id {found.build_id}"
    if link and crc32(found.data) == link[1]:
        return None
    return f"a debug file is not the one of this module: {found.name}: its CRC is not that in .gnu_debuglink"
