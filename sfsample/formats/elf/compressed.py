"""Decompresses sections: SHF_COMPRESSED (gABI, "Section Compression").

The decompressed size is bounded, whatever the section states.
"""

from struct import unpack_from
from zlib import decompressobj
from zlib import error as zlib_error

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage, Section

_SHF_COMPRESSED = 0x800
_ELFCOMPRESS_ZLIB = 1
_CHDR_SIZE = 24  # bytes of Elf64_Chdr: type, reserved, size, alignment
_MAX_SIZE = 256 << 20  # bytes, decompressed


def section_bytes(image: ElfImage, name: str) -> tuple[memoryview, int] | None:
    """Return the decompressed contents of a section, and its vaddr; None: no such section.

    Raises FormatError if the section cannot be decompressed.
    """
    section = image.section(name)
    if section is None:
        return None
    data = image.contents(section)
    if section.flags & _SHF_COMPRESSED:
        if len(data) < _CHDR_SIZE:
            raise FormatError(section.name, 0, "a compression header does not fit")
        kind, _, size, _ = unpack_from("<IIQQ" if image.byteorder == "little" else ">IIQQ", data)
        if kind != _ELFCOMPRESS_ZLIB:
            raise FormatError(section.name, 0, f"compressed with method {kind}; only zlib (1) can be read")
        data = _decompress(section, data[_CHDR_SIZE:], size)
    return data, section.vaddr


def _decompress(section: Section, data: memoryview, size: int) -> memoryview:
    if size > _MAX_SIZE:
        raise FormatError(section.name, 0, f"unpacks to {size} bytes, more than {_MAX_SIZE >> 20} MiB")
    try:
        # deflate makes no data longer by more than 5 bytes in 16 KB; a limit of 0 would mean no limit
        packed = data[: size + size // 1024 + 64]
        contents = decompressobj().decompress(packed, max(size, 1))
    except zlib_error as damage:
        raise FormatError(section.name, _CHDR_SIZE, f"cannot be unpacked: {damage}") from None
    if len(contents) != size:
        raise FormatError(section.name, _CHDR_SIZE, f"unpacks to {len(contents)} bytes instead of {size}")
    return memoryview(contents)
