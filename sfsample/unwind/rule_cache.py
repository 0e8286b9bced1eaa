"""The fast lane: steps whose rows are known and plain, without a call of ours for each frame.

Law: it gives the answer that `StepperChain.step` would give, or stops one frame before it would not.  It is
entered here only after `StepperChain` believed the first stepper that knew the pc; a return address is
followed only if it was stepped from before, so it is known to be executable, and out of a guess only if a
guess that led to it was believed before.  Registers other than sp, fp and pc are not followed: whoever needs
them gets the rows of the frames passed, from `row`.
"""

from bisect import bisect_right

from sfsample.core.arch import Arch
from sfsample.core.memory import Words
from sfsample.core.stack import Frame
from sfsample.unwind.plain_row import PlainRow, plain_row_of
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import PcRange
from sfsample.unwind.walk_cache import FORK, LONGEST, NEW, ONCE, TWICE, Start, WalkCache

_WORD = 8
_UNKNOWN_FP = -1  # leads to no aligned CFA


class RuleCache:
    """The plain rows of one ladder, by pc."""

    def __init__(self) -> None:
        self._at_call: dict[int, PlainRow] = {}  # frames whose pc is a return address
        self._exact: dict[int, PlainRow] = {}
        self._lows: list[int] = []  # where the reaches begin of plans for exact pcs, in order
        self._reaches: list[tuple[int, PlainRow]] = []  # where each ends, and the plan
        self._ends: set[int] = set()  # return addresses of outermost frames
        self._guessed: set[int] = set()  # return addresses to which guesses have led
        self._stretches = WalkCache(self._at_call)

    def clear(self) -> None:
        """Forget everything: the mappings have changed."""
        self._at_call.clear()
        self._exact.clear()
        self._lows.clear()
        self._reaches.clear()
        self._ends.clear()
        self._guessed.clear()
        self._stretches.clear()

    def learn(self, frame: Frame, row: UnwindRow, found: str, arch: Arch, caller: int | None) -> None:
        """Note the row that was believed at `frame.pc`, and led to the pc `caller`, if it is plain."""
        if row.ra is None:
            if not frame.exact:
                self._ends.add(frame.pc)
            return
        plan = plain_row_of(row, found, arch, frame.pc)
        if plan is not None:
            (self._exact if frame.exact else self._at_call)[frame.pc] = plan
            if row.guess and caller is not None:
                self._guessed.add(caller)

    def knows(self, frame: Frame) -> bool:
        """Whether a frame can be stepped from."""
        return frame.pc in (self._exact if frame.exact else self._at_call)

    def widen(self, pc: int, reach: PcRange) -> None:
        """Note that the plan of an exact pc is that of all addresses from one up to another."""
        low, high = reach
        if high - low <= 1 or self._exact[pc].row.cfa.expression:
            return
        at = bisect_right(self._lows, low)
        self._lows.insert(at, low)
        self._reaches.insert(at, (high, self._exact[pc]))

    def _plan_at(self, pc: int) -> PlainRow | None:
        """Return the plan of an exact pc."""
        plan = self._exact.get(pc)
        if plan is None and (at := bisect_right(self._lows, pc)) and pc < self._reaches[at - 1][0]:
            plan = self._exact[pc] = self._reaches[at - 1][1]
        return plan

    def is_end(self, frame: Frame) -> bool:
        """Whether nobody called this frame."""
        return not frame.exact and frame.pc in self._ends

    def row(self, frame: Frame) -> UnwindRow:
        """Return the row of a frame that was passed."""
        return (self._exact if frame.exact else self._at_call)[frame.pc].row

    def run(self, frame: Frame, fp: int | None, words: Words, room: int) -> tuple[list[Frame], Frame]:
        """Step from `frame` at most `room` times; return the frames passed, and the one reached."""
        base, view = words
        pc, sp, _, found, exact = frame
        plans, ends, guessed, new = self._at_call, self._ends, self._guessed, tuple.__new__
        stretches, known = self._stretches, self._stretches.at
        plan = None if sp % _WORD else self._plan_at(pc) if exact else plans.get(pc)
        passed: list[Frame] = []
        starts: list[Start] = []  # of stretches to learn
        if fp is None:
            fp = _UNKNOWN_FP
        while plan is not None and len(passed) < room:
            stretch = FORK if exact else known.get((pc, sp), NEW)
            if stretch is NEW or stretch is ONCE:
                known[pc, sp] = ONCE if stretch is NEW else TWICE
            elif stretch is TWICE:
                if not starts or len(passed) >= starts[-1][0] + LONGEST:
                    starts.append((len(passed), fp))
            elif stretch is not FORK and stretch.found is found:
                fits = stretches.fitting(stretch, fp, words)
                if fits and len(fits.frames) <= room - len(passed):
                    passed += fits.frames
                    pc, sp, _, found, _ = fits.end
                    if fits.fp_at is not None:
                        fp = view[fits.fp_at - base >> 3]
                    plan = plans.get(pc)
                    continue
            by_fp, offset, ra_at, fp_at, next_found, guess, _ = plan
            if by_fp:
                cfa = fp + offset
                if cfa <= sp or cfa % _WORD:
                    break
            else:
                cfa = sp + offset
            at = cfa - base  # positive, and so is the return address's place; that of fp may be below sp
            try:
                ra = view[at + ra_at >> 3]
                plan = plans.get(ra)
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
        reached = new(Frame, (pc, sp, None, found, exact))
        stretches.learn(passed, reached, starts, words)
        return passed, reached
