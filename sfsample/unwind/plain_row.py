"""Translates the usual kind of row to a `PlainRow`, which the rule cache executes without `apply_row`.

A plain row counts the CFA from sp or fp; return address and caller's fp are aligned words on the stack.
"""

from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import UnwindRow

_WORD = 8  # bytes
_ALL_BITS = (1 << 64) - 1


class PlainRow(NamedTuple):
    """An `UnwindRow` as offsets in bytes, all multiples of 8."""

    by_fp: bool  # True: CFA = fp + cfa; False: CFA = sp + cfa
    cfa: int
    ra: int  # return address = word at CFA + ra
    fp: int | None  # caller's fp = word at CFA + fp; None: caller's fp = this frame's
    found: str  # label of the caller's frame
    guess: bool
    row: UnwindRow  # row that was translated


def plain_row_of(row: UnwindRow, found: str, arch: Arch) -> PlainRow | None:
    """Return the plain row for `row`; None if `row` is not plain."""
    registers = dict(row.registers)
    cfa, ra, fp = row.cfa, row.ra, registers.get(arch.fp)
    if arch.sp in registers or arch.sp_adjust:
        return None
    signed = row.mangled and arch.ra_mask != _ALL_BITS
    if signed or row.signal:
        return None
    if cfa.deref or cfa.expression or cfa.base not in (arch.sp, arch.fp) or cfa.offset % _WORD:
        return None
    if ra is None or not _is_slot(ra) or ra.offset < -_WORD:
        return None
    if not (arch.fp in row.kept if fp is None else _is_slot(fp)):
        return None
    by_fp = cfa.base == arch.fp
    if not by_fp and cfa.offset <= 0:
        return None  # no progress up the stack
    return PlainRow(by_fp, cfa.offset, ra.offset, fp.offset if fp else None, found, row.guess, row)


def _is_slot(rule: Rule) -> bool:
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
