"""Sections that are stored compressed: SHF_COMPRESSED (gABI, "Section Compression"), `.zdebug_*` before that.

Law: bytes in, bytes out.  What a section may unpack to is bounded, whatever it says of itself.
"""

from struct import unpack_from
from zlib import decompressobj
from zlib import error as zlib_error

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage, Section

_SHF_COMPRESSED = 0x800
_ELFCOMPRESS_ZLIB = 1
_CHDR = 24  # Elf64_Chdr: type, reserved, size, alignment
_OLD = 12  # "ZLIB" and the size, big endian
_MOST = 256 << 20


def section_bytes(image: ElfImage, name: str) -> tuple[memoryview, int] | None:
    """Return the contents of section `.NAME` (or `.zNAME`), unpacked, and its vaddr.  Raises FormatError."""
    section = image.section(f".{name}") or image.section(f".z{name}")
    if section is None:
        return None
    data = image.contents(section)
    if section.flags & _SHF_COMPRESSED:
        data = _unpack(section, data, _CHDR, _size_in_header(section, data, image.byteorder))
    elif bytes(data[:4]) == b"ZLIB" and section.name.startswith(".z"):
        data = _unpack(section, data, _OLD, int.from_bytes(data[4:_OLD], "big"))
    return data, section.vaddr


def _size_in_header(section: Section, data: memoryview, byteorder: str) -> int:
    if len(data) < _CHDR:
        raise FormatError(section.name, 0, "a compression header does not fit")
    kind, _, size, _ = unpack_from("<IIQQ" if byteorder == "little" else ">IIQQ", data)
    if kind != _ELFCOMPRESS_ZLIB:
        raise FormatError(section.name, 0, f"compressed with method {kind}; only zlib (1) can be read")
    return int(size)


def _unpack(section: Section, data: memoryview, start: int, size: int) -> memoryview:
    if size > _MOST:
        raise FormatError(section.name, 0, f"unpacks to {size} bytes, more than {_MOST >> 20} MiB")
    try:
        unpacked = decompressobj().decompress(data[start:], size)
    except zlib_error as damage:
        raise FormatError(section.name, start, f"cannot be unpacked: {damage}") from None
    if len(unpacked) != size:
        raise FormatError(section.name, start, f"unpacks to {len(unpacked)} bytes instead of {size}")
    return memoryview(unpacked)
