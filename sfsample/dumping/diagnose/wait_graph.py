"""Who waits for whom: cycles, and who is at the end of the chains.

Law: a node waits for at most one other; a process waits when each of its threads does, and is stuck when none
of them waits for somebody who can go on.  A cycle is reported once, from its smallest member on.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Node(NamedTuple):
    """A thread, or with `tid` 0 a process, whichever of its threads may act."""

    pid: int
    tid: int


Edges = Mapping[Node, Node]


def cycles(edges: Edges) -> tuple[tuple[Node, ...], ...]:
    """Return every cycle, each as the nodes in order of waiting."""
    found: dict[Node, tuple[Node, ...]] = {}
    done: set[Node] = set()
    for start in sorted(edges):
        path = list(_follow(start, edges, done))
        end = edges.get(path[-1]) if path else None
        if end is not None and end in path:
            cycle = path[path.index(end) :]
            at = cycle.index(min(cycle))
            found[cycle[at]] = (*cycle[at:], *cycle[:at])
        done.update(path)
    return tuple(found[first] for first in sorted(found))


def _follow(node: Node, edges: Edges, done: set[Node]) -> Iterator[Node]:
    """Yield the nodes from here on, until one that was seen."""
    seen: set[Node] = set()
    while node not in seen and node not in done and node in edges:
        seen.add(node)
        yield node
        node = edges[node]


def holders(edges: Edges) -> dict[Node, tuple[Node, ...]]:
    """Return for each node that waits for nobody who waits for it, directly or behind others."""
    waiting: dict[Node, list[Node]] = {}
    for start in edges:
        *_, last = (start, *_follow(start, edges, set()))
        end = edges[last]
        if end not in edges:
            waiting.setdefault(end, []).append(start)
    return {end: tuple(sorted(starts)) for end, starts in sorted(waiting.items())}


def stuck(edges: Edges) -> frozenset[Node]:
    """Return the nodes that can never go on by themselves: whoever they wait for cannot either.

    A process can go on while one of its threads can.
    """
    held = set(edges)
    while free := {node for node in held if not _is_held(node, edges, held)}:
        held -= free
    return frozenset(held)


def _is_held(node: Node, edges: Edges, held: set[Node]) -> bool:
    if node.tid:
        return edges[node] in held
    return all(other in held for other in edges if other.pid == node.pid and other.tid)


def of_processes(threads: Mapping[Node, Node | None]) -> dict[Node, Node]:
    """Return the edges of threads, and one of each process all of whose threads wait.

    `threads` holds every thread, with None for one that waits for nobody we know.
    """
    edges = {node: target for node, target in threads.items() if target is not None}
    for pid in {node.pid for node in threads}:
        own = sorted(node for node in threads if node.pid == pid)
        if all(node in edges for node in own):
            edges[Node(pid, 0)] = own[0]
    return edges
