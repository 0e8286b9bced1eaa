"""Decides whether two periods of time differ more than two ordinary periods do.

An ordinary difference is the difference between two other periods of the same service, as long and as far
apart as the compared periods.  (Differences between single slices would be too small, because the load and
the phases of a service last for minutes or hours.)

The difference of a function is the logarithm of the ratio of its shares.  This difference is divided by the
root mean square of n ordinary differences.  If nothing has changed, the quotient has Student's t distribution
with n degrees of freedom.  The mean is not subtracted, because it is a part of ordinary differences.

Invariant: if nothing has changed, at most 5 % of comparisons say that a function has changed
(tests/report/test_noise.py, scripts/prove-comparison).
"""

from collections.abc import Sequence
from functools import cache
from math import atan, cos, erfc, log, pi, sin, sqrt

LEAST_PAIRS = 3  # ordinary differences that a verdict needs
ENOUGH_PAIRS = 8  # ordinary differences that Student's t needs
FEW_FACTOR = 4  # with fewer pairs, a change must be 4 times as large as the largest ordinary difference
_FAR = erfc(10 / sqrt(2))  # probability of a difference beyond ten standard deviations of a count
_ERROR_RATE = 0.05  # share of intervals that miss the true value


def log_ratio(before: float, after: float, exposures: tuple[float, float]) -> float:
    """Return the logarithm of the ratio of two shares; both counts get half a sample more, to avoid 0."""
    ratio = (after + 0.5) / (before + 0.5)
    return log(ratio * exposures[0] / exposures[1]) if all(exposures) else 0.0


def spread(differences: Sequence[float]) -> float:
    """Return the root mean square of ordinary differences."""
    return sqrt(sum(each * each for each in differences) / len(differences))


def largest(ordinary: Sequence[float]) -> float:
    """Return the absolute value of the largest ordinary difference."""
    return max(map(abs, ordinary))


def p_value(difference: float, ordinary: Sequence[float], chance: float) -> float:
    """Return the probability of a difference of this size if nothing has changed.

    `chance`: the probability that the samples differ so much by chance alone.
    """
    if len(ordinary) < ENOUGH_PAIRS:
        return chance if abs(difference) > half_width(ordinary) and chance < _FAR else 1.0
    if abs(difference) <= largest(ordinary):
        return 1.0
    scale = spread(ordinary)
    return max(chance, _beyond(abs(difference) / scale, len(ordinary)) if scale else 0.0)


def half_width(ordinary: Sequence[float]) -> float:
    """Return the bound that 95 of 100 ordinary differences (logarithms of ratios) do not exceed."""
    if len(ordinary) < ENOUGH_PAIRS:
        return FEW_FACTOR * largest(ordinary)
    return _critical(len(ordinary)) * spread(ordinary)


def _beyond(value: float, freedom: int) -> float:
    """Return the probability that |t| exceeds `value` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(value / sqrt(freedom))
    square, odd = cos(angle) ** 2, freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for at in range(2 + odd, freedom, 2):
        term *= square * (at - 1) / at
        total += term
    inside = (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total
    return max(0.0, 1.0 - inside)


@cache
def _critical(freedom: int) -> float:
    """Return the critical value of |t| for the error rate."""
    low, high = 0.0, 1e3
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > _ERROR_RATE else (low, middle)
    return high
