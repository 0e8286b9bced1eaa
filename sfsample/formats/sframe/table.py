"""Reads one SFrame table, V1 to V3: its header, its functions, and the row for an address.

A look-up bisects the function table in the mapped file, and decodes the rows of one function.  A damaged
header or function raises `FormatError`.  The caches of rows and the lists of problems are bounded.

Source: the SFrame specification V1, V2 (errata 1) and V3; names are from V3.  If the specification and the
assembler disagree, this module follows the assembler: V1/V2 start fields are relative to the section (ld
2.40-2.44), the V3 index is not aligned, and a sorted table is sorted by resolved address.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntFlag
from functools import cached_property
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError
from sfsample.formats.sframe.rows import ABIS, Buffer, RowDecoder, SFrameFre, may_be_wrong, repair

MAGICS: dict[bytes, ByteOrder] = {b"\xe2\xde": "little", b"\xde\xe2": "big"}  # 0xdee2
HEADER_SIZE = 28
SECTION = ".sframe"
_MASK64 = (1 << 64) - 1
_MAX_STEPS_BACK = 64  # functions of size 0 that a look-up skips
_MAX_CACHED_ROWS = 1 << 15  # rows of functions that were looked up
_MAX_PROBLEMS = 50  # texts


class Flag(IntFlag):
    """sfh_flags."""

    FDE_SORTED = 0x1
    FRAME_POINTER = 0x2  # hint of V1 and V2 that no tool sets
    FDE_FUNC_START_PCREL = 0x4  # flag of V2 errata 1 and V3


_KNOWN_FLAGS = {1: 0x3, 2: 0x7, 3: 0x5}
_FDE_FIELDS = {1: "iIIIB", 2: "iIIIBB2x", 3: "qII"}  # key: version; start and size come first


class SFrameFde(NamedTuple):
    """One function (FDE)."""

    start: int  # vaddr
    size: int  # bytes of code
    fre_off: int  # bytes from the start of the FRE area to the first row
    num_fres: int
    info: int  # sfda_func_info
    info2: int  # sfda_func_info2
    rep_size: int  # bytes of a repeated block (`masked`)

    @property
    def fre_type(self) -> int:
        """Code for the width of a row's start offset: the offset has 1 << fre_type bytes."""
        return self.info & 0xF

    @property
    def masked(self) -> bool:
        """PCMASK: True if the rows repeat every `rep_size` bytes (PLT slots)."""
        return bool(self.info & 0x10)

    @property
    def pauth_b(self) -> bool:
        """AArch64: True if return addresses are signed with key B."""
        return bool(self.info & 0x20)

    @property
    def signal(self) -> bool:
        """V3: True for a signal trampoline.  In V1 and V2, the bit is unused and 0."""
        return bool(self.info & 0x80)

    @property
    def fde_type(self) -> int:
        """V3: 0 default, 1 flexible; other values are reserved."""
        return self.info2 & 0x1F


_start_of = itemgetter(0)  # function: row -> its start


