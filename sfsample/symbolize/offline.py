"""Symbolizes a profile from another machine, of which only module paths, build-ids and offsets are known.

Invariant: a file is used only if it has the build-id (tests/symbolize/test_offline.py).  The search covers
the debug files of `--debug-dir`, of the system and of debuginfod servers, and the programs themselves: by
name in `--debug-dir`, or at their old path.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import SYSTEM_DEBUG_DIR
from sfsample.modules.location import Location
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.symbolizer import Symbolizer


class OfflineSymbolizer:
    """Symbolizes offsets in modules that are found by build-id."""

    def __init__(self, options: SymbolOptions) -> None:
        self._options = options
        self._symbolizer = Symbolizer(options)
        self._module = cache(self._find_module)
        self._here = Root()

    def frames(self, path: str, build_id: str, address: int, *, exact: bool) -> tuple[NamedFrame, ...]:
        """Return the functions at a vaddr, the most inlined first; none when the module is not found.

        `exact`: `address` is that of an instruction, not a return address.
        """
        module = self._module(path, build_id)
        if module is None:
            return ()
        return self._symbolizer.frames(Location(module, address, address if exact else address - 1))

    def _find_module(self, path: str, build_id: str) -> Module | None:
        images = self._images(path, build_id)
        return next((Module(image, 0, path) for image in images if image.build_id == build_id), None)

    def _images(self, path: str, build_id: str) -> Iterator[ElfImage]:
        for name in self._candidates(path, build_id):
            data = self._here.map(name)
            if data is not None:
                with suppress(FormatError):
                    yield ElfImage(data, name)
        data = self._options.fetch(build_id) if self._options.fetch else None
        if data is not None:
            yield ElfImage(data, path)

    def _candidates(self, path: str, build_id: str) -> Iterator[str]:
        directories = [os.path.abspath(directory) for directory in self._options.debug_dirs]
        for directory in (*directories, SYSTEM_DEBUG_DIR):
            yield f"{directory}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        for directory in directories:
            yield f"{directory}/{path}"
            yield f"{directory}/{os.path.basename(path)}"
            yield f"{directory}/{os.path.basename(path)}.debug"
        yield path
