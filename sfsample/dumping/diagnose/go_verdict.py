"""Says in a few sentences why goroutines hang, from the waits of all goroutines of a process.

"DEADLOCK" is said only of a ring: each goroutine waits for a lock that only the next one has deferred to
unlock, and none of them has run between two looks.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sfsample.dumping.diagnose.go_waits import LOCK_KINDS, Waiting, names_of, place_of
from sfsample.dumping.diagnose.wait_graph import Node, cycles
from sfsample.dumping.model import ProcessDump

_MAX_FINDINGS = 8  # findings of the same kind
_MAX_HOLDERS = 3  # goroutines whose own state is shown below a finding


class GoFinding(NamedTuple):
    """One sentence of the verdict."""

    kind: str
    text: str
    goroutines: tuple[int, ...]
    lines: tuple[str, ...] = ()


class GoVerdict:
    """Derives findings from the waits of the goroutines of one process."""

    def __init__(self, dump: ProcessDump, waits: Mapping[int, Waiting]) -> None:
        self._unmoved, self._waits = dump.go.unmoved, waits
        self._groups = {member.id: group for group in dump.goroutines for member in group.members}
        edges = {Node(0, goid): Node(0, wait.only) for goid, wait in waits.items()
                 if wait.only is not None and self._may_hang(goid)}  # fmt: skip
        self._rings = [tuple(node.tid for node in cycle) for cycle in cycles(edges)] if edges else []

    def rings(self) -> list[GoFinding]:
        """Return the rings of goroutines that wait for each other, deadlocks first."""
        return sorted(map(self._ring, self._rings), key=lambda finding: finding.kind != "deadlock")

    def _ring(self, ring: tuple[int, ...]) -> GoFinding:
        is_certain = self._unmoved is not None and self._unmoved.issuperset(ring)
        lines = tuple(map(self._sentence, ring))
        if len(ring) == 1:
            # a mutex may have been unlocked by hand, and locked by another goroutine; a Once cannot
            is_certain = is_certain and self._waits[ring[0]].kind == "once"
            text, lines = lines[0], ()
        else:
            text = f"each of {len(ring)} goroutines waits for a lock that the next one has deferred to unlock"
            if is_certain:
                text = f"{len(ring)} goroutines wait for each other, and none can go on"
        kind = "deadlock" if is_certain else "blocked"
        return GoFinding(kind, "DEADLOCK: " * is_certain + text, ring, lines)

    def blocked(self) -> Iterator[GoFinding]:
        """Yield the other waits for locks and WaitGroups, and the waits for ever, most goroutines first."""
        in_rings = {goid for ring in self._rings for goid in ring}
        same: dict[tuple[str, int, str], list[int]] = {}
        for goid, wait in sorted(self._waits.items()):
            is_shown = wait.kind in (*LOCK_KINDS, "wait group") and self._may_hang(goid)
            if goid not in in_rings and (is_shown or wait.kind == "nil channel"):
                place = "" if wait.address else place_of(self._groups[goid].functions)
                same.setdefault((wait.kind, wait.address, place), []).append(goid)
        order = (*LOCK_KINDS, "wait group", "nil channel")
        ordered = sorted(same.items(), key=lambda item: (-len(item[1]), order.index(item[0][0]), item[1]))
        yield from (self._blocked(tuple(goids)) for _, goids in ordered[:_MAX_FINDINGS])
        if len(ordered) > _MAX_FINDINGS:
            yield GoFinding("blocked", f"and {len(ordered) - _MAX_FINDINGS} more such waits", ())

    def _blocked(self, goids: tuple[int, ...]) -> GoFinding:
        wait = self._waits[goids[0]]
        text = self._sentence(goids[0])
        if len(goids) > 1:
            text = f"{len(goids)} goroutines ({names_of(goids).partition(' ')[2]}): each {wait.text}"
        holders = wait.goroutines[:_MAX_HOLDERS] if wait.goroutines != goids else ()
        return GoFinding("blocked", text, (*goids, *wait.goroutines), tuple(map(self._sentence, holders)))

    def _may_hang(self, goid: int) -> bool:
        """Return False for a goroutine that waits for locks, but has run between the looks."""
        return self._unmoved is None or goid in self._unmoved

    def _sentence(self, goid: int) -> str:
        wait, group = self._waits.get(goid), self._groups[goid]
        place = place_of(group.functions)
        predicate = wait.text if wait else f"is in state {group.state}"
        return f"goroutine {goid}{f' in {place}' * bool(place)} {predicate}"
