"""Why does it hang: a few sentences, the gravest first.

Law: each sentence follows from what was seen and says no more; when nothing is wrong, it says what the main
thread does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from sfsample.dumping.collect import ProcessDump
from sfsample.dumping.diagnose.glibc_locks import Others, is_since_2_25
from sfsample.dumping.diagnose.groups import common_name
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait import Scene, Wait
from sfsample.dumping.diagnose.wait_graph import Node, cycles, holders, of_processes, stuck
from sfsample.dumping.diagnose.waits import wait_of
from sfsample.dumping.diagnose.wording import Words
from sfsample.modules.module import Module

ProcessSet = Sequence[tuple[ProcessDump, tuple[NamedThread, ...]]]

_BUSY = 0.8  # of the time: a thread that wants a processor for so long does nothing but run
_NEAR = 2  # calls below the function that goes on
_OWNED = ("mutex", "read lock", "write lock", "barrier")
_ON_SOCKETS = ("read", "write", "connect")
# waits that are nobody's work to do, and not for another thread
_OUTSIDE = ("kernel", "vfork", "stopped", "file lock", "full pipe", "connect", "name resolution", "write",
            "database lock", "once")  # fmt: skip


class Finding(NamedTuple):
    """One sentence; `kind` for scripts, `nodes` the threads that it speaks of, `lines` details."""

    kind: str
    text: str
    nodes: tuple[Node, ...]
    lines: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """What was found, the gravest first; what each thread waits for; and how things are called."""

    findings: tuple[Finding, ...]
    waits: Mapping[Node, Wait | None]
    words: Words

    def culprits(self, pid: int) -> tuple[int, ...]:
        """Return the threads of a process that the findings speak of, in their order."""
        nodes = (node for finding in self.findings for node in finding.nodes if node.pid == pid)
        return tuple(dict.fromkeys(node.tid for node in nodes))


def judge(processes: ProcessSet) -> Verdict:
    """Work out who waits for whom, over all processes that were looked at."""
    threads = {Node(one.pid, one.tid): one for _, threads in processes for one in threads}
    waits = {node: wait for dump, threads in processes for node, wait in _waits(dump, threads)}
    names = {dump.pid: dump.name for dump, _ in processes}
    others = {pid: name for dump, _ in processes for pid, name in (*dump.others, *dump.children)}
    words = Words(threads, waits, names, others)
    return Verdict(tuple(_Court(words).findings()), waits, words)


def _waits(dump: ProcessDump, threads: tuple[NamedThread, ...]) -> Iterator[tuple[Node, Wait | None]]:
    tids = {thread.dump.ns_tid: thread.tid for thread in threads}
    words = Counter(call.syscall.args[0] for t in threads if (call := t.dump.call) and call.name == "futex")
    modules = {module for thread in dump.threads for module in thread.modules if module}
    scene = Scene(dump, tids, Others(tids, words, bool(words) and is_since_2_25(modules)),
                  cache(lambda address: _variable(modules, address)))  # fmt: skip
    for thread in threads:
        yield Node(dump.pid, thread.tid), wait_of(thread, scene)


def _variable(modules: Iterable[Module], address: int) -> str | None:
    from sfsample.symbolize.variables import variable_at

    return variable_at(modules, address)


class _Court:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._threads, self._waits = words.threads, words.waits
        self._edges = of_processes({node: _target(node, wait) for node, wait in self._waits.items()})
        held = stuck(self._edges)
        self._cycles = [
            cycle for cycle in cycles(self._edges) if held.issuperset(cycle) and self._at_once(cycle)
        ]

    def findings(self) -> Iterator[Finding]:
        grave = [*self._deadlocks(), *self._holders(), *self._orphaned(), *self._spinning(), *self._outside()]
        yield from grave
        told = {node for finding in grave for node in finding.nodes}
        for pid in self._words.looked_at:
            main = Node(pid, pid)
            if main in self._threads and main not in told:
                moves = "; it ran between the looks" * (self._threads[main].dump.moving is True)
                yield Finding("main", self._words.sentence(main) + moves, (main,))

    # -- who waits for whom

    def _at_once(self, cycle: Sequence[Node]) -> bool:
        """Whether all of them slept at one instant: they are looked at one after the other.

        Two that only take turns, each seen while it waits for the other, are no deadlock.
        """
        pids = {node.pid for node in cycle if not node.tid}
        spans = [thread.dump.asleep for node, thread in self._threads.items()
                 if node in cycle or node.pid in pids]  # fmt: skip
        known = [span for span in spans if span is not None]
        return len(known) == len(spans) and max(known)[0] <= min(end for _, end in known)

    def _deadlocks(self) -> Iterator[Finding]:
        for cycle in self._cycles:
            threads = tuple(node for node in cycle if node in self._threads)
            pids = {node.pid for node in threads}
            who = f"{len(threads)} threads" if len(pids) == 1 else f"{len(pids)} processes"
            text = f"DEADLOCK: {who} wait for each other, {self._end(threads)}"
            if len(threads) == 1:
                text = f"DEADLOCK: {self._words.who(threads[0])} waits for a lock that it holds itself"
            yield Finding("deadlock", text, threads, tuple(map(self._words.sentence, threads)))

    def _end(self, threads: Iterable[Node]) -> str:
        waits = [wait for node in threads if (wait := self._waits[node]) is not None]
        if any(wait.timed for wait in waits):
            return "until one gives up: there is a time-out"
        sockets = any(wait.kind in _ON_SOCKETS for wait in waits)  # SO_RCVTIMEO is not to be seen
        return f"and none can go on{', unless a socket has a time-out of its own' * sockets}"

    def _holders(self) -> Iterator[Finding]:
        """Yield who is at the end of the chains, those with most waiting behind them first."""
        known = {node for cycle in self._cycles for node in cycle}
        ends = [(end, tuple(node for node in behind if self._matters(node)))
                for end, behind in holders(self._edges).items() if end not in known]  # fmt: skip
        for end, behind in sorted(ends, key=lambda pair: (-len(pair[1]), pair[0])):
            if behind:
                yield self._holder(end, behind)

    def _matters(self, node: Node) -> bool:
        wait = self._waits.get(node)
        return wait is not None and not wait.idle

    def _holder(self, end: Node, behind: tuple[Node, ...]) -> Finding:
        words = self._words
        if len(behind) == 1:
            text = words.sentence(behind[0])
        else:
            names = common_name([self._threads[node].dump.name for node in behind])
            text = f"{len(behind)} threads ({names}) wait for {words.who(end)}: {self._things(end, behind)}"
        doing = (f"{words.sentence(end)}",) if end in self._threads else ()
        return Finding("blocked", text, (end, *behind), doing)

    def _things(self, end: Node, behind: tuple[Node, ...]) -> str:
        """Say what they wait for, most of them first; those at one remove wait for one of the others."""
        direct = [
            wait for node in behind if self._edges[node] == end and (wait := self._waits[node]) is not None
        ]
        counts = Counter("its end" if wait.kind == "thread" else wait.what for wait in direct)
        told = [
            what if number == len(behind) else f"{number} for {what}" for what, number in counts.most_common()
        ]
        others = len(behind) - len(direct)
        return ", ".join([*told, *([f"{others} behind them"] if others else [])])

    def _orphaned(self) -> Iterator[Finding]:
        """Yield threads that wait for a lock whose owner is not to be known, or has ended."""
        for node, wait in self._waits.items():
            if wait is not None and wait.kind in _OWNED and wait.tid is None:
                yield Finding("blocked", self._words.sentence(node), (node,))

    # -- threads by themselves

    def _spinning(self) -> Iterator[Finding]:
        for node, thread in self._threads.items():
            busy, looks = thread.dump.busy, thread.dump.looks
            if busy is not None and busy >= _BUSY and all(look.state == "R" for look in looks):
                what = f"ran, or wanted to, {min(busy, 1):.0%} of the time between {len(looks)} looks"
                yield Finding("spinning", f"{self._words.who(node)} {_loop(thread)}: {what}", (node,))

    def _outside(self) -> Iterator[Finding]:
        """Yield threads that wait for something outside of the process; the same thing together."""
        same: dict[tuple[int, str, str], list[Node]] = {}
        for node, wait in self._waits.items():
            if wait is not None and wait.kind in _OUTSIDE and node not in self._edges:
                same.setdefault((node.pid, wait.kind, wait.what), []).append(node)
        for (_, kind, _), nodes in sorted(same.items(), key=lambda item: (-len(item[1]), item[1])):
            text = self._words.sentence(nodes[0])
            if len(nodes) > 1:
                names = common_name([self._threads[node].dump.name for node in nodes])
                every = sum(node.pid == nodes[0].pid for node in self._threads) == len(nodes)
                who = self._words.process(nodes[0].pid) if every else f"{len(nodes)} threads ({names}): each"
                text = f"{who} {self._words.doing(nodes[0])}"
            yield Finding(kind, text, tuple(nodes))


def _target(node: Node, wait: Wait | None) -> Node | None:
    """Return who has to act, where it is one that is known."""
    if wait is None:
        return None
    if wait.tid is not None:
        return Node(node.pid, wait.tid)
    if wait.idle and wait.timed:
        return None  # it looks around now and then: that is how servers wait for work
    return Node(wait.pids[0], 0) if len(wait.pids) == 1 and wait.pids[0] != node.pid else None


def _loop(thread: NamedThread) -> str:
    """Say where it is busy: in the innermost activation of a function that every look saw."""
    stacks = [look.stack.frames for look in thread.dump.looks if look.stack]
    if len(stacks) < 2 or thread.dump.stack is None:
        return f"is busy in {_place(thread, 0)}"
    kept = set.intersection(*({frame.cfa for frame in frames} for frames in stacks)) - {None}
    depth = next((at for at, frame in enumerate(thread.dump.stack.frames) if frame.cfa in kept), None)
    if depth is None or depth > _NEAR:
        return f"is busy in {_place(thread, depth or 0)}"
    return f"spins in {_place(thread, depth)}"


def _place(thread: NamedThread, depth: int) -> str:
    """Return the program's own functions at a frame, or what else there is to tell where that is."""
    unnamed = thread.frames[depth][0].text if depth < len(thread.frames) else "code that could not be seen"
    return thread.way(depth) or unnamed
