"""A process with invented mappings, for tests of `ModuleMap`."""

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from tests.builders.elf_builder import Load, elf

A, B, C = 0x40_0000, 0x50_0000, 0x60_0000
TEXT, SIZE = 0x1000, 0x1000


def mapping(
    start: int, path: str = "/lib/a.so", *, offset: int = TEXT, inode: int = 1, executable: bool = True
):
    return Mapping(start, start + SIZE, True, executable, offset, "08:01", inode, path, False)


class FakeProcess:
    """A process whose `maps` a test can change; it counts the reads of the maps and lists what was opened."""

    def __init__(self, *maps: Mapping, unreadable: tuple[str, ...] = (), memory: bytes = b"") -> None:
        self.maps = maps
        self.unreadable = unreadable
        self.read_count = 0
        self.opened: list[Mapping] = []
        self.modules = ModuleMap(self.read_maps, self.open_image, lambda _, size: memory[:size] or None)

    def read_maps(self):
        self.read_count += 1
        return self.maps

    def open_image(self, mapping):
        self.opened.append(mapping)
        if mapping.path in self.unreadable:
            raise FormatError("ELF", 0, "damaged")
        return ElfImage(elf([Load(TEXT, bytes(0x3000), offset=TEXT)]), mapping.path)
