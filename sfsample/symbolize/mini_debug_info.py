"""Unpacks `.gnu_debugdata` (MiniDebugInfo): an ELF file of function symbols, compressed with xz.

Invariant: the unpacked size is limited (tests/symbolize/test_module_symbols.py).  The section leaves out the
functions that `.dynsym` has.  Source: gdb manual, "MiniDebugInfo".
"""

from sfsample.errors import FormatError

SECTION = ".gnu_debugdata"
_MAX_UNPACKED_BYTES = 96 << 20
_MAX_DECODER_BYTES = 128 << 20  # xz -9 needs 65 MiB


def unpack(data: bytes | memoryview) -> bytes:
    """Return the unpacked ELF file.  Raises FormatError."""
    from lzma import FORMAT_XZ, LZMADecompressor, LZMAError

    decoder = LZMADecompressor(FORMAT_XZ, memlimit=_MAX_DECODER_BYTES)
    try:
        unpacked = decoder.decompress(data, _MAX_UNPACKED_BYTES)
    except (LZMAError, MemoryError) as damage:
        raise FormatError(SECTION, 0, f"cannot be unpacked: {damage}") from None
    if not decoder.eof:
        too_large = f"unpacks to more than {_MAX_UNPACKED_BYTES >> 20} MiB"
        raise FormatError(SECTION, 0, "is cut off" if decoder.needs_input else too_large)
    return unpacked
