"""Translates the usual kind of row to a `PlainRow`, which the rule cache executes without `apply_row`.

A row is plain if it counts the CFA from sp or fp, and finds the return address and the caller's fp in aligned
words on the stack.  The row of a linkage stub is plain at one pc, although its CFA is an expression; it is
translated because every call into another object goes through such a stub.
"""

import re
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import Guess, UnwindRow

_WORD = 8  # bytes
_ALL_BITS = (1 << 64) - 1
# ld's and lld's CFA of an AMD64 stub: rsp + 8, and 8 more from byte N of the stub on: DW_OP_breg7 8, breg16
# 0, lit15, and, litN, ge, lit3, shl, plus (DWARF 5 section 7.7.1)
_STUB_CFA = re.compile(rb"\x77\x08\x80\0\x3f\x1a([\x30-\x4f])\x2a\x33\x24\x22")
_LIT0 = 0x30


class PlainRow(NamedTuple):
    """An `UnwindRow` as offsets in bytes, multiples of 8."""

    by_fp: bool  # the CFA is fp + cfa; False: sp + cfa
    cfa: int
    ra: int  # where the return address is, from the CFA
    fp: int | None  # where the caller's fp is saved, from the CFA; None: unchanged
    found: str  # the label of the caller's frame
    guess: bool
    row: UnwindRow


def plain_row_of(row: UnwindRow, found: str, arch: Arch, pc: int) -> PlainRow | None:
    """Translate the row at a pc; None if it is not plain."""
    registers = dict(row.registers)
    cfa, ra, fp = _cfa_at(pc, row, arch), row.ra, registers.get(arch.fp)
    if arch.sp in registers:
        return None
    signed = row.mangled and arch.ra_mask != _ALL_BITS
    if (
        row.signal
        or row.guess is Guess.CALLS_HERE
        or row.slides
        or signed
        or not row.sp_known
        or arch.sp_adjust
    ):
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
    return PlainRow(
        by_fp, cfa.offset, ra.offset, None if fp is None else fp.offset, found, bool(row.guess), row
    )


def _cfa_at(pc: int, row: UnwindRow, arch: Arch) -> Rule:
    """Return the rule for the CFA at a pc; that of a linkage stub without its expression."""
    stub = _STUB_CFA.fullmatch(row.cfa.expression) if row.cfa.expression and arch is AMD64 else None
    if stub is None:
        return row.cfa
    return Rule(arch.sp, 8 + 8 * (pc & 15 >= stub[1][0] - _LIT0), deref=False)


def _is_slot(rule: Rule) -> bool:
    """Return whether the value is saved in an aligned word of the frame."""
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
