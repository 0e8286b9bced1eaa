"""A call tree: stacks that begin alike share their beginning.

Law: a node's parent comes before it, so that totals are one pass from the end.  Labels are numbers in a
table of the caller's.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

_ROOT = 0


class Tree(NamedTuple):
    """Columns by node; node 0 is the root above all.  `ends` is the node that each path ended at."""

    parents: "array[int]"
    labels: "array[int]"
    ends: list[int]

    def totals(self, weights: Iterable[int]) -> list[int]:
        """Return each node's weight with all that it called, from the weights of the paths."""
        sums = [0] * len(self.parents)
        for end, weight in zip(self.ends, weights, strict=True):
            sums[end] += weight
        for node in range(len(sums) - 1, _ROOT, -1):
            sums[self.parents[node]] += sums[node]
        return sums

    def children(self) -> list[list[int]]:
        """Return each node's children, in order of first appearance."""
        found: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, len(self.parents)):
            found[self.parents[node]].append(node)
        return found


def grow(paths: Iterable[Iterable[int]]) -> Tree:
    """Return the tree of paths, root first."""
    parents, labels = array("l", [_ROOT]), array("l", [-1])
    ends: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for path in paths:
        node = _ROOT
        for label in path:
            key = (node, label)
            child = known.get(key)
            if child is None:
                child = known[key] = len(parents)
                parents.append(node)
                labels.append(label)
            node = child
        ends.append(node)
    return Tree(parents, labels, ends)
