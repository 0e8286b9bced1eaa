"""A plain row: the CFA from sp or fp, the return address and fp on the stack, everything aligned.

Law: translates; a row that is not plain has no plan.  That of the stubs of a procedure linkage table is plain
at one pc, though its CFA is an expression: every call into another object goes through them.
"""

import re
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.unwind.row import UnwindRow

_WORD = 8
_ALL_BITS = (1 << 64) - 1
# of ld and lld for AMD64: rsp + 8, and 8 more from an instruction on: DW_OP_breg7 8, breg16 0, lit15, and,
# litN, ge, lit3, shl, plus (DWARF 5 section 7.7.1)
_STUB = re.compile(rb"\x77\x08\x80\0\x3f\x1a([\x30-\x4f])\x2a\x33\x24\x22")
_LIT0 = 0x30


class PlainRow(NamedTuple):
    """What the fast lane needs of a plain row, in bytes."""

    by_fp: bool  # the CFA is fp + cfa, otherwise sp + cfa
    cfa: int
    ra: int  # where the return address is, from the CFA
    fp: int | None  # where the caller's fp is, from the CFA; None: unchanged
    found: str
    guess: bool
    row: UnwindRow


def plain_row_of(row: UnwindRow, found: str, arch: Arch, pc: int) -> PlainRow | None:
    """Translate the row of a pc; None: it is not plain."""
    registers = dict(row.registers)
    cfa, ra, fp = _cfa_at(pc, row, arch), row.ra, registers.get(arch.fp)
    if arch.sp in registers:
        return None
    mangled = row.mangled and arch.ra_mask != _ALL_BITS
    odd = row.signal or row.called or row.slides or mangled or not row.sp_known or arch.sp_adjust
    if odd or cfa.deref or cfa.expression or cfa.base not in (arch.sp, arch.fp) or cfa.offset % _WORD:
        return None
    if ra is None or not _is_slot(ra) or ra.offset < -_WORD:
        return None
    if not (arch.fp in row.kept if fp is None else _is_slot(fp)):
        return None
    by_fp = cfa.base == arch.fp
    if not by_fp and cfa.offset <= 0:
        return None  # it leads nowhere
    return PlainRow(by_fp, cfa.offset, ra.offset, None if fp is None else fp.offset, found, row.guess, row)


def _cfa_at(pc: int, row: UnwindRow, arch: Arch) -> Rule:
    """Return how to find the CFA at a pc: without an expression, if it is that of a stub."""
    stub = _STUB.fullmatch(row.cfa.expression) if row.cfa.expression and arch is AMD64 else None
    if stub is None:
        return row.cfa
    return Rule(arch.sp, 8 + 8 * (pc & 15 >= stub[1][0] - _LIT0), deref=False)


def _is_slot(rule: Rule) -> bool:
    """Whether the value is an aligned word of the frame."""
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
