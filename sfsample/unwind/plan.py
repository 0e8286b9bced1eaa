"""A plain row: the CFA from sp or fp, the return address and fp on the stack, everything aligned.

Law: translates; a row that is not plain has no plan.
"""

from typing import NamedTuple

from sfsample.arch import Arch
from sfsample.model import CFA, Rule
from sfsample.unwind.row import UnwindRow

_WORD = 8
_ALL_BITS = (1 << 64) - 1


class Plan(NamedTuple):
    """What the fast lane needs of a plain row, in bytes."""

    by_fp: bool  # the CFA is fp + cfa, otherwise sp + cfa
    cfa: int
    ra: int  # where the return address is, from the CFA
    fp: int | None  # where the caller's fp is, from the CFA; None: unchanged
    found: str
    guess: bool
    row: UnwindRow


def plan_of(row: UnwindRow, found: str, arch: Arch) -> Plan | None:
    """Translate a row; None: it is not plain."""
    registers = dict(row.registers)
    cfa, ra, fp = row.cfa, row.ra, registers.get(arch.fp)
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
    return Plan(by_fp, cfa.offset, ra.offset, None if fp is None else fp.offset, found, row.guess, row)


def _is_slot(rule: Rule) -> bool:
    """Whether the value is an aligned word of the frame."""
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
