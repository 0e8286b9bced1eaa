"""Detects split DWARF: the file has only skeleton units, and the rest is in `.dwo` or `.dwp` files.

Sources: DWARF 5, sections 7.5.1 (unit headers) and 7.5.3 (abbreviations); for version 4 GCC's "DebugFission".
"""

from collections.abc import Iterator

from sfsample.errors import FormatError
from sfsample.formats.dwarf.reader import DwarfReader
from sfsample.formats.elf.compressed import section_bytes
from sfsample.formats.elf.image import ElfImage

_DW_UT_SKELETON = 4
_DW_AT_GNU_DWO_NAME = 0x2130
_DWARF64 = 0xFFFFFFFF
_MAX_UNITS = 1 << 20


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
    info, abbreviations = (_open(image, name) for name in ("debug_info", "debug_abbrev"))
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


def _open(image: ElfImage, name: str) -> DwarfReader:
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
