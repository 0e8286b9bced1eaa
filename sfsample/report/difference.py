"""What changed between two reports, and what is only noise.

Law: pure arithmetic, explained in docs/diff.md.  Counts are compared, never percentages: a function that was
seen k times of n is known to about the square root of k.  Verdicts allow for how many functions were asked.
"""

from collections import Counter
from collections.abc import Mapping
from math import erfc, sqrt
from typing import NamedTuple

from sfsample.report.report import Report, ReportFrame

_Z = 1.96  # 95 % of a normal distribution
_FALSE_SHARE = 0.05  # of the verdicts other than "noise", at most this share is expected to be wrong
GREW, SHRANK, NOISE = "grew", "shrank", "noise"


class Change(NamedTuple):
    """One function: samples before and after, the ratio of the shares and its 95 % interval."""

    name: str
    before: int
    after: int
    share_before: float  # of one CPU's time, or of all samples
    share_after: float
    low: float
    high: float  # inf: it may be new
    verdict: str

    @property
    def change(self) -> float:
        """The difference of the shares."""
        return self.share_after - self.share_before


class Difference(NamedTuple):
    """All functions, by their own samples and by samples with what they called; the biggest change first.

    `per_time`: shares are of one CPU's time; otherwise (a duration or rate is unknown) of all samples.
    """

    per_time: bool
    exposures: tuple[float, float]  # samples that a share of 1 would be
    whole: Change
    own: tuple[Change, ...]
    total: tuple[Change, ...]


def compare(before: Report, after: Report) -> Difference:
    """Return what changed."""
    ticks = _ticks(before), _ticks(after)
    per_time = all(ticks)
    exposures = ticks if per_time else (float(before.total()), float(after.total()))
    own, total = zip(_counts(before), _counts(after), strict=True)
    [whole] = _changes({"all": before.total()}, {"all": after.total()}, exposures)
    return Difference(per_time, exposures, whole, _changes(*own, exposures), _changes(*total, exposures))


def _ticks(report: Report) -> float:
    """Return how many samples a thread that always ran would have, 0 when that is not known."""
    missed = (report.stats or {}).get("late_ticks")
    due = (report.duration_ns or 0) / 1e9 * (report.rate_hz or 0)
    return max(0.0, due - (missed if isinstance(missed, int) else 0))


def label(frame: ReportFrame) -> str:
    """Return what a frame is compared by: an address without a name means nothing in another build."""
    if frame.function is None and frame.module is not None:
        return f"[{frame.module.rpartition('/')[2].strip('[]')}]"
    return frame.text


def _counts(report: Report) -> tuple[Counter[str], Counter[str]]:
    """Return samples by function: its own, and with what it called (recursion counts once)."""
    labels = [label(frame) for frame in report.frames]
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack in report.stacks:
        if stack.frames:
            own[labels[stack.frames[0]]] += stack.weights[0]
        for name in {labels[at] for at in stack.frames}:
            total[name] += stack.weights[0]
    return own, total


def _changes(
    before: Mapping[str, int], after: Mapping[str, int], exposures: tuple[float, float]
) -> tuple[Change, ...]:
    names = sorted({*before, *after})
    pairs = [(before.get(name, 0), after.get(name, 0)) for name in names]
    real = _discoveries([_chance(*pair, exposures) for pair in pairs])
    found = [_change(*row, exposures) for row in zip(names, pairs, real, strict=True)]
    return tuple(sorted(found, key=lambda one: (one.verdict == NOISE, -abs(one.change), one.name)))


def _change(name: str, pair: tuple[int, int], real: bool, exposures: tuple[float, float]) -> Change:
    shares = [count / whole if whole else 0.0 for count, whole in zip(pair, exposures, strict=True)]
    verdict = NOISE if not real else GREW if shares[1] > shares[0] else SHRANK
    return Change(name, *pair, shares[0], shares[1], *ratio_interval(*pair, exposures), verdict)


def _expected(exposures: tuple[float, float]) -> float:
    """Return which part of the samples would be `after` if nothing had changed."""
    whole = sum(exposures)
    return exposures[1] / whole if whole else 0.5


def _chance(before: int, after: int, exposures: tuple[float, float]) -> float:
    """Return how likely a difference as large as this is when nothing has changed.

    Given the sum, `after` is then binomial; approximated by the normal distribution, with continuity
    correction.
    """
    count, part = before + after, _expected(exposures)
    spread = sqrt(count * part * (1 - part))
    if not spread:
        return 1.0
    return erfc(max(0.0, abs(after - count * part) - 0.5) / spread / sqrt(2))


def _discoveries(chances: list[float]) -> list[bool]:
    """Return which differences are real (Benjamini and Hochberg 1995)."""
    ranked = sorted(range(len(chances)), key=chances.__getitem__)
    kept = [rank for rank, at in enumerate(ranked, 1) if chances[at] <= _FALSE_SHARE * rank / len(chances)]
    real = set(ranked[: max(kept, default=0)])
    return [at in real for at in range(len(chances))]


def ratio_interval(before: int, after: int, exposures: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % interval of share after / share before, from Wilson's interval of a proportion."""
    count = before + after
    if not count or not all(exposures):
        return 0.0, float("inf")
    part, square = after / count, _Z * _Z
    middle = part + square / (2 * count)
    reach = _Z * sqrt(part * (1 - part) / count + square / (4 * count * count))
    scale = 1 + square / count
    low, high = max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
    odds = exposures[0] / exposures[1]
    return low / (1 - low) * odds, high / (1 - high) * odds if before else float("inf")
