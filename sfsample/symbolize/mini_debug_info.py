"""`.gnu_debugdata`, also called mini debuginfo: an ELF file of function symbols, compressed with xz.

Law: bytes in, an image out, or a word why not.  What it may unpack to is bounded.

Source: gdb, "MiniDebugInfo"; the functions that `.dynsym` has are left out of it.
"""

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage

SECTION = ".gnu_debugdata"
_MOST_UNPACKED = 96 << 20
_MOST_MEMORY = 128 << 20  # of the decoder; xz -9 needs 65 MiB


def unpack(data: bytes | memoryview) -> bytes:
    """Return what is packed.  Raises FormatError."""
    from lzma import FORMAT_XZ, LZMADecompressor, LZMAError

    decoder = LZMADecompressor(FORMAT_XZ, memlimit=_MOST_MEMORY)
    try:
        unpacked = decoder.decompress(data, _MOST_UNPACKED)
    except (LZMAError, MemoryError) as damage:
        raise FormatError(SECTION, 0, f"cannot be unpacked: {damage}") from None
    if not decoder.eof:
        what = "is cut off" if decoder.needs_input else f"unpacks to more than {_MOST_UNPACKED >> 20} MiB"
        raise FormatError(SECTION, 0, what)
    return unpacked


def packed(image: ElfImage) -> memoryview | None:
    """Return the section's bytes."""
    section = image.section(SECTION)
    return image.contents(section) if section else None
