"""SFrame against `.eh_frame`: two encodings of one truth.

Law: compares what both say of CFA, return address, frame pointer and signal mark, as written rules; where CFI
has an expression (PLT, stack realignment), both rows are executed over invented registers and memory.  Every
interval in which both are constant is looked at once.  It judges, it does not explain.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch, ByteOrder, arch_of
from sfsample.core.rule import Rule
from sfsample.core.snapshot import Registers
from sfsample.core.stack import StopReason
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, Fde
from sfsample.formats.sframe.section import SFrameFde, SFrameTable
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow, apply_row
from sfsample.unwind.steppers.cfi import to_row as row_of_cfi
from sfsample.unwind.steppers.sframe import to_row as row_of_sframe

_MIX = 0x9E3779B97F4A7C15  # an odd multiplier spreads addresses over all words


class TableAnswer(NamedTuple):
    """What a row says of the registers that SFrame knows.

    `cfa` and `ra` None: outermost.  `fp` None: unchanged; a rule with base FP and no offset means the same.
    """

    cfa: Rule | None
    ra: Rule | None
    fp: Rule | None
    signal: bool


class Disagreement(NamedTuple):
    """Both tables cover `vaddr`, in the function at `function`, and say different things."""

    function: int
    vaddr: int
    sframe: TableAnswer
    eh_frame: TableAnswer


class Verdict(NamedTuple):
    """How many intervals were compared, how many only SFrame covers, and what differs."""

    compared: int
    sframe_only: int
    disagreements: tuple[Disagreement, ...]


def verify(module: Module) -> Verdict:
    """Compare every SFrame row of a module with `.eh_frame` at that pc."""
    arch = arch_of(module.image.machine, module.image.byteorder)
    if module.eh_frame is None or arch is None:
        return Verdict(0, sum(table.num_fres for table in module.sframe), ())
    compared = sframe_only = 0
    found = []
    cfi_fdes = _Sorted(module.eh_frame)
    for table in module.sframe:
        for fde in table.fdes():
            for vaddr in _intervals(module, table, fde, cfi_fdes):
                pair = rows_at(module, table, vaddr, arch)
                if pair is None:
                    continue
                ours, cfi = pair
                if cfi is None:
                    sframe_only += 1
                    continue
                compared += 1
                if differ(ours, cfi, vaddr, arch):
                    found.append(Disagreement(fde.start, vaddr, said(ours, arch), said(cfi, arch)))
    return Verdict(compared, sframe_only, tuple(found))


def rows_at(
    module: Module, table: SFrameTable, vaddr: int, arch: Arch
) -> tuple[UnwindRow, UnwindRow | None] | None:
    """Return the SFrame row and the CFI row that hold at `vaddr`; None without the first."""
    try:
        fre = table.row_at(vaddr)
        cfi = module.eh_frame.row_at(vaddr) if module.eh_frame else None
    except FormatError as damage:
        module.note_damage(damage)
        return None
    if fre is None:
        return None
    return row_of_sframe(fre, table), None if cfi is None else row_of_cfi(cfi, arch)


def said(row: UnwindRow, arch: Arch = AMD64) -> TableAnswer:
    """Return what a row says of CFA, RA and FP."""
    if row.ra is None:
        return TableAnswer(None, None, None, signal=False)
    fp = dict(row.registers).get(arch.fp)
    return TableAnswer(row.cfa, row.ra, None if fp == Rule(arch.fp, 0, deref=False) else fp, row.signal)


def differ(ours: UnwindRow, cfi: UnwindRow, pc: int, arch: Arch = AMD64) -> bool:
    """Whether two rows for `pc` lead to different callers."""
    a, b = said(ours, arch), said(cfi, arch)
    if a == b:
        return False
    if None in (a.ra, b.ra) or a.signal != b.signal:
        return True
    if not any(rule is not None and rule.expression for rule in (*a[:3], *b[:3])):
        return True
    return _executed(ours, pc, arch) != _executed(cfi, pc, arch)


class _InventedMemory:
    """A word at every address, none twice."""

    def __init__(self, byteorder: ByteOrder) -> None:
        self.byteorder = byteorder

    def word(self, address: int) -> int:
        return (address * _MIX + 0x1234567) % (1 << 64)

    def read(self, address: int, size: int) -> bytes:
        return self.word(address).to_bytes(8, self.byteorder)[:size]


def _executed(row: UnwindRow, pc: int, arch: Arch) -> tuple[int, Registers] | StopReason:
    registers = {number: 0x7FFF_0000_0000 + number * 0x10_1008 for number in range(33)} | {arch.pc: pc}
    caller = apply_row(row, registers, _InventedMemory(arch.byteorder), arch)
    if isinstance(caller, StopReason):
        return caller
    wanted = (arch.sp, arch.fp, arch.pc)
    return caller.cfa, {number: caller.registers[number] for number in wanted if number in caller.registers}


class _Sorted:
    """The FDEs of `.eh_frame` by address."""

    def __init__(self, eh_frame: EhFrame) -> None:
        self.eh_frame = eh_frame
        self._fdes = sorted(eh_frame.fdes(), key=lambda fde: fde.start)
        self._starts = [fde.start for fde in self._fdes]

    def overlapping(self, start: int, end: int) -> Iterator[Fde]:
        """Yield those that share code with [start, end); FDEs do not overlap each other."""
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self._fdes) and self._starts[at] < end:
            if self._starts[at] + self._fdes[at].size > start:
                yield self._fdes[at]
            at += 1


def _intervals(module: Module, table: SFrameTable, fde: SFrameFde, cfi: _Sorted) -> list[int]:
    """Return where either side begins to say something else; every byte where CFI has an expression."""
    end = _end(module, fde)
    try:
        starts = {*_sframe_starts(table, fde, end), *_cfi_starts(fde.start, end, cfi)}
    except FormatError as damage:
        module.note_damage(damage)
        return []
    return sorted(start for start in starts if fde.start <= start < end)


def _end(module: Module, fde: SFrameFde) -> int:
    """Return where a function ends, a claim beyond the code of the file cut off."""
    limits = [high for low, high in module.image.executable if low <= fde.start < high]
    return min([fde.start + fde.size, *limits]) if limits else fde.start


def _sframe_starts(table: SFrameTable, fde: SFrameFde, end: int) -> Iterator[int]:
    yield fde.start
    period = fde.rep_size if fde.masked and fde.rep_size else max(1, fde.size)
    rows = table.rows(fde)
    for block in range(fde.start, end, period):
        yield from (block + fre.start for fre in rows)


def _cfi_starts(start: int, end: int, cfi: _Sorted) -> Iterator[int]:
    for fde in cfi.overlapping(start, end):
        yield fde.start
        rows = list(cfi.eh_frame.rows(fde))
        yield from (location for location, _ in rows)
        if any(row.cfa.expression for _, row in rows):
            yield from range(max(start, fde.start), min(end, fde.start + fde.size))
