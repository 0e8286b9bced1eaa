"""Compares two reports: which functions changed, and which differences are only noise.

docs/diff.md explains the arithmetic.  Counts are compared, never percentages: a function that k of n samples
hit is known to about the square root of k.  The verdicts allow for the number of functions that are compared.

Invariant: verdicts and intervals are wrong as seldom as stated (tests/report/test_difference.py).
"""

from collections import Counter
from collections.abc import Mapping
from math import erfc, sqrt
from typing import NamedTuple

from sfsample.report.report import Report, ReportFrame

_Z = 1.96  # standard deviations: 95 % of a normal distribution
_FALSE_DISCOVERY_RATE = 0.05  # of the verdicts other than "noise", at most this share is expected to be wrong
GREW, SHRANK, NOISE = "grew", "shrank", "noise"


class Change(NamedTuple):
    """One function: samples before and after, and the 95 % interval of the ratio of its shares."""

    name: str
    before: int
    after: int
    share_before: float  # of one CPU's time, or of all samples; 0 to 1, more for several threads
    share_after: float
    low: float
    high: float  # inf: the function may be new
    verdict: str

    @property
    def change(self) -> float:
        """The difference of the shares."""
        return self.share_after - self.share_before


class Difference(NamedTuple):
    """All functions, by self samples and by total samples (with callees); the largest change first.

    `per_time`: shares are of one CPU's time; otherwise (a duration or rate is unknown) of all samples.
    """

    per_time: bool
    exposures: tuple[float, float]  # before and after: the number of samples that a share of 1 would be
    overall: Change
    by_self: tuple[Change, ...]
    by_total: tuple[Change, ...]


def compare(before: Report, after: Report) -> Difference:
    """Return what changed."""
    ticks = _ticks(before), _ticks(after)
    per_time = all(ticks)
    exposures = ticks if per_time else (float(before.total()), float(after.total()))
    by_self, by_total = zip(_counts(before), _counts(after), strict=True)
    [overall] = _changes({"all": before.total()}, {"all": after.total()}, exposures)
    return Difference(
        per_time, exposures, overall, _changes(*by_self, exposures), _changes(*by_total, exposures)
    )


def _ticks(report: Report) -> float:
    """Return how many samples a thread that always ran would have, 0 when that is unknown."""
    missed = (report.stats or {}).get("late_ticks")
    due = (report.duration_ns or 0) / 1e9 * (report.rate_hz or 0)
    return max(0.0, due - (missed if isinstance(missed, int) else 0))


def comparison_name(frame: ReportFrame) -> str:
    """Return the name by which a frame is compared.

    An address without a name means nothing in another build, so the module stands for it.
    """
    if frame.function is None and frame.module is not None:
        return f"[{frame.module.rpartition('/')[2].strip('[]')}]"
    return frame.text


def _counts(report: Report) -> tuple[Counter[str], Counter[str]]:
    """Return (self, total) samples by function; recursion counts once."""
    names = [comparison_name(frame) for frame in report.frames]
    by_self: Counter[str] = Counter()
    by_total: Counter[str] = Counter()
    for stack in report.stacks:
        if stack.frames:
            by_self[names[stack.frames[0]]] += stack.weights[0]
        for name in {names[at] for at in stack.frames}:
            by_total[name] += stack.weights[0]
    return by_self, by_total


def _changes(
    before: Mapping[str, int], after: Mapping[str, int], exposures: tuple[float, float]
) -> tuple[Change, ...]:
    names = sorted({*before, *after})
    pairs = [(before.get(name, 0), after.get(name, 0)) for name in names]
    significant = _significant([_p_value(*pair, exposures) for pair in pairs])
    changes = [_change(*row, exposures) for row in zip(names, pairs, significant, strict=True)]
    return tuple(sorted(changes, key=lambda c: (c.verdict == NOISE, -abs(c.change), c.name)))


def _change(name: str, pair: tuple[int, int], significant: bool, exposures: tuple[float, float]) -> Change:
    shares = [count / exposure if exposure else 0.0 for count, exposure in zip(pair, exposures, strict=True)]
    verdict = NOISE if not significant else GREW if shares[1] > shares[0] else SHRANK
    return Change(name, *pair, shares[0], shares[1], *ratio_interval(*pair, exposures), verdict)


def _p_value(before: int, after: int, exposures: tuple[float, float]) -> float:
    """Return the probability of a difference at least this large when nothing has changed.

    Given the sum, `after` is then binomial; this uses the normal approximation with continuity correction.
    """
    count = before + after
    part = exposures[1] / sum(exposures) if any(exposures) else 0.5  # of all samples, expected in `after`
    deviation = sqrt(count * part * (1 - part))
    if not deviation:
        return 1.0
    return erfc(max(0.0, abs(after - count * part) - 0.5) / deviation / sqrt(2))


def _significant(p_values: list[float]) -> list[bool]:
    """Return which differences are significant (Benjamini and Hochberg 1995)."""
    ranked = sorted(range(len(p_values)), key=p_values.__getitem__)
    rate, count = _FALSE_DISCOVERY_RATE, len(p_values)
    kept = [rank for rank, at in enumerate(ranked, 1) if p_values[at] <= rate * rank / count]
    accepted = set(ranked[: max(kept, default=0)])
    return [at in accepted for at in range(count)]


def ratio_interval(before: int, after: int, exposures: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % interval of share after / share before, from Wilson's interval of a proportion."""
    count = before + after
    if not count or not all(exposures):
        return 0.0, float("inf")
    low, high = _wilson(after, count)
    low_before, high_before = _wilson(before, count)  # not 1 - high: nearly 0 where `after` is far larger
    odds = exposures[0] / exposures[1]
    return low / high_before * odds, high / low_before * odds if low_before else float("inf")


def _wilson(hits: int, count: int) -> tuple[float, float]:
    part, square = hits / count, _Z * _Z
    center = part + square / (2 * count)
    half_width = _Z * sqrt(part * (1 - part) / count + square / (4 * count * count))
    scale = 1 + square / count
    return max(0.0, (center - half_width) / scale), min(1.0, (center + half_width) / scale)