class SFrameTable:
    """One SFrame header and its functions.  `address` is the vaddr of the header's first byte."""

    def __init__(
        self, data: Buffer, address: int, *, machine: tuple[int, str] | None = None,
        executable: Sequence[tuple[int, int]] = (), origin: int = 0,
    ) -> None:  # fmt: skip
        """Check the header.  Raises FormatError if the table cannot be used at all.

        `machine`: e_machine and byte order of the ELF file.  `executable`: vaddr ranges of code.  If the flag
        FDE_FUNC_START_PCREL is clear, these ranges show the base of V1/V2 start fields.  `origin`: offset of
        the table in the section; offsets in errors count from the start of the section.
        """
        self.data = memoryview(data).cast("B")
        self.address, self.executable, self.origin = address, tuple(executable), origin
        self.problems: list[str] = []  # texts about damage and guesses
        self._read_header()
        self._check_abi(machine)
        self._check_bounds()
        self.pcrel = bool(self.flags & Flag.FDE_FUNC_START_PCREL)
        # True: a row without words means "outermost" (from V2 errata 2 on); False: the row is damaged
        self.allows_empty_rows = self.version > 2 or self.pcrel
        if not self.pcrel and self.version < 3:
            self.pcrel = self._is_field_relative_without_flag()
        self._decoder = RowDecoder(self.data[self.fre_base : self.used], self)
        self._rows: dict[SFrameFde, tuple[SFrameFre, ...]] = {}
        self._cached_rows = 0

    def _damaged(self, offset: int, what: str) -> FormatError:
        return FormatError(SECTION, self.origin + offset, what)

    # -- header

    def _read_header(self) -> None:
        if len(self.data) < HEADER_SIZE:
            raise self._damaged(0, f"{len(self.data)} bytes cannot hold the {HEADER_SIZE}-byte header")
        byteorder = MAGICS.get(bytes(self.data[:2]))
        if byteorder is None:
            raise self._damaged(0, f"magic is {self.data[:2].hex()}, not e2de or dee2")
        self.byteorder, self.order = byteorder, "<" if byteorder == "little" else ">"
        header = Struct(self.order + "HBBBbbBIIIII").unpack_from(self.data)
        _, self.version, flags, abi, self.fixed_fp, self.fixed_ra, aux_len, *counts = header
        self.num_fdes, self.num_fres, self.fre_len, fdeoff, freoff = counts
        if self.version not in _FDE_FIELDS:
            raise self._damaged(2, f"version {self.version} is not one of 1, 2, 3")
        if flags & ~_KNOWN_FLAGS[self.version]:
            raise self._damaged(3, f"unknown flags {flags:#x} in version {self.version}")
        self.flags = Flag(flags)
        if abi not in ABIS:
            raise self._damaged(4, f"unknown ABI {abi}")
        self.abi = ABIS[abi]
        self.fde_base = HEADER_SIZE + aux_len + fdeoff
        self.fre_base = HEADER_SIZE + aux_len + freoff
        self.used = self.fre_base + self.fre_len  # bytes of this table, header included
        self._fde = Struct(self.order + _FDE_FIELDS[self.version])
        self._attribute = Struct(self.order + "HBBB").unpack_from  # V3 sfda_*
        self.fde_size = self._fde.size

    def _check_abi(self, machine: tuple[int, str] | None) -> None:
        abi = self.abi
        if self.byteorder != abi.arch.byteorder:
            raise self._damaged(4, f"ABI {abi.name} in {self.byteorder}-endian bytes")
        if machine is not None and machine != (abi.arch.machine, abi.arch.byteorder):
            raise self._damaged(4, f"ABI {abi.name} in a file for machine {machine[0]}")
        if self.fixed_fp != 0:
            raise self._damaged(5, f"fixed FP offset {self.fixed_fp} (no tool emits one)")
        slot = self.fixed_ra < 0 and self.fixed_ra % 8 == 0
        if not (self.fixed_ra == 0 if abi.tracks_ra else slot):
            raise self._damaged(6, f"fixed RA offset {self.fixed_ra} for {abi.name}")

    def _check_bounds(self) -> None:
        needed, size = self.num_fdes * self.fde_size, self.fre_base - self.fde_base
        if size != needed:
            raise self._damaged(8, f"{self.num_fdes} FDEs need {needed} bytes, have {size}")
        if self.used > len(self.data):
            raise self._damaged(16, f"claims {self.used} bytes, but has {len(self.data)}")
        self.data = self.data[: self.used]  # bytes of this table only

    def _is_field_relative_without_flag(self) -> bool:
        """Guess if start fields count from their own addresses: mold, lld and gold do not set the flag."""

        def starts_in_code(pcrel: bool) -> int:
            self.pcrel = pcrel
            starts = [self._start(i) for i in range(0, self.num_fdes, max(1, self.num_fdes // 16))]
            return sum(any(low <= s < high for low, high in self.executable) for s in starts)

        if starts_in_code(False) < starts_in_code(True):
            self.problems.append("start addresses are relative to their fields although the flag is clear")
            return True
        return False

    # -- functions

    def _record(self, index: int) -> tuple[int, ...]:
        return self._fde.unpack_from(self.data, self.fde_base + index * self.fde_size)

    def _start(self, index: int) -> int:
        at = self.fde_base + index * self.fde_size
        raw: int = self._fde.unpack_from(self.data, at)[0]
        return (self.address + raw + (at if self.pcrel else 0)) & _MASK64

    def size(self, index: int) -> int:
        """Return the size in bytes of function `index`, without reading its V3 attribute."""
        return self._record(index)[1]

    def fde(self, index: int) -> SFrameFde:
        """Return function `index`.  Raises FormatError if its V3 attribute lies outside the table."""
        start, (_, size, fre_off, *attribute) = self._start(index), self._record(index)
        if self.version < 3:
            # V1 has no repetition size; all x86-64 PLT slots of ld 2.40 have 16 bytes
            num_fres, info, rep_size = attribute if self.version == 2 else (*attribute, 16)
            return SFrameFde(start, size, fre_off, num_fres, info & 0x7F, 0, rep_size)
        if fre_off + 5 > self.fre_len:
            raise self._damaged(self.fre_base + fre_off, "function attribute outside the FRE area")
        num_fres, info, info2, rep_size = self._attribute(self.data, self.fre_base + fre_off)
        return SFrameFde(start, size, fre_off + 5, num_fres, info, info2, rep_size)

    def fdes(self) -> Iterator[SFrameFde]:
        """Yield every readable function, in table order; `problems` names the unreadable functions."""
        for index in range(self.num_fdes):
            try:
                yield self.fde(index)
            except FormatError as damage:
                text = str(damage)
                if text not in self.problems and len(self.problems) <= _MAX_PROBLEMS:
                    self.problems.append(text if len(self.problems) < _MAX_PROBLEMS else "and more")

    def extents(self) -> Iterator[tuple[int, int]]:
        """Yield the vaddrs [start, end) of every function, in table order, without reading V3 attributes."""
        base, step = self.address + (self.fde_base if self.pcrel else 0), self.fde_size if self.pcrel else 0
        for record in self._fde.iter_unpack(self.data[self.fde_base : self.fre_base]):
            start = base + record[0] & _MASK64
            yield start, start + record[1]
            base += step

    def find(self, vaddr: int) -> SFrameFde | None:
        """Return the function that covers `vaddr`; None: there is none.  Raises FormatError as `fde` does."""
        position = bisect_right(self._order, vaddr, key=self._start) - 1
        for candidate in range(position, max(-1, position - _MAX_STEPS_BACK), -1):
            index = self._order[candidate]
            start, size = self._start(index), self.size(index)
            if 0 <= vaddr - start < size:
                return self.fde(index)
            if size:
                return None
        return None

    @cached_property
    def _order(self) -> Sequence[int]:
        numbers = range(self.num_fdes)
        return numbers if self.flags & Flag.FDE_SORTED else sorted(numbers, key=self._start)

    # -- rows

    def rows(self, fde: SFrameFde) -> tuple[SFrameFre, ...]:
        """Return the rows of a function as in the file.  Raises FormatError if the rows are damaged."""
        rows = self._rows.get(fde)
        if rows is None:
            rows = self.decode(fde)
            self._cached_rows += len(rows) + 1
            if self._cached_rows > _MAX_CACHED_ROWS:
                self._rows.clear()
                self._cached_rows = len(rows) + 1
            self._rows[fde] = rows
        return rows

    def decode(self, fde: SFrameFde) -> tuple[SFrameFre, ...]:
        """Return the same rows as `rows`, without caching, for a caller that reads every function once."""
        try:
            return self._decoder.rows(fde)
        except FormatError as damage:
            where = f"{damage.what} (function at {fde.start:#x})"
            raise self._damaged(self.fre_base + damage.offset, where) from None

    def row_at(self, vaddr: int) -> SFrameFre | None:
        """Return the row for `vaddr`, repaired if ld wrote it wrong; None: no row.  Raises FormatError."""
        fde = self.find(vaddr)
        if fde is None:
            return None
        if not fde.num_fres:
            # V3: a function without rows is outermost; another stepper recognizes signal trampolines
            outermost = self.version > 2 and not fde.signal
            return SFrameFre(0, 0, ()) if outermost else None
        offset = vaddr - fde.start
        if fde.masked:
            if not fde.rep_size:
                return None
            offset %= fde.rep_size
        rows = self.rows(fde)
        if may_be_wrong(self, rows):
            return None
        repaired = repair(self, fde, rows)
        if repaired is not None:
            rows = repaired[0]
        position = bisect_right(rows, offset, key=_start_of) - 1
        if position < 0 or rows[position].problem:
            return None
        return rows[position]

    def check(self) -> list[str]:
        """Return texts about faults of the whole table, and about the rows that `row_at` repairs."""
        from sfsample.formats.sframe.validate import check

        return check(self)
