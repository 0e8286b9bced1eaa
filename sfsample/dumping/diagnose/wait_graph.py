"""Finds cycles in the graph of waits, and the threads and processes at the ends of chains of waits.

A node waits for at most one other node.  A process waits if all its threads wait, and is stuck if all its
threads are stuck.  A cycle is reported once, beginning at its smallest node.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Node(NamedTuple):
    """A thread; or a process (`tid` 0), if any thread of the process may act."""

    pid: int
    tid: int


Edges = Mapping[Node, Node]  # waiting node -> awaited node


def cycles(edges: Edges) -> tuple[tuple[Node, ...], ...]:
    """Return every cycle as a tuple, in which each node waits for the next node."""
    found: set[tuple[Node, ...]] = set()
    for start in edges:
        path = chain(start, edges)
        if path[-1] in edges:
            cycle = path[path.index(edges[path[-1]]) :]
            smallest = cycle.index(min(cycle))
            found.add((*cycle[smallest:], *cycle[:smallest]))
    return tuple(sorted(found))


def chain(start: Node, edges: Edges) -> tuple[Node, ...]:
    """Return the nodes from `start` along the waits, to a node that does not wait, or once around a cycle."""
    path, node = {start: None}, edges.get(start)
    while node is not None and node not in path:
        path[node], node = None, edges.get(node)
    return tuple(path)


def blockers(edges: Edges) -> dict[Node, tuple[Node, ...]]:
    """Return each node that does not wait, with all nodes that wait for this node, directly or indirectly."""
    behind: dict[Node, list[Node]] = {}
    for start in edges:
        end = chain(start, edges)[-1]
        if end not in edges:
            behind.setdefault(end, []).append(start)
    return {end: tuple(sorted(starts)) for end, starts in sorted(behind.items())}


def stuck(edges: Edges) -> frozenset[Node]:
    """Return the nodes that can never go on, because they wait for nodes that can never go on."""
    candidates = set(edges)

    def is_held(node: Node) -> bool:
        if node.tid:
            return edges[node] in candidates
        return all(other in candidates for other in edges if other.pid == node.pid and other.tid)

    while free := {node for node in candidates if not is_held(node)}:
        candidates -= free
    return frozenset(candidates)


def mutual(needs: Mapping[Node, Collection[Node]]) -> frozenset[Node]:
    """Return the largest group in which each node needs only members, and at least one member needs it.

    `needs[node]`: the nodes that may end the wait of `node`.
    """
    group = {node for node, others in needs.items() if others}
    while out := {node for node in group if not group.issuperset(needs[node])}:
        group -= out
    while out := group.difference(*(needs[node] for node in group)):
        group -= out
    return frozenset(group)


def with_processes(threads: Mapping[Node, Node | None]) -> dict[Node, Node]:
    """Return the edges of threads (None: no edge), and an edge for each process whose threads all wait."""
    edges = {node: target for node, target in threads.items() if target is not None}
    for pid in {node.pid for node in threads}:
        own = sorted(node for node in threads if node.pid == pid)
        if all(node in edges for node in own):
            edges[Node(pid, 0)] = own[0]
    return edges
