"""Two stacks of the same state: the same, or where and how they part.

Law: pure.  A stack is its pcs, innermost first; nothing is forgiven but the end marker of the next function.
"""

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


def without_end_marker(pcs: tuple[int, ...]) -> tuple[int, ...]:
    """Drop the outermost frames at address 0: some unwinders show the return address that marks the end."""
    while pcs and pcs[-1] == 0 and len(pcs) > 1:
        pcs = pcs[:-1]
    return pcs


def compare(ours: tuple[int, ...], theirs: tuple[int, ...]) -> Comparison:
    """Compare pcs."""
    ours, theirs = without_end_marker(ours), without_end_marker(theirs)
    common = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if common is not None:
        return Comparison(Verdict.DIFFERENT, common)
    common = min(len(ours), len(theirs))
    if len(ours) == len(theirs):
        return Comparison(Verdict.IDENTICAL, common)
    return Comparison(Verdict.LONGER if len(ours) > len(theirs) else Verdict.SHORTER, common)
