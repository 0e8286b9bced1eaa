"""Caches the plain rows of one `StepperChain`, and steps by these rows without a Python call for each frame.

Key: the pc, in different tables for exact pcs and return addresses.  Two samples hardly ever stop at the same
instruction, so all exact pcs in a range with one row (`PcRange`) share an entry.
Valid in one generation of the module map.  For the next generation, or if the cache is full,
`StepperChain.rule_cache` begins a new cache.
Saves: a new stack takes 57-81 us; without this cache 566 us, without the ranges 96-144 us.

Invariant: a walk by this cache finds the same frames as `StepperChain.step`, or stops one frame earlier
(tests/unwind/test_rule_cache.py).  For that reason:

* A row is added only if the first stepper with a row gave it, and `StepperChain` has accepted the caller.
* A walk goes to a return address only if the cache has a row for it, or knows that a stack ends there.
* A walk uses a guess only if an accepted guess has led from the same pc to the same return address.

Only pc, sp and fp are computed.  For other registers, a caller of `walk` executes the rows (`row_of`).
"""

from bisect import bisect_right

from sfsample.core.arch import Arch
from sfsample.core.memory import Words
from sfsample.core.stack import Frame
from sfsample.unwind.row import PlainRow, UnwindRow, plain_row_of
from sfsample.unwind.stepper import PcRange
from sfsample.unwind.walk_cache import (
    MAX_WALK_FRAMES,
    NEVER_CACHED,
    NOT_SEEN,
    SEEN_ONCE,
    SEEN_TWICE,
    WalkCache,
    WalkStart,
)

_WORD = 8  # bytes
_MAX_ENTRIES = 1 << 16  # rows by pc; each takes about 1 KiB, in this cache and in the caches of steppers
_UNKNOWN_FP = -1  # value from which no aligned CFA follows


class RuleCache:
    """The plain rows of one chain of steppers, by pc, for one generation of the module map."""

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation
        self.left = _MAX_ENTRIES  # entries that may still be added
        self._by_return_address: dict[int, PlainRow] = {}
        self._by_exact_pc: dict[int, PlainRow] = {}
        self._range_starts: list[int] = []  # starts of ranges of exact pcs, ascending
        self._ranges: list[tuple[int, PlainRow]] = []  # (end, row) of each range
        self._outermost: set[int] = set()  # return addresses of frames without a caller
        self._reached_by_guess: set[tuple[int, int]] = set()  # (pc, return address) of accepted guesses
        self._walks = WalkCache(self._by_return_address)

    def add(self, frame: Frame, row: UnwindRow, found: str, arch: Arch, caller_pc: int | None) -> None:
        """Add an accepted row, if the row is plain.  The row has led from `frame.pc` to `caller_pc`."""
        self.left -= 1
        if row.ra is None:
            if not frame.exact:
                self._outermost.add(frame.pc)
            return
        plain = plain_row_of(row, found, arch)
        if plain is not None:
            (self._by_exact_pc if frame.exact else self._by_return_address)[frame.pc] = plain
            if row.guess and caller_pc is not None:
                self._reached_by_guess.add((frame.pc, caller_pc))

    def __contains__(self, frame: Frame) -> bool:
        return frame.pc in (self._by_exact_pc if frame.exact else self._by_return_address)

    def add_range(self, pc: int, pc_range: PcRange) -> None:
        """Add a range of exact pcs, for which the cached row of `pc` is valid."""
        start, end = pc_range
        if end - start <= 1:
            return
        at = bisect_right(self._range_starts, start)
        self._range_starts.insert(at, start)
        self._ranges.insert(at, (end, self._by_exact_pc[pc]))

    def _row_at_exact(self, pc: int) -> PlainRow | None:
        row = self._by_exact_pc.get(pc)
        if row is None and (at := bisect_right(self._range_starts, pc)) and pc < self._ranges[at - 1][0]:
            row = self._by_exact_pc[pc] = self._ranges[at - 1][1]
            self.left -= 1
        return row

    def is_outermost(self, frame: Frame) -> bool:
        """Return True if the cache knows that a stack ends at the pc of the frame."""
        return not frame.exact and frame.pc in self._outermost

    def row_of(self, frame: Frame) -> UnwindRow:
        """Return the row of a frame that `walk` has stepped from."""
        return (self._by_exact_pc if frame.exact else self._by_return_address)[frame.pc].row

    def walk(self, frame: Frame, fp: int | None, words: Words, max_steps: int) -> tuple[list[Frame], Frame]:
        """Step from `frame` at most `max_steps` times; return the passed frames, and the last frame.

        `words` is the copy in which the frame's sp lies.  The last frame has no CFA yet.  This
        function is long, because Python calls for each frame would take too much time.
        """
        base, view = words
        pc, sp, _, found, exact = frame
        rows, outermost, reached_by_guess = self._by_return_address, self._outermost, self._reached_by_guess
        walks, cached_walks, new = self._walks, self._walks.entries, tuple.__new__
        row = None if sp % _WORD else self._row_at_exact(pc) if exact else rows.get(pc)
        passed: list[Frame] = []
        starts: list[WalkStart] = []  # starts of the walks to be cached
        if fp is None:
            fp = _UNKNOWN_FP
        while row is not None and len(passed) < max_steps:
            cached = NEVER_CACHED if exact else cached_walks.get((pc, sp), NOT_SEEN)
            if cached is NOT_SEEN or cached is SEEN_ONCE:
                cached_walks[pc, sp] = SEEN_ONCE if cached is NOT_SEEN else SEEN_TWICE
            elif cached is SEEN_TWICE:
                if not starts or len(passed) >= starts[-1][0] + MAX_WALK_FRAMES:
                    starts.append((len(passed), fp))
            elif cached is not NEVER_CACHED and cached.found is found:
                valid = walks.valid_part(cached, fp, words)
                if valid and len(valid.frames) <= max_steps - len(passed):
                    passed += valid.frames
                    pc, sp, _, found, _ = valid.end
                    if valid.fp_at is not None:
                        fp = view[valid.fp_at - base >> 3]
                    row = rows.get(pc)
                    continue
            by_fp, offset, ra_at, fp_at, caller_found, guess, _ = row
            if by_fp:
                cfa = fp + offset
                if cfa <= sp or cfa % _WORD:
                    break
            else:
                cfa = sp + offset
            at = cfa - base  # bytes from the start of the copy to the CFA; only at + fp_at may be negative
            try:
                ra = view[at + ra_at >> 3]
                row = rows.get(ra)
                if (row is None and ra not in outermost) or (guess and (pc, ra) not in reached_by_guess):
                    break
                if fp_at is not None:
                    if at + fp_at < 0:
                        break
                    fp = view[at + fp_at >> 3]
            except IndexError:  # beyond the copy
                break
            passed.append(new(Frame, (pc, sp, cfa, found, exact)))
            pc, sp, found, exact = ra, cfa, caller_found, False
        last = new(Frame, (pc, sp, None, found, exact))
        walks.add(passed, last, starts, words)
        return passed, last
