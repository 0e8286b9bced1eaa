"""Finds pairs of ordinary times, to measure noise: as long and as far apart as the two compared times.

Both times of a pair end no later than the first compared time, or both begin no earlier than the second.
Otherwise the change would lie between the two times of the pair, and would seem ordinary.

If the compared times are at least half a day apart, pairs have the same hours of other days, because only
such pairs show the differences between days.  If the compared times are less than half a day apart, and the
history has few days, a pair can be any two other times that are as far apart.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from math import ceil
from typing import NamedTuple

from sfsample.history.facts import SliceFacts
from sfsample.history.paths import DAY_S

_FAR_S = DAY_S / 2
_ENOUGH_DAYS = 10  # pairs; if ten pairs have the same hours of other days, no other pairs are used
_MAX_PAIRS = 28
_MAX_SLICES = 4000  # slices to read, which takes about 2 s
_MAX_TRIED = 10_000  # pairs to try, because slices may cover few of the pairs
_LEAST_S = 1.0  # shortest time that is compared
_LEAST_COVERED = 0.8  # share of a period that slices must cover


class Span(NamedTuple):
    """A period of time, in seconds since the epoch."""

    begin_s: float
    end_s: float


Pair = tuple[Span, Span]


def ordinary_pairs(
    slices: Sequence[SliceFacts], one: Sequence[SliceFacts], other: Sequence[SliceFacts]
) -> tuple[list[Pair], str]:
    """Return the nearest pairs first, and a description; `one`, `other`: slices of the compared times."""
    length_s = min(_length_s(one), _length_s(other))
    first, second = sorted((_span(one), _span(other)))
    longest_s = 1.01 * length_s
    usable = [each for each in slices if each.mode == one[0].mode and each.end_s - each.begin_s <= longest_s]
    if not usable or length_s < _LEAST_S:
        return [], ""
    covered = _Covered(usable)
    apart_s = (sum(second) - sum(first)) / 2  # from the middle of the first time to the middle of the second
    begins = first.end_s - length_s, second.begin_s
    between_s, unit_s = begins[1] - begins[0], ceil(length_s / DAY_S) * DAY_S
    least_s = unit_s * max(1, ceil((between_s - length_s / 10) / unit_s))
    days = covered.choose(_shifted(begins, between_s, least_s, unit_s, covered.length_s), length_s)
    if apart_s >= _FAR_S or len(days) >= _ENOUGH_DAYS:
        return days, "the same hours of other days"
    apart_s = max(1, round(apart_s / length_s)) * length_s  # multiple of the length, so pairs share times
    others = covered.choose(_shifted(begins, apart_s, apart_s, length_s, covered.length_s), length_s)
    return others, "other times as long and as far apart"


def _span(slices: Sequence[SliceFacts]) -> Span:
    return Span(slices[0].begin_s, max(each.end_s for each in slices))


def _length_s(slices: Sequence[SliceFacts]) -> float:
    span = _span(slices)
    return min(span.end_s - span.begin_s, sum(each.end_s - each.begin_s for each in slices))


def _shifted(
    begins: tuple[float, float], apart_s: float, least_s: float, step_s: float, longest_s: float
) -> Iterator[tuple[float, float]]:
    """Yield the begins of pairs: `begins`, earlier or later by `least_s`, then by `step_s` more each time."""
    first_s, second_s = begins
    for at in range(ceil(longest_s / step_s) + 1):
        shift_s = least_s + at * step_s
        yield first_s - shift_s, first_s - shift_s + apart_s
        yield second_s + shift_s - apart_s, second_s + shift_s


class _Covered:
    def __init__(self, slices: Sequence[SliceFacts]) -> None:
        ordered = sorted(((each.begin_s + each.end_s) / 2, each.end_s - each.begin_s) for each in slices)
        self._middles = [middle for middle, _ in ordered]
        self._sums = [0.0, *accumulate(length_s for _, length_s in ordered)]
        self.length_s = max(each.end_s for each in slices) - min(each.begin_s for each in slices)

    def choose(self, begins: Iterator[tuple[float, float]], length_s: float) -> list[Pair]:
        """Return the first pairs whose two times are covered by slices."""
        chosen: list[Pair] = []
        counts: dict[Span, int] = {}
        for first_s, second_s in islice(begins, _MAX_TRIED):
            pair = Span(first_s, first_s + length_s), Span(second_s, second_s + length_s)
            found = {span: self._count(span) for span in pair}
            if all(found.values()):
                counts |= found
                if len(chosen) == _MAX_PAIRS or sum(counts.values()) > _MAX_SLICES:
                    break
                chosen.append(pair)
        return chosen

    def _count(self, span: Span) -> int:
        """Return the number of slices in a period, or 0 if slices cover too little of the period."""
        first, end = (bisect_left(self._middles, at_s) for at_s in span)
        covered_s = self._sums[end] - self._sums[first]
        return end - first if covered_s >= _LEAST_COVERED * (span.end_s - span.begin_s) else 0
