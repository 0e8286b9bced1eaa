"""`.eh_frame`, and `.debug_frame`: address -> FDE -> the one row that holds there.

Law: bytes in, values out; only `FormatError` escapes.  Nothing is parsed before it is asked for: a look-up
reads one header entry, one FDE and (once) one CIE.  The length of the section is not trusted, the entries
end at the zero terminator or with the bytes.  LSB 5.0 core, "Exception Frames" (which takes the CIE and FDE
from DWARF 5 section 6.4.1); AMD64 psABI section 4.2.4 (section) and 3.7 (unwinding, augmentations).

`.debug_frame` (DWARF 5 section 6.4.1) differs in how an entry tells a CIE from an FDE, and where its CIE is.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError
from sfsample.formats.dwarf.cfi import CfaRule, CfiMachine, CfiRow, CfiRule, Cie
from sfsample.formats.dwarf.eh_frame_hdr import eh_frame_address, search_table
from sfsample.formats.dwarf.reader import OMIT, DwarfReader

__all__ = ["CfaRule", "CfiRow", "CfiRule", "Cie", "EhFrame", "Fde", "RowRange", "eh_frame_address"]

# The longest seen is 40 bytes.  Without a limit, many FDEs could each name another part of one huge CIE.
_MAX_CIE = 0x1000
_MOST_DECODED = 512  # functions, and bytes of the instructions of one
_PCREL_SDATA4 = 0x1B
_ADDRESSES = (1 << 64) - 1


class Fde(NamedTuple):
    """A frame description entry: one contiguous range of code."""

    start: int  # vaddr of the first instruction (initial_location)
    size: int  # bytes of code (address_range)
    cie: Cie
    offset: int  # of the entry in the section
    program_begin: int  # the call frame instructions, as offsets in the section
    program_end: int


class RowRange(NamedTuple):
    """A row, and the vaddrs from `start` up to `end` at which it holds."""

    start: int
    end: int
    row: CfiRow


Rows = tuple[tuple[int, CfiRow], ...]  # with the vaddr that each starts at


class _Entry(NamedTuple):
    """What a CIE and an FDE have in common."""

    offset: int
    cie: int | None  # of an FDE: where its CIE is; None: this is one
    fields_at: int  # position of what follows the id
    end: int


class EhFrame:
    """One module's `.eh_frame`, or (`debug`) its `.debug_frame`.

    `damaged` keeps what the linear walk had to leave out, by offset.
    """

    def __init__(
        self,
        eh_frame: bytes | memoryview,
        eh_frame_vaddr: int,
        byteorder: ByteOrder,
        hdr: bytes | memoryview | None = None,
        hdr_vaddr: int = 0,
        *,
        address_size: int = 8,
        debug: bool = False,
    ) -> None:
        data = memoryview(eh_frame).cast("B")
        name = ".debug_frame" if debug else ".eh_frame"
        self._section = DwarfReader(name, data, eh_frame_vaddr, byteorder, address_size=address_size)
        self._debug = debug
        self._table = None if hdr is None else search_table(hdr, hdr_vaddr, byteorder, address_size)
        self._index: list[Fde] | None = None
        self._rows: dict[int, Rows] = {}
        self._cies: dict[int, Cie | FormatError] = {}
        self.damaged: dict[int, FormatError] = {}

    def find(self, vaddr: int) -> Fde | None:
        """Return the FDE that covers `vaddr`."""
        fde = self._find_by_walk(vaddr) if self._table is None else self._find_by_table(vaddr)
        return fde if fde is not None and 0 <= vaddr - fde.start < fde.size else None

    def row_at(self, vaddr: int) -> CfiRow | None:
        """Return the row that holds at `vaddr`, None where nothing covers it."""
        held = self.held_at(vaddr)
        return held.row._replace(rules=dict(held.row.rules)) if held else None

    def held_at(self, vaddr: int) -> RowRange | None:
        """Return the row that holds at `vaddr`, not to be changed, and where else it surely does."""
        fde = self.find(vaddr)
        if fde is None:
            return None
        rows = self._decoded(fde)
        if not rows:
            return self._executed(fde, vaddr)
        at = bisect_right(rows, vaddr, key=itemgetter(0))
        start, end = rows[at - 1][0], min(rows[at][0] if at < len(rows) else _ADDRESSES, fde.start + fde.size)
        if end - start > 1 and not self._is_one(start, end - 1):
            start, end = vaddr, vaddr + 1
        return RowRange(start, end, rows[at - 1][1])

    def _decoded(self, fde: Fde) -> Rows:
        """Return the rows of a function, kept; none where one is damaged, or too many."""
        rows = self._rows.get(fde.offset)
        if rows is None:
            try:
                rows = tuple(self.rows(fde)) if fde.program_end - fde.program_begin <= _MOST_DECODED else ()
            except FormatError:
                rows = ()
            if len(self._rows) >= _MOST_DECODED:
                self._rows.clear()
            self._rows[fde.offset] = rows
        return rows

    def _executed(self, fde: Fde, vaddr: int) -> RowRange:
        """Execute the program as far as it is needed."""
        program, machine = self._program(fde), CfiMachine(fde.cie)
        for location in machine.run(program, fde.start):
            if location > vaddr:
                break
        return RowRange(vaddr, vaddr + 1, machine.row(program))

    def _is_one(self, first: int, last: int) -> bool:
        """Whether one FDE describes all of this, and none lies in between."""
        if self._table is None:
            return self._find_by_walk(first) == self._find_by_walk(last)
        return self._table.locate(first) == self._table.locate(last)

    def rows(self, fde: Fde) -> Iterator[tuple[int, CfiRow]]:
        """Yield every row with the vaddr it starts at; an advance by nothing gives a row of no length."""
        program = self._program(fde)
        machine = CfiMachine(fde.cie)
        location = fde.start
        for next_location in machine.run(program, fde.start):
            yield location, machine.row(program)
            location = next_location
        yield location, machine.row(program)

    def fdes(self) -> Iterator[Fde]:
        """Walk the section.  A damaged FDE costs that FDE; a damaged length ends the walk."""
        offset = 0
        while (entry := self._next_entry(offset)) is not None:
            offset = entry.end
            fde = self._walked_fde(entry)
            if fde is not None:
                yield fde

    def extents(self) -> Iterator[tuple[int, int]]:
        """Yield [start, end) of every FDE that `fdes` yields, faster where the entries are usual ones."""
        if self._debug:
            yield from ((fde.start, fde.start + fde.size) for fde in self.fdes())
            return
        data, size, vaddr = self._section.data, len(self._section.data), self._section.vaddr
        head = Struct("<IIii" if self._section.byteorder == "little" else ">IIii")  # length, id, start, size
        usual: dict[int, bool] = {}
        offset = 0
        while True:
            if offset + head.size < size:
                length, back, start, extent = head.unpack_from(data, offset)
                cie, end = offset + 4 - back, offset + 4 + length
                if back and cie not in usual:
                    usual[cie] = self._is_usual(cie)
                # after the fields comes augmentation data, whose length is one byte
                fits = end <= size and offset + 17 + data[offset + 16] <= end and data[offset + 16] < 0x80
                if back and usual[cie] and extent >= 0 and fits:
                    start = start + vaddr + offset + 8 & _ADDRESSES
                    yield start, start + extent
                    offset = end
                    continue
            entry = self._next_entry(offset)
            if entry is None:
                return
            offset = entry.end
            fde = self._walked_fde(entry)
            if fde is not None:
                yield fde.start, fde.start + fde.size

    def _is_usual(self, offset: int) -> bool:
        """Whether the CIE is what compilers write: 4-byte addresses from where they stand, sized FDEs."""
        try:
            cie = self._cie(offset)
        except FormatError:
            return False
        return cie.encoding == _PCREL_SDATA4 and cie.sized and cie.address_size == 8

    def _next_entry(self, offset: int) -> _Entry | None:
        """Return the entry at `offset`, None at the terminator, the end, or damage."""
        if offset + 4 > len(self._section.data):
            return None
        try:
            return self._entry(offset)
        except FormatError as error:
            self.damaged[offset] = error
            return None

    def _walked_fde(self, entry: _Entry) -> Fde | None:
        """Return the FDE of `entry`, None for a CIE (read when an FDE needs it) or damage."""
        try:
            return None if entry.cie is None else self._fde(entry)
        except FormatError as error:
            self.damaged[entry.offset] = error
            return None

    def _find_by_table(self, vaddr: int) -> Fde | None:
        located = self._table.locate(vaddr) if self._table else None
        if located is None:
            return None
        offset = located - self._section.vaddr
        entry = self._entry(offset) if 0 <= offset < len(self._section.data) else None
        if entry is None or entry.cie is None:
            raise FormatError(".eh_frame_hdr", 0, f"the entry for {vaddr:#x} does not lead to an FDE")
        return self._fde(entry)

    def _find_by_walk(self, vaddr: int) -> Fde | None:
        if self._index is None:
            self._index = sorted((fde for fde in self.fdes() if fde.size), key=itemgetter(0))
        position = bisect_right(self._index, vaddr, key=itemgetter(0)) - 1
        return None if position < 0 else self._index[position]

    def _entry(self, offset: int) -> _Entry | None:
        """Read length and id; None at the zero terminator.

        The id is four bytes after an extended length too (LSB), in `.debug_frame` eight.
        """
        section = self._section
        length, id_at = section.integer(offset, 4), offset + 4
        if length == 0:
            return None
        extended = length == 0xFFFFFFFF
        if extended:
            length, id_at = section.integer(offset + 4, 8), offset + 12
        id_size = 8 if extended and self._debug else 4
        if not id_size <= length <= len(section.data) - id_at:
            raise section.damaged(offset, f"an entry of {length} bytes does not fit")
        cie = self._cie_of(id_at, section.integer(id_at, id_size), id_size)
        return _Entry(offset, cie, id_at + id_size, id_at + length)

    def _cie_of(self, id_at: int, entry_id: int, size: int) -> int | None:
        """Return what the id of an FDE says: in `.eh_frame` how far back, otherwise where."""
        if self._debug:
            return None if entry_id == (1 << 8 * size) - 1 else entry_id
        return id_at - entry_id if entry_id else None

    def _fde(self, entry: _Entry) -> Fde:
        assert entry.cie is not None  # noqa: S101 - our own invariant: an FDE's entry
        cie = self._cie(entry.cie)
        fields = self._section.span(entry.fields_at, entry.end, cie.address_size)
        start, pos = fields.pointer(0, cie.encoding)
        size, pos = fields.plain(pos, cie.encoding & 0x0F)
        if size < 0:
            raise fields.damaged(pos, f"a range of {size} bytes")
        if cie.sized:  # the LSDA's address and whatever else is of no use to an unwinder
            length, pos = fields.uleb128(pos)
            _, pos = fields.block(pos, length)
        return Fde(start, size, cie, entry.offset, entry.fields_at + pos, entry.end)

    def _program(self, fde: Fde) -> DwarfReader:
        return self._section.span(fde.program_begin, fde.program_end, fde.cie.address_size)

    def _cie(self, offset: int) -> Cie:
        """Return the CIE at `offset`; a damaged one stays damaged and is not read again."""
        known = self._cies.get(offset)
        if known is None:
            try:
                known = self._read_cie(offset)
            except FormatError as error:
                known = error
            self._cies[offset] = known
        if isinstance(known, FormatError):
            raise FormatError(known.section, known.offset, known.what)
        return known

    def _read_cie(self, offset: int) -> Cie:
        entry = self._entry(offset) if 0 <= offset < len(self._section.data) else None
        if entry is None or entry.cie is not None or entry.end - offset > _MAX_CIE:
            raise self._section.damaged(max(offset, 0), "not a CIE")
        fields = self._section.span(entry.fields_at, entry.end, self._section.address_size)
        bare, pos = _cie_fields(fields, offset)
        program = fields.span(pos, len(fields.data), bare.address_size)
        machine = CfiMachine(bare)
        for _ in machine.run(program, 0):  # the initial instructions: rules, no locations
            pass
        return bare._replace(cfa=machine.cfa, rules=machine.rules, ra_signed=machine.ra_signed)


def _cie_fields(fields: DwarfReader, offset: int) -> tuple[Cie, int]:
    """Read a CIE behind its id; return it and the position of its initial instructions."""
    version = fields.u8(0)
    if version not in (1, 3, 4):
        raise fields.damaged(0, f"CIE version {version} is not known")
    augmentation, pos = fields.string(1)
    address_size = fields.address_size
    if version == 4:
        address_size, segment_size, pos = fields.u8(pos), fields.u8(pos + 1), pos + 2
        if address_size not in (4, 8) or segment_size != 0:
            raise fields.damaged(pos - 2, f"addresses of {address_size} bytes, segments of {segment_size}")
    if augmentation == b"eh":  # GCC 2: the address of a language table stands here
        _, pos = fields.block(pos, address_size)
    code_align, pos = fields.uleb128(pos)
    data_align, pos = fields.sleb128(pos)
    ra_register, pos = (fields.u8(pos), pos + 1) if version == 1 else fields.uleb128(pos)
    encoding, signal, pos = _augmentation(fields, augmentation, pos, address_size)
    sized = augmentation.startswith(b"z")
    cie = Cie(offset, code_align, data_align, ra_register, encoding, address_size, sized, signal, None, {})
    return cie, pos


def _augmentation(fields: DwarfReader, letters: bytes, pos: int, address_size: int) -> tuple[int, bool, int]:
    """Return the pointer encoding, whether this is a signal frame, and where the instructions begin.

    After 'z' the data has a length, so a letter that is not known ends the reading but loses nothing.
    """
    encoding, signal = 0, False
    if not letters.startswith(b"z"):
        if letters not in (b"", b"eh"):
            raise fields.damaged(1, f"augmentation {letters!r} is not known")
        return encoding, signal, pos
    length, pos = fields.uleb128(pos)
    _, end = fields.block(pos, length)
    data = fields.span(0, end, address_size)
    for letter in letters[1:].decode("latin-1"):
        match letter:
            case "R":
                encoding, pos = data.u8(pos), pos + 1
            case "P":  # the personality routine is for exceptions; its encoding may be anything
                personality = data.u8(pos)
                _, pos = (0, pos + 1) if personality == OMIT else data.plain(pos + 1, personality)
            case "L":
                pos += 1
            case "S":
                signal = True
            case "B" | "G":  # AArch64: which key signs return addresses; tagged stack memory
                pass
            case _:
                break
    return encoding, signal, end
