"""Tells whether much of the CPU time has no sample.

So it is where threads run so briefly that they have left their CPU when sfsample comes to stop them, and
where they end before a sample is taken, or soon after: a sample by a stop stands only for the CPU time until
then, and a timer counts the CPU time of its own thread.
"""

from math import sqrt

_DEVIATIONS = 3  # standard deviations of a count: fewer samples are not by chance


def are_too_few(samples: float, due: float, enough: float) -> bool:
    """Return whether there are less than `enough` (0 to 1) of the samples that are due, and not by chance."""
    return due > 0 and samples < min(enough * due, due - _DEVIATIONS * sqrt(due))
