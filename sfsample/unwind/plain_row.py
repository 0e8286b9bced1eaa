"""Translates the usual kind of row to a `PlainRow`, which the rule cache executes without `apply_row`.

A row is plain if it counts the CFA from sp or fp, and has the return address and the caller's fp in aligned
words on the stack.  The CFA of a linkage stub is an expression, but at one given pc its row is plain.  It is
translated too, because every call into another object goes through such a stub.
"""

import re
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import UnwindRow

_WORD = 8  # bytes
_ALL_BITS = (1 << 64) - 1
# CFA of an AMD64 stub, as ld and lld write it: rsp + 8, or rsp + 16 from byte N of the stub on.  DW_OP_breg7
# 8, breg16 0, lit15, and, litN, ge, lit3, shl, plus (DWARF 5 section 7.7.1)
_STUB_CFA = re.compile(rb"\x77\x08\x80\0\x3f\x1a([\x30-\x4f])\x2a\x33\x24\x22")
_LIT0 = 0x30


class PlainRow(NamedTuple):
    """An `UnwindRow` as offsets in bytes, all multiples of 8."""

    by_fp: bool  # True: CFA = fp + cfa; False: CFA = sp + cfa
    cfa: int
    ra: int  # return address = word at CFA + ra
    fp: int | None  # caller's fp = word at CFA + fp; None: caller's fp = this frame's
    found: str  # label of the caller's frame
    guess: bool
    row: UnwindRow  # row that was translated


def plain_row_of(row: UnwindRow, found: str, arch: Arch, pc: int) -> PlainRow | None:
    """Return the plain row for `row` at a pc; None if `row` is not plain."""
    registers = dict(row.registers)
    cfa, ra, fp = _cfa_at(pc, row, arch), row.ra, registers.get(arch.fp)
    if arch.sp in registers or arch.sp_adjust:
        return None
    signed = row.mangled and arch.ra_mask != _ALL_BITS
    if signed or row.signal or row.slides or not row.sp_known:
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


def _cfa_at(pc: int, row: UnwindRow, arch: Arch) -> Rule:
    """Return the rule for the CFA at a pc; for a linkage stub, one without an expression."""
    stub = _STUB_CFA.fullmatch(row.cfa.expression) if row.cfa.expression and arch is AMD64 else None
    if stub is None:
        return row.cfa
    return Rule(arch.sp, 8 + 8 * (pc & 15 >= stub[1][0] - _LIT0), deref=False)


def _is_slot(rule: Rule) -> bool:
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
