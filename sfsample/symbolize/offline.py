"""Names for places of which only module path, build-id and offset are known: a profile from another machine.

Law: only files with the build-id are believed: debug files of `--debug-dir` and of the system, a debuginfod
server's, and the programs themselves, in `--debug-dir` by their name, or where they were.
"""

import os
from collections.abc import Iterator

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import SYSTEM_DEBUG_DIR
from sfsample.modules.location import Location
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.symbolizer import Symbolizer


class Offline:
    """Names places by build-id."""

    def __init__(self, naming: SymbolOptions) -> None:
        self._naming = naming
        self._symbolizer = Symbolizer(naming)
        self._modules: dict[tuple[str, str], Module | None] = {}
        self._here = Root()

    def frames(self, path: str, build_id: str, address: int, *, exact: bool) -> tuple[NamedFrame, ...]:
        """Return the functions at an address, the most inlined first; none when nothing knows the module.

        `exact`: it is an instruction's, not a return address.
        """
        key = (path, build_id)
        if key not in self._modules:
            self._modules[key] = self._module(path, build_id)
        module = self._modules[key]
        if module is None:
            return ()
        return self._symbolizer.frames(Location(module, address, address if exact else address - 1))

    def _module(self, path: str, build_id: str) -> Module | None:
        images = (image for name in self._candidates(path, build_id) if (image := self._open(name)))
        found = next((image for image in images if image.build_id == build_id), None)
        data = None if found or not self._naming.fetch else self._naming.fetch(build_id)
        if data is not None:
            found = ElfImage(data, path)
        return Module(found, 0, path) if found and found.build_id == build_id else None

    def _candidates(self, path: str, build_id: str) -> Iterator[str]:
        directories = [os.path.abspath(directory) for directory in self._naming.debug_dirs]
        for directory in (*directories, SYSTEM_DEBUG_DIR):
            yield f"{directory}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        for directory in directories:
            yield f"{directory}/{path}"
            yield f"{directory}/{os.path.basename(path)}"
            yield f"{directory}/{os.path.basename(path)}.debug"
        yield path

    def _open(self, name: str) -> ElfImage | None:
        data = self._here.map(name)
        try:
            return ElfImage(data, name) if data is not None else None
        except FormatError:
            return None
