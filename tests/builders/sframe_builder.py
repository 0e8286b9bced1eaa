"""Assembles `.sframe` sections field by field, so that a test can be compared with the specification.

data = section(3, [Function(0x1000, 0x20, [Row(0, 8), Row(4, 16, -16, base="fp")])], address=0x2000)
table = SFrameTable(data, 0x2000)
"""

from struct import pack
from typing import NamedTuple

AARCH64_BE, AARCH64_LE, AMD64, S390X = 1, 2, 3, 4  # sfh_abi_arch
SORTED, FRAME_POINTER, PCREL = 1, 2, 4  # sfh_flags
FDE_SIZE = {1: 17, 2: 20, 3: 16}
HEADER_SIZE = 28
BYTE_ORDERS = {AARCH64_BE: "big", AARCH64_LE: "little", AMD64: "little", S390X: "big"}


class Row(NamedTuple):
    """An FRE: start offset, info byte, words."""

    start: int
    words: tuple[int, ...]
    base: str
    mangled: bool
    width: int
    count: int | None

    def encode(self, order: str, start_code: str) -> bytes:
        words = {1: "b", 2: "h", 4: "i"}[self.width]
        count = len(self.words) if self.count is None else self.count
        code = {1: 0, 2: 1, 4: 2}[self.width]
        info = (self.base == "sp") | count << 1 | code << 5 | self.mangled << 7
        return pack(f"{order}{start_code}B{len(self.words)}{words}", self.start, info, *self.words)


def row(
    start: int,
    *words: int,
    base: str = "sp",
    mangled: bool = False,
    width: int | None = None,
    count: int | None = None,
) -> Row:
    """Return a row.

    Words are signed.  `width` is their size in bytes, by default the smallest that fits, as in gas; `count`
    replaces the true number of words.
    """
    smallest = next(w for w in (1, 2, 4) if all(-(1 << 8 * w - 1) <= x < 1 << 8 * w - 1 for x in words))
    return Row(start, words, base, mangled, width or smallest, count)


def flex(start: int, *words: int, width: int | None = None, count: int | None = None) -> Row:
    """Return a row of a flexible function, where the base bit is unused and 0."""
    return row(start, *words, base="fp", width=width, count=count)


def control(register: int | None, *, deref: bool = False) -> int:
    """Return the control word of a register, or, with None, of the CFA."""
    return deref << 1 if register is None else register << 3 | deref << 1 | 1


class Function(NamedTuple):
    """An FDE with its rows.  `repeat` makes it PCMASK; the last four fields replace true values."""

    start: int
    size: int
    rows: list[Row]
    repeat: int = 0
    flexible: bool = False
    signal: bool = False
    pauth_b: bool = False
    num_fres: int | None = None
    fre_off: int | None = None
    info: int | None = None
    info2: int | None = None

    @property
    def fre_type(self) -> int:
        return 0 if self.size < 1 << 8 else 1 if self.size < 1 << 16 else 2

    def encoded_info(self) -> int:
        if self.info is not None:
            return self.info
        return self.fre_type | (self.repeat > 0) << 4 | self.pauth_b << 5 | self.signal << 7

    def encoded_info2(self) -> int:
        return self.flexible if self.info2 is None else self.info2

    def encoded_rows(self, order: str) -> bytes:
        width = self.encoded_info() & 15
        return b"".join(r.encode(order, "BHI"[width if width < 3 else 0]) for r in self.rows)

    @property
    def stated_rows(self) -> int:
        return len(self.rows) if self.num_fres is None else self.num_fres


def section(
    version: int,
    functions: list[Function],
    /,
    *,
    address: int = 0x2000,
    abi: int = AMD64,
    flags: int | None = None,
    field_relative: bool | None = None,
    aux: bytes = b"",
    **header: int,
) -> bytes:
    """Return the bytes of a section at vaddr `address`, with the functions in the given order.

    `header` replaces header fields: version, fixed_fp, fixed_ra, aux_len, num_fdes, num_fres, fre_len,
    fdeoff, freoff, abi.
    """
    order = "<" if BYTE_ORDERS.get(abi, "little") == "little" else ">"
    if flags is None:
        flags = SORTED | PCREL if version == 3 else SORTED
    if field_relative is None:
        field_relative = bool(flags & PCREL)
    area = b""
    table = b""
    base = HEADER_SIZE + len(aux)
    for index, function in enumerate(functions):
        offset = len(area) if function.fre_off is None else function.fre_off
        field = base + index * FDE_SIZE[version]
        start = function.start - address - (field if field_relative else 0)
        info, count = function.encoded_info(), function.stated_rows
        if version == 3:
            table += pack(order + "qII", start, function.size, offset)
            area += pack(order + "HBBB", count, info, function.encoded_info2(), function.repeat)
        elif version == 2:
            table += pack(order + "iIIIBBH", start, function.size, offset, count, info, function.repeat, 0)
        else:
            table += pack(order + "iIIIB", start, function.size, offset, count, info)
        area += function.encoded_rows(order)
    fields = {
        "version": version, "flags": flags, "abi": abi, "fixed_fp": 0, "fixed_ra": -8 if abi == AMD64 else 0,
        "aux_len": len(aux), "num_fdes": len(functions), "num_fres": sum(f.stated_rows for f in functions),
        "fre_len": len(area), "fdeoff": 0, "freoff": len(table),
    } | header  # fmt: skip
    return pack(order + "HBBBbbBIIIII", 0xDEE2, *fields.values()) + aux + table + area
