"""The fast lane: steps whose rows are known and plain, without a call of ours for each frame.

Law: it gives the answer that `Ladder.step` would give, or stops one frame before it would not.  A row is
plain when it finds the CFA from sp or fp, and the return address and fp on the stack.  It is entered here
only after `Ladder` believed the first stepper that knew the pc; a return address is followed only if it was
stepped from before, so it is known to be executable, and out of a guess only if a guess that led to it was
believed before.  Registers other than sp, fp and pc are not followed:
whoever needs them gets the rows of the frames passed, from `row`.
"""

from typing import NamedTuple

from sfsample.arch import Arch
from sfsample.memory import Words
from sfsample.model import CFA, Frame, Rule
from sfsample.unwind.row import UnwindRow

_WORD = 8
_UNKNOWN_FP = -1  # leads to no aligned CFA
_ALL_BITS = (1 << 64) - 1


class _Plan(NamedTuple):
    by_fp: bool  # the CFA is fp + cfa, otherwise sp + cfa
    cfa: int
    ra: int  # where the return address is, from the CFA
    fp: int | None  # where the caller's fp is, from the CFA; None: unchanged
    found: str
    guess: bool
    row: UnwindRow


class FastLane:
    """The plain rows of one ladder, by pc."""

    def __init__(self) -> None:
        self._at_call: dict[int, _Plan] = {}  # frames whose pc is a return address
        self._exact: dict[int, _Plan] = {}
        self._ends: set[int] = set()  # return addresses of outermost frames
        self._guessed: set[int] = set()  # return addresses to which guesses have led

    def clear(self) -> None:
        """Forget everything: the mappings have changed."""
        self._at_call.clear()
        self._exact.clear()
        self._ends.clear()
        self._guessed.clear()

    def learn(self, frame: Frame, row: UnwindRow, found: str, arch: Arch, caller: int | None) -> None:
        """Note the row that was believed at `frame.pc`, and led to the pc `caller`, if it is plain."""
        if row.ra is None:
            if not frame.exact:
                self._ends.add(frame.pc)
            return
        plan = _plan(row, found, arch)
        if plan is not None:
            (self._exact if frame.exact else self._at_call)[frame.pc] = plan
            if row.guess and caller is not None:
                self._guessed.add(caller)

    def is_end(self, frame: Frame) -> bool:
        """Whether nobody called this frame."""
        return not frame.exact and frame.pc in self._ends

    def row(self, frame: Frame) -> UnwindRow:
        """Return the row of a frame that was passed."""
        return (self._exact if frame.exact else self._at_call)[frame.pc].row

    def run(self, frame: Frame, fp: int | None, words: Words, room: int) -> tuple[list[Frame], Frame, int]:
        """Step from `frame` at most `room` times; return the frames passed, the one reached, and its fp."""
        base, view = words
        pc, sp, _, found, exact = frame
        known, ends, guessed, new = self._at_call, self._ends, self._guessed, tuple.__new__
        plan = (self._exact if exact else known).get(pc)
        passed: list[Frame] = []
        if fp is None:
            fp = _UNKNOWN_FP
        while plan is not None and len(passed) < room:
            by_fp, offset, ra_at, fp_at, next_found, guess, _ = plan
            cfa = (fp if by_fp else sp) + offset
            if cfa <= sp or cfa % _WORD:
                break
            at = cfa - base  # positive, and so is the return address's place; that of fp may be below sp
            try:
                ra = view[at + ra_at >> 3]
                plan = known.get(ra)
                if (plan is None and ra not in ends) or (guess and ra not in guessed):
                    break
                if fp_at is not None:
                    if at + fp_at < 0:
                        break
                    fp = view[at + fp_at >> 3]
            except IndexError:  # beyond the copy
                break
            passed.append(new(Frame, (pc, sp, cfa, found, exact)))
            pc, sp, found, exact = ra, cfa, next_found, False
        return passed, Frame(pc, sp, None, found, exact), fp


def _plan(row: UnwindRow, found: str, arch: Arch) -> _Plan | None:
    """Translate a plain row; None: it is not plain."""
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
    return _Plan(cfa.base == arch.fp, cfa.offset, ra.offset, None if fp is None else fp.offset, found,
                 row.guess, row)  # fmt: skip


def _is_slot(rule: Rule) -> bool:
    """Whether the value is an aligned word of the frame."""
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
