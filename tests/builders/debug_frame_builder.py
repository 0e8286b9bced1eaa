"""Assembles a `.debug_frame` section of two functions."""

from struct import pack

from tests.builders.eh_frame_builder import AMD64_START, advance_loc, def_cfa_offset, sleb, uleb

START, SIZE = 0x1000, 0x40


def section(*, wide: bool = False, version: int = 3) -> bytes:
    """Return a CIE and two FDEs; `wide`: in the 64-bit DWARF format."""

    def entry(body: bytes) -> bytes:
        body += bytes(-len(body) % 8)
        return (b"\xff\xff\xff\xff" + pack("<Q", len(body)) if wide else pack("<I", len(body))) + body

    word = "<Q" if wide else "<I"
    sizes = b"\x08\x00" if version == 4 else b""
    column = b"\x10" if version == 1 else uleb(16)
    fields = bytes([version, 0]) + sizes + uleb(1) + sleb(-8) + column + AMD64_START
    made = entry(pack(word, (1 << (64 if wide else 32)) - 1) + fields)
    for start in (START, START + SIZE):
        made += entry(pack(word, 0) + pack("<QQ", start, SIZE) + advance_loc(4) + def_cfa_offset(32))
    return made
