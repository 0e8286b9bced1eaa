"""Says whether two times differ by more than two ordinary times do.

An ordinary difference is that of two other periods of the same service, as long and as far apart.  Slices
that follow each other are no replicates: load and phases last for minutes or hours, so a test on slices calls
most pairs of unchanged hours changed.  Pairs of periods have all of that in them.

A function's difference is the logarithm of the ratio of its shares.  Under the hypothesis that nothing has
changed, it divided by the root mean square of n ordinary ones has Student's t distribution with n degrees of
freedom.  The mean is not subtracted: that would hide how one ordinary day differs from the next.

Invariant: in at most 5 % of comparisons of unchanged times a function is said to have changed
(tests/report/test_noise.py, scripts/prove-comparison).
"""

from collections.abc import Sequence
from functools import cache
from math import atan, cos, log, pi, sin, sqrt

LEAST_PAIRS = 3  # fewer ordinary differences: no verdict
_ERROR_RATE = 0.05  # of an interval


def log_ratio(before: float, after: float, exposures: tuple[float, float]) -> float:
    """Return the logarithm of the ratio of two shares; half a sample more keeps it finite."""
    ratio = (after + 0.5) / (before + 0.5)
    return log(ratio * exposures[0] / exposures[1]) if all(exposures) else 0.0


def spread(differences: Sequence[float]) -> float:
    """Return the root mean square of ordinary differences."""
    return sqrt(sum(each * each for each in differences) / len(differences))


def p_value(difference: float, ordinary: Sequence[float]) -> float:
    """Return the probability of an ordinary difference that is at least so large.

    It is 1 where one of those that were seen is as large, whatever their distribution.
    """
    if abs(difference) <= max(map(abs, ordinary)):
        return 1.0
    scale = spread(ordinary)
    return _beyond(abs(difference) / scale, len(ordinary)) if scale else 0.0


def half_width(ordinary: Sequence[float]) -> float:
    """Return by how much an ordinary difference changes the logarithm of a ratio in 95 of 100 cases."""
    return _critical(len(ordinary)) * spread(ordinary)


def _beyond(value: float, freedom: int) -> float:
    """Return the probability that |t| is larger (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
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
    """Return what |t| exceeds with the error rate of an interval."""
    low, high = 0.0, 1e3
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > _ERROR_RATE else (low, middle)
    return high
