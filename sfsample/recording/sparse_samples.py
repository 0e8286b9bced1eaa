"""Decides whether much of the CPU time has no sample.

This happens if threads run so briefly that they have left their CPU when sfsample comes to stop them.  It
also happens if threads end before their first sample or soon after it: a sample by a stop stands only for the
CPU time before the stop, and a timer counts only the CPU time of its own thread.
"""

from math import sqrt

_DEVIATIONS = 3  # standard deviations of a count; a larger lack of samples is not by chance


def are_too_few(samples: float, due: float, enough: float) -> bool:
    """Return True if less than the share `enough` (0 to 1) of the due samples is there, and not by chance."""
    return due > 0 and samples < min(enough * due, due - _DEVIATIONS * sqrt(due))
