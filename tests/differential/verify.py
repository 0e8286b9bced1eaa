"""Compares SFrame with `.eh_frame`: the two tables must lead to the same caller.

The rules for CFA, return address and frame pointer are compared as they are written.  If CFI has an
expression (PLT, stack realignment), both rows are executed with synthetic registers and memory instead.  Each
interval in which the rows of both tables stay the same is compared once.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch, ByteOrder, arch_of
from sfsample.core.rule import Rule
from sfsample.core.snapshot import Registers
from sfsample.core.stack import StopReason
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, Fde
from sfsample.formats.sframe import SFrameFde, SFrameTable
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow, apply_row
from sfsample.unwind.steppers.cfi import to_row as row_of_cfi
from sfsample.unwind.steppers.sframe import to_row as row_of_sframe

_MIX = 0x9E3779B97F4A7C15  # odd multiplier (2**64 / golden ratio), which spreads addresses over 64-bit words


class CallerRules(NamedTuple):
    """The rules of a row for the three registers that SFrame knows."""

    cfa: Rule | None  # None: the frame is outermost
    ra: Rule | None  # None: the frame is outermost
    fp: Rule | None  # None: FP is unchanged; a rule FP + 0 becomes None, too
    signal: bool  # True: a signal interrupted the caller


class Disagreement(NamedTuple):
    """A place that both tables cover with different rules."""

    function: int  # vaddr of the start of the function
    vaddr: int
    sframe: CallerRules
    eh_frame: CallerRules


class Verification(NamedTuple):
    """The result for a module."""

    compared: int  # intervals that were compared
    sframe_only: int  # intervals that only SFrame covers
    disagreements: tuple[Disagreement, ...]


def verify(module: Module) -> Verification:
    """Compare all SFrame rows with those of `.eh_frame`."""
    arch = arch_of(module.image.machine, module.image.byteorder)
    eh_frame = module.tables.eh_frame
    if eh_frame is None or arch is None:
        return Verification(0, sum(table.num_fres for table in module.tables.sframe), ())
    compared = sframe_only = 0
    disagreements = []
    cfi_fdes = sorted(eh_frame.fdes(), key=lambda fde: fde.start)
    for table in module.tables.sframe:
        for fde in table.fdes():
            for vaddr in _interval_starts(table, fde, eh_frame, cfi_fdes, module):
                pair = row_pair_at(module, table, vaddr, arch)
                if pair is None:
                    continue
                sframe, cfi = pair
                if cfi is None:
                    sframe_only += 1
                    continue
                compared += 1
                if rows_disagree(sframe, cfi, vaddr, arch):
                    rules = caller_rules(sframe, arch), caller_rules(cfi, arch)
                    disagreements.append(Disagreement(fde.start, vaddr, *rules))
    return Verification(compared, sframe_only, tuple(disagreements))


def row_pair_at(
    module: Module, table: SFrameTable, vaddr: int, arch: Arch
) -> tuple[UnwindRow, UnwindRow | None] | None:
    """Return the rows of SFrame and of CFI (None: no row) at `vaddr`; None: SFrame has no row."""
    try:
        fre = table.row_at(vaddr)
        cfi = module.tables.eh_frame.row_at(vaddr) if module.tables.eh_frame else None
    except FormatError as damage:
        module.note_damage(damage)
        return None
    if fre is None:
        return None
    return row_of_sframe(fre, table), None if cfi is None else row_of_cfi(cfi, arch)


def caller_rules(row: UnwindRow, arch: Arch = AMD64) -> CallerRules:
    """Return the rules of a row for CFA, RA and FP."""
    if row.ra is None:
        return CallerRules(None, None, None, signal=False)
    fp = dict(row.registers).get(arch.fp)
    return CallerRules(row.cfa, row.ra, None if fp == Rule(arch.fp, 0, deref=False) else fp, row.signal)


def rows_disagree(sframe: UnwindRow, cfi: UnwindRow, pc: int, arch: Arch = AMD64) -> bool:
    """Return True if two rows for `pc` lead to different callers."""
    first, second = caller_rules(sframe, arch), caller_rules(cfi, arch)
    if first == second:
        return False
    if None in (first.ra, second.ra) or first.signal != second.signal:
        return True
    if not any(rule is not None and rule.expression for rule in (*first[:3], *second[:3])):
        return True
    return _execute(sframe, pc, arch) != _execute(cfi, pc, arch)


class _SyntheticMemory:
    """Memory with a different word at every address."""

    def __init__(self, byteorder: ByteOrder) -> None:
        self.byteorder = byteorder

    def word(self, address: int) -> int:
        return (address * _MIX + 0x1234567) % (1 << 64)

    def read(self, address: int, size: int) -> bytes:
        return self.word(address).to_bytes(8, self.byteorder)[:size]


def _execute(row: UnwindRow, pc: int, arch: Arch) -> tuple[int, Registers] | StopReason:
    """Execute a row over synthetic registers and memory; return the CFA, and the caller's sp, fp and pc."""
    registers = {number: 0x7FFF_0000_0000 + number * 0x10_1008 for number in range(33)} | {arch.pc: pc}
    caller = apply_row(row, registers, _SyntheticMemory(arch.byteorder), arch)
    if isinstance(caller, StopReason):
        return caller
    compared = (arch.sp, arch.fp, arch.pc)
    return caller.cfa, {number: caller.registers[number] for number in compared if number in caller.registers}


def _interval_starts(
    table: SFrameTable, fde: SFrameFde, eh_frame: EhFrame, cfi_fdes: list[Fde], module: Module
) -> list[int]:
    """Return the vaddrs at which a row of SFrame or CFI begins; also each vaddr with an expression in CFI."""
    limits = [high for low, high in module.image.executable if low <= fde.start < high]
    end = min([fde.start + fde.size, *limits]) if limits else fde.start  # no address outside the code
    overlapping = _overlapping(cfi_fdes, fde.start, end)
    try:
        cfi_starts = _cfi_starts(eh_frame, overlapping, fde.start, end)
        starts = {*_sframe_starts(table, fde, end), *cfi_starts}
    except FormatError as damage:
        module.note_damage(damage)
        return []
    return sorted(start for start in starts if fde.start <= start < end)


def _sframe_starts(table: SFrameTable, fde: SFrameFde, end: int) -> Iterator[int]:
    yield fde.start
    period = fde.rep_size if fde.masked and fde.rep_size else max(1, fde.size)
    rows = table.rows(fde)
    for block in range(fde.start, end, period):
        yield from (block + fre.start for fre in rows)


def _overlapping(fdes: list[Fde], start: int, end: int) -> list[Fde]:
    """Return the FDEs that share code with [start, end).  `fdes` are sorted, and do not overlap."""
    first = max(0, bisect_right(fdes, start, key=lambda fde: fde.start) - 1)
    last = bisect_left(fdes, end, key=lambda fde: fde.start)
    return [fde for fde in fdes[first:last] if fde.start + fde.size > start]


def _cfi_starts(eh_frame: EhFrame, fdes: list[Fde], start: int, end: int) -> Iterator[int]:
    """Yield the vaddrs at which rows of CFI begin, and every vaddr of [start, end) with an expression."""
    for fde in fdes:
        yield fde.start
        has_expression = False
        for location, row in eh_frame.rows(fde):
            yield location
            has_expression |= bool(row.cfa.expression)
        if has_expression:
            yield from range(max(start, fde.start), min(end, fde.start + fde.size))
