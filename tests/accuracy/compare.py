"""Two stacks of the same state: the same, or where and how they part.

Law: pure.  A stack is its pcs, innermost first.  Nothing is forgiven but what cannot be a frame: outermost
addresses at which no code is, such as the 0 that marks the end.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """Ours against another's."""

    IDENTICAL = "identical"
    LONGER = "longer"  # theirs is the inner part of ours
    SHORTER = "shorter"  # ours is the inner part of theirs
    DIFFERENT = "different"


class Comparison(NamedTuple):
    """`common` frames from the innermost on are the same."""

    verdict: Verdict
    common: int


def only_frames(pcs: tuple[int, ...], executable: Callable[[int], bool]) -> tuple[int, ...]:
    """Drop outermost pcs that no code is at.  (Inside a stack they can be: a call through a wild pointer.)"""
    while len(pcs) > 1 and not executable(pcs[-1] - 1):
        pcs = pcs[:-1]
    return pcs


def compare(ours: tuple[int, ...], theirs: tuple[int, ...]) -> Comparison:
    """Compare pcs."""
    common = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if common is not None:
        return Comparison(Verdict.DIFFERENT, common)
    common = min(len(ours), len(theirs))
    if len(ours) == len(theirs):
        return Comparison(Verdict.IDENTICAL, common)
    return Comparison(Verdict.LONGER if len(ours) > len(theirs) else Verdict.SHORTER, common)
