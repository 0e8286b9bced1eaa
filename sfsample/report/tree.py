"""Builds a call tree: paths that begin alike share nodes.

A node's parent has a smaller number than the node, so that one pass from the last node to the first adds up
totals.  A label is a number in a table that the caller keeps.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

_ROOT = 0


class Tree(NamedTuple):
    """Columns by node; node 0 is the common root.  `ends` has the last node of each path."""

    parents: "array[int]"
    labels: "array[int]"
    ends: list[int]

    def totals(self, weights: Iterable[int]) -> list[int]:
        """Return the weight of each node including its callees, from the weights of the paths."""
        sums = [0] * len(self.parents)
        for end, weight in zip(self.ends, weights, strict=True):
            sums[end] += weight
        for node in range(len(sums) - 1, _ROOT, -1):
            sums[self.parents[node]] += sums[node]
        return sums

    def children(self) -> list[list[int]]:
        """Return the children of each node, in order of first appearance."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, len(self.parents)):
            children[self.parents[node]].append(node)
        return children


def build_tree(paths: Iterable[Iterable[int]]) -> Tree:
    """Return the tree of paths of labels, root first."""
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
