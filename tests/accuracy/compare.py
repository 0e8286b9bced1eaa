"""Compares two stacks of the same state: equal, or where and how they differ.

A stack is its pcs, innermost first.  Only outermost addresses without code, such as the 0 that marks the end,
are ignored: they cannot be frames.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """How the stack of sfsample compares with that of a peer."""

    IDENTICAL = "identical"
    LONGER = "longer"  # the peer's is the inner part of sfsample's
    SHORTER = "shorter"  # sfsample's is the inner part of the peer's
    DIFFERENT = "different"


class Comparison(NamedTuple):
    """The result of a comparison."""

    verdict: Verdict
    common: int  # frames that are equal, from the innermost on


def only_frames(pcs: tuple[int, ...], executable: Callable[[int], bool]) -> tuple[int, ...]:
    """Drop outermost pcs without code.  (Inside a stack there can be some: a call through a wild pointer.)"""
    while len(pcs) > 1 and not executable(pcs[-1] - 1):
        pcs = pcs[:-1]
    return pcs


def compare(own: tuple[int, ...], peer: tuple[int, ...]) -> Comparison:
    """Compare the pcs of sfsample with those of a peer."""
    common = next((i for i, (a, b) in enumerate(zip(own, peer, strict=False)) if a != b), None)
    if common is not None:
        return Comparison(Verdict.DIFFERENT, common)
    common = min(len(own), len(peer))
    if len(own) == len(peer):
        return Comparison(Verdict.IDENTICAL, common)
    return Comparison(Verdict.LONGER if len(own) > len(peer) else Verdict.SHORTER, common)
