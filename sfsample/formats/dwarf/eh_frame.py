"""Reads `.eh_frame` and `.debug_frame`: finds the FDE and the row for an address.

A look-up bisects the search table of `.eh_frame_hdr` in place, and then reads one FDE and its CIE.  All
linkers encode the search table in the same way; a table with another encoding is not used.  CIEs and FDEs end
at a zero terminator, or at the end of the section.  `.debug_frame` has other ids than `.eh_frame`.

Invariant: any bytes parse or raise `FormatError` (tests/properties/test_eh_frame_properties.py), and a
look-up reads a limited number of entries and bytes (tests/formats/dwarf/test_eh_frame.py).
Source: LSB 5.0 core, "Exception Frames" (which takes the CIE and FDE from DWARF 5 section 6.4.1); AMD64 psABI
section 4.2.4 (section) and 3.7 (unwinding, augmentations); DWARF 5 section 6.4.1 (`.debug_frame`); LSB 5.0
core, ".eh_frame_hdr section": version, three encodings, eh_frame_ptr, fde_count, then pairs (location, FDE).
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.core.checkpoint import checkpoint
from sfsample.errors import FormatError
from sfsample.formats.dwarf.cfi import CfiMachine, CfiRow, Cie
from sfsample.formats.dwarf.reader import OMIT, DwarfReader

_HDR = ".eh_frame_hdr"
_DATAREL_SDATA4 = 0x3B  # encoding: signed 4-byte distances from the start of `.eh_frame_hdr`
# The longest known CIE has 40 bytes.  Without a limit, a hostile file could have huge CIEs that overlap.
_MAX_CIE_SIZE = 0x1000  # bytes
_MAX_PROGRAM_SIZE = 1 << 16  # bytes of an FDE's instructions; librustc_driver has up to 11,579
_MAX_INDEXED = 1 << 19  # entries indexed without a search table; librustc_driver has 107,000
_MAX_CACHED_FUNCTIONS = 512  # functions whose rows are cached
_MAX_CACHED_CIES = 4096  # CIEs; a `.debug_frame` has one CIE for each source file
_MAX_CACHED_PROGRAM_SIZE = 512  # bytes of an FDE's instructions; rows of longer programs are not cached


class Fde(NamedTuple):
    """A frame description entry: one contiguous range of code."""

    start: int  # vaddr of the first instruction (initial_location)
    size: int  # bytes of code (address_range)
    cie: Cie
    offset: int  # section offset of the FDE
    program_begin: int  # section offset of the first call frame instruction
    program_end: int  # section offset of the end of the call frame instructions


class RowRange(NamedTuple):
    """A row, and the vaddrs [start, end) for which the row is valid."""

    start: int
    end: int
    row: CfiRow


Buffer = bytes | memoryview
Rows = tuple[tuple[int, CfiRow], ...]  # (vaddr of the first byte, row)


class _Entry(NamedTuple):
    """The fields that both a CIE and an FDE have.  All fields are section offsets."""

    offset: int
    cie: int | None  # offset of an FDE's CIE; None: the entry is a CIE
    fields_at: int  # offset of the first field after the id
    end: int


class _SearchTable:
    """The (location, FDE) pairs of `.eh_frame_hdr`.  Raises FormatError if pairs are missing."""

    def __init__(self, hdr: DwarfReader, begin: int, count: int) -> None:
        data = hdr.data[begin : begin + 8 * count]
        if len(data) < 8 * count:
            raise hdr.damaged(begin, f"{count} table entries do not fit")
        words: memoryview[int] | array[int] = memoryview(data).cast("i")
        if hdr.byteorder != sys.byteorder:
            words = array("i", bytes(data))
            words.byteswap()
        self._vaddr = hdr.vaddr
        self._starts, self._fdes = words[::2], words[1::2]

    def locate(self, vaddr: int) -> int | None:
        """Return the vaddr of the last FDE whose code starts at or below `vaddr`; None: there is none."""
        index = bisect_right(self._starts, vaddr - self._vaddr) - 1
        return None if index < 0 else self._vaddr + self._fdes[index]


class EhFrame:
    """The `.eh_frame` of one module; with `debug`, the `.debug_frame` of the module.

    `hdr` is `.eh_frame_hdr`, or None.  Without a usable search table, the first look-up indexes the section.
    """

    def __init__(
        self, eh_frame: Buffer, eh_frame_vaddr: int, byteorder: ByteOrder,
        hdr: Buffer | None = None, hdr_vaddr: int = 0, *, debug: bool = False,
    ) -> None:  # fmt: skip
        name, data = ".debug_frame" if debug else ".eh_frame", memoryview(eh_frame).cast("B")
        self._section = DwarfReader(name, data, eh_frame_vaddr, byteorder)
        self.size = len(data)  # bytes of the section
        self._debug = debug
        self._table = None if hdr is None else _search_table(hdr, hdr_vaddr, byteorder)
        self._index: list[Fde] | None = None
        self._rows: dict[int, Rows] = {}
        self._cies: dict[int, Cie | FormatError] = {}

    def find(self, vaddr: int) -> Fde | None:
        """Return the FDE that covers `vaddr`, or None.  Raises FormatError if the FDE is damaged."""
        fde = self._find_by_walk(vaddr) if self._table is None else self._find_by_table(vaddr, self._table)
        return fde if fde is not None and 0 <= vaddr - fde.start < fde.size else None

    def row_at(self, vaddr: int) -> CfiRow | None:
        """Return the row for `vaddr`; None: no FDE covers it.  Raises FormatError if the FDE is damaged."""
        current = self.row_range_at(vaddr)
        return current.row._replace(rules=dict(current.row.rules)) if current else None

    def row_range_at(self, vaddr: int) -> RowRange | None:
        """Return `row_at(vaddr)` and vaddrs for which it is valid; the caller must not change the row."""
        fde = self.find(vaddr)
        if fde is None:
            return None
        rows = self._cached_rows(fde)
        if not rows:  # program is executed up to `vaddr` only: damage after `vaddr` does not matter
            program, machine = self._program(fde), CfiMachine(fde.cie)
            for location in machine.run(program, fde.start):
                if location > vaddr:
                    break
            return RowRange(vaddr, vaddr + 1, machine.row(program))
        at = bisect_right(rows, vaddr, key=itemgetter(0))
        start, fde_end = rows[at - 1][0], fde.start + fde.size
        end = min(rows[at][0], fde_end) if at < len(rows) else fde_end
        # FDEs may overlap: the row is valid from `start` to `end` if both addresses have the same FDE
        locate = self._find_by_walk if self._table is None else self._table.locate
        if end - start > 1 and locate(start) != locate(end - 1):
            start, end = vaddr, vaddr + 1
        return RowRange(start, end, rows[at - 1][1])

    def _cached_rows(self, fde: Fde) -> Rows:
        """Return all rows of a function; none if a row is damaged, or the program is too long to cache."""
        rows = self._rows.get(fde.offset)
        if rows is None:
            is_short = fde.program_end - fde.program_begin <= _MAX_CACHED_PROGRAM_SIZE
            try:
                rows = tuple(self.rows(fde)) if is_short else ()
            except FormatError:
                rows = ()
            if len(self._rows) >= _MAX_CACHED_FUNCTIONS:
                self._rows.clear()
            self._rows[fde.offset] = rows
        return rows

    def rows(self, fde: Fde) -> Iterator[tuple[int, CfiRow]]:
        """Yield (first vaddr, row) of a function; a row may have 0 bytes.  Raises FormatError."""
        program, machine, location = self._program(fde), CfiMachine(fde.cie), fde.start
        for next_location in machine.run(program, fde.start):
            yield location, machine.row(program)
            location = next_location
        yield location, machine.row(program)

    def fdes(self, limit: int = sys.maxsize) -> Iterator[Fde]:
        """Yield the intact FDEs in section order.  Raises FormatError for more than `limit` entries."""
        offset = 0
        for _ in range(limit):
            if offset + 4 > len(self._section.data):
                return
            checkpoint()
            try:
                entry = self._entry(offset)
            except FormatError:
                return
            if entry is None:
                return
            offset = entry.end
            if entry.cie is not None:
                with suppress(FormatError):
                    yield self._fde(entry, entry.cie)
        raise self._section.damaged(offset, f"only the first {limit} entries were read")

    def _find_by_table(self, vaddr: int, table: _SearchTable) -> Fde | None:
        located = table.locate(vaddr)
        if located is None:
            return None
        entry = self._entry(located - self._section.vaddr)
        if entry is None or entry.cie is None:
            raise FormatError(_HDR, 0, f"the entry for {vaddr:#x} does not lead to an FDE")
        return self._fde(entry, entry.cie)

    def _find_by_walk(self, vaddr: int) -> Fde | None:
        if self._index is None:
            self._index = []
            try:
                self._index.extend(fde for fde in self.fdes(_MAX_INDEXED) if fde.size)
            finally:  # if the section has too many entries, only the first look-up fails
                self._index.sort(key=itemgetter(0))
        position = bisect_right(self._index, vaddr, key=itemgetter(0)) - 1
        return None if position < 0 else self._index[position]

    def _entry(self, offset: int) -> _Entry | None:
        """Read the length and the id of an entry; None: the entries or the section have ended.

        After an extended length, the id has 4 bytes in `.eh_frame` (LSB) and 8 bytes in `.debug_frame`.
        """
        section = self._section
        length = section.integer(offset, 4) if 0 <= offset < len(section.data) else 0
        if length == 0:
            return None
        id_at = offset + 4
        extended = length == 0xFFFFFFFF
        if extended:
            length, id_at = section.integer(offset + 4, 8), offset + 12
        id_size = 8 if extended and self._debug else 4
        if not id_size <= length <= len(section.data) - id_at:
            raise section.damaged(offset, f"an entry of {length} bytes does not fit")
        entry_id = section.integer(id_at, id_size)
        if self._debug:  # the id of an FDE is the offset of its CIE
            cie = None if entry_id == (1 << 8 * id_size) - 1 else entry_id
        else:  # the id of an FDE is the distance back to its CIE
            cie = id_at - entry_id if entry_id else None
        return _Entry(offset, cie, id_at + id_size, id_at + length)

    def _fde(self, entry: _Entry, cie_offset: int) -> Fde:
        cie = self._cie(cie_offset)
        fields = self._section.span(entry.fields_at, entry.end)
        start, pos = fields.pointer(0, cie.encoding)
        size, pos = fields.plain(pos, cie.encoding & 0x0F)
        if size < 0:
            raise fields.damaged(pos, f"a range of {size} bytes")
        if cie.sized:  # augmentation data: the address of the LSDA, which unwinding does not need
            length, pos = fields.uleb128(pos)
            _, pos = fields.block(pos, length)
        return Fde(start, size, cie, entry.offset, entry.fields_at + pos, entry.end)

    def _program(self, fde: Fde) -> DwarfReader:
        size = fde.program_end - fde.program_begin
        if size > _MAX_PROGRAM_SIZE:
            raise self._section.damaged(fde.program_begin, f"{size} bytes of instructions are too many")
        return self._section.span(fde.program_begin, fde.program_end)

    def _cie(self, offset: int) -> Cie:
        cie = self._cies.get(offset)
        if cie is None:
            try:
                cie = self._read_cie(offset)
            except FormatError as error:
                cie = error
            if len(self._cies) >= _MAX_CACHED_CIES:
                self._cies.clear()
            self._cies[offset] = cie
        if isinstance(cie, FormatError):
            raise FormatError(cie.section, cie.offset, cie.what)
        return cie

    def _read_cie(self, offset: int) -> Cie:
        entry = self._entry(offset)
        if entry is None or entry.cie is not None or entry.end - offset > _MAX_CIE_SIZE:
            raise self._section.damaged(max(offset, 0), "not a CIE")
        fields = self._section.span(entry.fields_at, entry.end)
        cie, pos = _cie_fields(fields, offset)
        program = fields.span(pos, len(fields.data))
        machine = CfiMachine(cie)
        for _ in machine.run(program, 0):  # initial instructions, which set rules
            pass
        return cie._replace(cfa=machine.cfa, rules=machine.rules, ra_signed=machine.ra_signed)


def _cie_fields(fields: DwarfReader, offset: int) -> tuple[Cie, int]:
    """Read the fields of a CIE after its id; return the CIE and the position of its initial instructions."""
    version = fields.u8(0)
    if version not in (1, 3, 4):
        raise fields.damaged(0, f"CIE version {version} is not known")
    augmentation, pos = fields.string(1)
    if version == 4:
        address_size, segment_size, pos = fields.u8(pos), fields.u8(pos + 1), pos + 2
        if address_size != 8 or segment_size != 0:
            raise fields.damaged(pos - 2, f"addresses of {address_size} bytes, segments of {segment_size}")
    code_align, pos = fields.uleb128(pos)
    data_align, pos = fields.sleb128(pos)
    ra_register, pos = (fields.u8(pos), pos + 1) if version == 1 else fields.uleb128(pos)
    encoding, signal, pos = _augmentation(fields, augmentation, pos)
    sized = augmentation.startswith(b"z")
    return Cie(offset, code_align, data_align, ra_register, encoding, sized, signal, cfa=None, rules={}), pos


def _augmentation(fields: DwarfReader, letters: bytes, pos: int) -> tuple[int, bool, int]:
    """Return the pointer encoding, True for a signal frame, and the position of the instructions.

    If the first letter is 'z', a length precedes the data, so data of unknown letters can be skipped.
    """
    encoding, signal = 0, False
    if not letters.startswith(b"z"):
        if letters:
            raise fields.damaged(1, f"augmentation {letters!r} is not known")
        return encoding, signal, pos
    length, pos = fields.uleb128(pos)
    _, end = fields.block(pos, length)
    data = fields.span(0, end)
    for letter in letters[1:].decode("latin-1"):
        match letter:
            case "R":
                encoding, pos = data.u8(pos), pos + 1
            case "P":  # personality routine, for exceptions; its address may have any encoding
                personality = data.u8(pos)
                _, pos = (0, pos + 1) if personality == OMIT else data.plain(pos + 1, personality)
            case "L":
                pos += 1
            case "S":
                signal = True
            case "B" | "G":  # AArch64: key B signs return addresses; tagged stack memory
                pass
            case _:
                break
    return encoding, signal, end


def _hdr_fields(data: Buffer, vaddr: int, byteorder: ByteOrder) -> tuple[DwarfReader, int, int]:
    """Return a reader of the header, eh_frame_ptr as a vaddr, and the position after eh_frame_ptr."""
    hdr = DwarfReader(_HDR, memoryview(data).cast("B"), vaddr, byteorder)
    if hdr.u8(0) != 1:
        raise hdr.damaged(0, f"version {hdr.u8(0)} is not known")
    eh_frame_vaddr, pos = hdr.pointer(4, hdr.u8(1), vaddr)  # eh_frame_ptr_enc, eh_frame_ptr
    return hdr, eh_frame_vaddr, pos


def eh_frame_address(hdr: Buffer, hdr_vaddr: int, byteorder: ByteOrder) -> int:
    """Return the vaddr that the header has for `.eh_frame`.  Raises FormatError if the header is damaged."""
    return _hdr_fields(hdr, hdr_vaddr, byteorder)[1]


def _search_table(data: Buffer, vaddr: int, byteorder: ByteOrder) -> _SearchTable | None:
    """Return the search table; None if it is absent, damaged, or in another encoding."""
    try:
        hdr, _, pos = _hdr_fields(data, vaddr, byteorder)
        if hdr.u8(3) != _DATAREL_SDATA4:  # table_enc
            return None
        count, pos = hdr.pointer(pos, hdr.u8(2), vaddr)  # fde_count_enc, fde_count
        return _SearchTable(hdr, pos, count)
    except FormatError:
        return None
