"""Finds the separate debug file of an ELF image, by build-id or by `.gnu_debuglink`.

Invariant: a debug file that does not belong to the image is not used, but reported
(tests/symbolize/test_module_symbols.py).  The build-ids of file and image must be equal, and their code
sections must have the same addresses.  Without build-ids, the CRC in `.gnu_debuglink` must be right.

Source: gdb manual, "Debugging Information in Separate Files".  `.gnu_debuglink` is a name, padding to a
multiple of 4 bytes, and a CRC-32.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from mmap import mmap
from typing import NamedTuple
from zlib import crc32

from sfsample.core.checkpoint import with_checkpoints
from sfsample.core.filesystem import Root
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import ElfImage

SYSTEM_DEBUG_DIR = "/usr/lib/debug"
_MAX_LINK_BYTES = 4096
_MAX_CRC_BYTES = 1 << 30  # bytes of a file whose CRC is computed; this takes 1 to 3 s
_CHUNK_BYTES = 1 << 20  # bytes read between two checkpoints

_here = cache(Root)  # function that returns the root directory of this machine
FetchDebugFile = Callable[[str], mmap | None]  # argument: build-id


class DebugFile(NamedTuple):
    """The result of a search for a debug file."""

    image: ElfImage | None
    refused: str = ""  # reason why no file was used; "": a file was used, or none was found


class DebugFiles:
    """Searches `directories` of this machine, then /usr/lib/debug of each target and of this machine.

    `roots`: root directories of the targets.  `fetch` asks a debuginfod server; None: no server is asked.
    """

    def __init__(
        self, roots: Sequence[Root], directories: Sequence[str] = (), fetch: FetchDebugFile | None = None
    ) -> None:
        here = _here()
        self._roots, self._fetch = (*roots, here), fetch
        self._debug_dirs = [(here, os.path.abspath(directory)) for directory in directories]
        self._debug_dirs += [(root, SYSTEM_DEBUG_DIR) for root in self._roots]

    def find(self, image: ElfImage, path: str) -> DebugFile:
        """Return the debug file of an image that was mapped from `path`."""
        refused = ""
        link = debug_link(image)
        for root, name in self._candidates(image.build_id, link[0] if link else None, path):
            data = root.map(name)
            if data is None:
                continue
            try:
                candidate = ElfImage(data, name)
            except FormatError as damage:
                refused = f"a debug file is damaged: {damage}"
                continue
            refused = _mismatch(image, candidate, link) or ""
            if not refused:
                return DebugFile(candidate)
        return DebugFile(None, refused)

    def fetch(self, image: ElfImage) -> DebugFile:
        """Return the debug file that a debuginfod server has for an image."""
        try:
            data = self._fetch(image.build_id) if self._fetch and image.build_id else None
            if data is None:
                return DebugFile(None)
            candidate = ElfImage(data, "debuginfod")
        except SfsampleError as failure:  # download failed, or FormatError
            return DebugFile(None, str(failure))
        refused = _mismatch(image, candidate, None)
        return DebugFile(None, refused) if refused else DebugFile(candidate)

    def _candidates(self, build_id: str | None, link: str | None, path: str) -> Iterator[tuple[Root, str]]:
        if build_id:
            for root, debug_dir in self._debug_dirs:
                yield root, f"{debug_dir}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        if not link or not path.startswith("/"):
            return
        directory = os.path.dirname(path)
        for root in self._roots:
            yield root, f"{directory}/{link}"
            yield root, f"{directory}/.debug/{link}"
        for root, debug_dir in self._debug_dirs:
            yield root, f"{debug_dir}{directory}/{link}"
            yield root, f"{debug_dir}/{link}"


def debug_link(image: ElfImage) -> tuple[str, int] | None:
    """Return file name and CRC of `.gnu_debuglink`; None: the section is missing or damaged."""
    section = image.section(".gnu_debuglink")
    data = bytes(image.contents(section)[:_MAX_LINK_BYTES]) if section else b""
    name, end, _ = data.partition(b"\0")
    crc_at = len(name) + 4 & -4
    if not end or not name or b"/" in name or len(data) < crc_at + 4:
        return None
    return os.fsdecode(name), int.from_bytes(data[crc_at : crc_at + 4], image.byteorder)


def _mismatch(image: ElfImage, candidate: ElfImage, link: tuple[str, int] | None) -> str | None:
    prefix = f"a debug file does not belong to this module: {candidate.name}: "
    if image.build_id and candidate.build_id:
        if image.build_id != candidate.build_id:
            return f"{prefix}has build-id {candidate.build_id}"
        places = [sections for sections in (image.code_sections, candidate.code_sections) if sections]
        return f"{prefix}its code lies elsewhere" if len({*places}) > 1 else None
    if len(candidate.data) > _MAX_CRC_BYTES:
        return f"{prefix}has no build-id, and more than {_MAX_CRC_BYTES >> 30} GiB, too much for a CRC"
    crc = 0
    for at in with_checkpoints(range(0, len(candidate.data) if link else 0, _CHUNK_BYTES)):
        crc = crc32(candidate.data[at : at + _CHUNK_BYTES], crc)
    return None if link and crc == link[1] else f"{prefix}its CRC differs from the CRC in .gnu_debuglink"
