"""Assembles `.eh_frame` and `.eh_frame_hdr` field by field, so that a test can be compared with the standard.

section = EhFrameBuilder(vaddr=0x2000)
cie = section.cie(program=def_cfa(7, 8) + offset(16, 1))
section.fde(cie, start=0x1000, size=0x40, program=advance_loc(4) + def_cfa_offset(16))
eh_frame = EhFrame(section.terminated(), 0x2000, "little")
"""

ABSPTR, ULEB128, UDATA2, UDATA4, UDATA8 = 0x00, 0x01, 0x02, 0x03, 0x04
SIGNED, SLEB128, SDATA2, SDATA4, SDATA8 = 0x08, 0x09, 0x0A, 0x0B, 0x0C
PCREL, TEXTREL, DATAREL, FUNCREL, ALIGNED = 0x10, 0x20, 0x30, 0x40, 0x50
INDIRECT, OMIT = 0x80, 0xFF

FIXED = {UDATA2: 2, UDATA4: 4, UDATA8: 8, SDATA2: 2, SDATA4: 4, SDATA8: 8}


def uleb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sleb(value: int) -> bytes:
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value & 0x7F])


def block(data: bytes) -> bytes:
    return uleb(len(data)) + data


def encoded(value: int, encoding: int, at: int, byteorder="little", *, base: int = 0) -> bytes:
    """Encode a pointer that lies at vaddr `at`; `base` is that of DATAREL."""
    match encoding & 0x70:
        case 0x10:  # PCREL
            value -= at
        case 0x30:  # DATAREL
            value -= base
    form = encoding & 0x0F
    if form == ULEB128:
        return uleb(value)
    if form == SLEB128:
        return sleb(value)
    size = 8 if form in (ABSPTR, SIGNED) else FIXED.get(form, 4)  # 4 bytes for an unknown form
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, byteorder)


# Call frame instructions (DWARF 5 section 6.4.2); operands are divided by the alignment factors already.


def advance_loc(delta: int) -> bytes:
    return bytes([0x40 | delta])


def offset(register: int, factored: int) -> bytes:
    return bytes([0x80 | register]) + uleb(factored)


def restore(register: int) -> bytes:
    return bytes([0xC0 | register])


def def_cfa(register: int, offset: int) -> bytes:
    return b"\x0c" + uleb(register) + uleb(offset)


def def_cfa_register(register: int) -> bytes:
    return b"\x0d" + uleb(register)


def def_cfa_offset(offset: int) -> bytes:
    return b"\x0e" + uleb(offset)


def def_cfa_expression(expression: bytes) -> bytes:
    return b"\x0f" + block(expression)


REMEMBER_STATE, RESTORE_STATE, NOP = b"\x0a", b"\x0b", b"\x00"
AMD64_START = def_cfa(7, 8) + offset(16, 1)  # of every AMD64 CIE: CFA is rsp+8, RA at CFA-8


class EhFrameBuilder:
    """Appends entries; `cie` and `fde` return the offset of what they appended."""

    def __init__(self, vaddr: int = 0x2000, byteorder="little") -> None:
        self.vaddr = vaddr
        self.byteorder = byteorder
        self.data = bytearray()
        self.fdes: list[tuple[int, int]] = []  # start, offset
        # by CIE offset: pointer encoding, whether FDEs have augmentation data
        self._encodings: dict[int, tuple[int, bool]] = {}

    def u(self, value: int, size: int) -> bytes:
        return value.to_bytes(size, self.byteorder)

    def _append(self, entry_id: int, body: bytes, extended: bool) -> int:
        start = len(self.data)
        body = self.u(entry_id, 4) + body
        body += bytes(-len(body) % 4)
        self.data += self.u(0xFFFFFFFF, 4) + self.u(len(body), 8) if extended else self.u(len(body), 4)
        self.data += body
        return start

    def cie(
        self,
        program: bytes = AMD64_START,
        *,
        augmentation: bytes = b"zR",
        augmentation_data: bytes | None = None,
        encoding: int = PCREL | SDATA4,
        version: int = 1,
        code_align: int = 1,
        data_align: int = -8,
        ra_register: int = 16,
        address_size: int = 8,
        segment_size: int = 0,
        extended: bool = False,
    ) -> int:
        body = bytes([version]) + augmentation + b"\0"
        if version >= 4:
            body += bytes([address_size, segment_size])
        body += uleb(code_align) + sleb(data_align)
        body += bytes([ra_register]) if version == 1 else uleb(ra_register)
        if augmentation.startswith(b"z"):
            body += block(bytes([encoding]) if augmentation_data is None else augmentation_data)
        at = self._append(0, body + program, extended)
        self._encodings[at] = encoding, augmentation.startswith(b"z")
        return at

    def fde(
        self,
        cie: int,
        start: int,
        size: int,
        program: bytes = b"",
        *,
        lsda: bytes = b"",
        extended: bool = False,
    ) -> int:
        encoding, sized = self._encodings[cie]
        id_at = len(self.data) + (12 if extended else 4)
        body = encoded(start, encoding, self.vaddr + id_at + 4, self.byteorder)
        body += encoded(size, encoding & 0x0F, 0, self.byteorder)
        body += block(lsda) if sized else b""
        at = self._append(id_at - cie, body + program, extended)
        self.fdes.append((start, at))
        return at

    def raw(self, data: bytes) -> int:
        at = len(self.data)
        self.data += data
        return at

    def terminated(self) -> bytes:
        return bytes(self.data) + bytes(4)

    def hdr(
        self,
        vaddr: int = 0x1F00,
        *,
        encoding: int = DATAREL | SDATA4,
        pointer_encoding: int = PCREL | SDATA4,
        count_encoding: int = UDATA4,
        version: int = 1,
        count: int | None = None,
    ) -> bytes:
        """Return the `.eh_frame_hdr` that a linker would write for the FDEs appended so far."""
        out = bytes([version, pointer_encoding, count_encoding, encoding])
        out += encoded(self.vaddr, pointer_encoding, vaddr + 4, self.byteorder, base=vaddr)
        if OMIT in (encoding, count_encoding):
            return out
        out += encoded(len(self.fdes) if count is None else count, count_encoding, 0, self.byteorder)
        for start, at in sorted(self.fdes):
            for value in (start, self.vaddr + at):
                out += encoded(value, encoding, vaddr + len(out), self.byteorder, base=vaddr)
        return out
