"""Says in a few sentences why a process hangs, the gravest finding first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sfsample.core.quantities import counted
from sfsample.core.wait_kind import WaitKind
from sfsample.dumping.diagnose.go_waits import GoVerdict, GoWaits, Waiting
from sfsample.dumping.diagnose.named_thread import GOEXIT, NamedThread, own_function, python_path
from sfsample.dumping.diagnose.wait_graph import Node, blockers, chain, cycles, mutual, stuck, with_processes
from sfsample.dumping.diagnose.wording import Finding, Wording, common_name, task_edges, task_text
from sfsample.dumping.model import ProcessDump
from sfsample.runtimes.cpython.waits import MAX_QUEUED, Pool
from sfsample.symbolize.named_frame import python_frame
from sfsample.waiting.thread import WaitContext, is_file, slept_together
from sfsample.waiting.waits import Wait, wait_of

ProcessSet = Sequence[tuple[ProcessDump, tuple[NamedThread, ...]]]

_MIN_BUSY_SHARE = 0.8  # a busy thread ran, or waited for a CPU, for at least this share of the time
_MAX_CHAIN = 8  # threads that a sentence on a chain of waits names
_MAX_CALLS_INSIDE = 2  # calls inside a function; with more calls, the thread "is busy" there, else "runs"
# Kinds of waits that are findings if the owner is unknown or has ended.
_LOCK_KINDS = (WaitKind.MUTEX, WaitKind.READ_LOCK, WaitKind.WRITE_LOCK, WaitKind.BARRIER)
_SOCKET_KINDS = (WaitKind.READ, WaitKind.WRITE, WaitKind.CONNECT)
# Kinds of waits that are always findings: only another process, or an unknown thread, can end such a wait.
_OUTSIDE_KINDS = (
    WaitKind.KERNEL, WaitKind.VFORK, WaitKind.STOPPED, WaitKind.FILE_LOCK, WaitKind.FULL_PIPE,
    WaitKind.CONNECT, WaitKind.NAME_RESOLUTION, WaitKind.WRITE, WaitKind.DATABASE_LOCK, WaitKind.ONCE,
    WaitKind.LOCK, WaitKind.RLOCK, WaitKind.OPEN_FIFO, WaitKind.QUEUE,
)  # fmt: skip
# Tools for runtimes whose own threads or tasks a dump does not show; {} is the process id.  sfsample finds
# the runtime by files and functions on the stacks, because a program can choose its own name.
_TOOL_BY_FILE = {  # key: prefix of the file's name
    "libjvm.so": "Java's locks and frames are not shown: jcmd {} Thread.print shows both (kill -QUIT {} "
    "prints both on the JVM's stdout, unless the JVM runs with -Xrs)",
    "libcoreclr.so": ".NET's frames are not shown: dotnet-stack report -p {} shows frames",
    "beam.": "Erlang's processes are not shown: a remote shell lists them (erl -remsh NODE, then i().)",
}
_TOOL_BY_FUNCTION = {  # key: prefix of the function's name
    "node::": "JavaScript is not shown: node inspect -p {} opens a debugger; enter pause there, then bt",
    "runtime.mstart": "goroutines could not be read: kill -QUIT {} prints them, but it ENDS the program",
}
# Kinds of findings that are certain in every runtime.  (Waits of a runtime's native threads may be normal.)
_CERTAIN_KINDS = ("signal", "deadlock", "likely deadlock", "spinning")


class Verdict(NamedTuple):
    """The findings (the gravest first), the waits of all threads, the names of threads and processes."""

    processes: ProcessSet  # processes that the user named, and followed processes that are in a deadlock
    findings: tuple[Finding, ...]
    waits: Mapping[Node, Wait | None]
    wording: Wording
    goroutine_waits: Mapping[int, Mapping[int, Waiting]] = {}  # key: process id, then goroutine id

    @property
    def document(self) -> dict[str, Any]:
        """The document that `sfsample dump --json` writes."""
        from sfsample.dumping.json import document  # `dumping.json` imports this module

        return document(self)


def judge(processes: ProcessSet) -> Verdict:
    """Find out which thread waits for which other thread, in all dumped processes."""
    threads = {Node(thread.pid, thread.tid): thread for _, threads in processes for thread in threads}
    waits = {node: wait for dump, threads in processes for node, wait in _waits(dump, threads)}
    names = {dump.pid: dump.name for dump, _ in processes}
    others = {pid: name for dump, _ in processes for pid, name in (*dump.others, *dump.children)}
    asked = frozenset(dump.pid for dump, _ in processes if not dump.followed)
    wording = Wording(threads, waits, names, others, asked)
    of_go = [(dump, own) for dump, own in processes if dump.goroutines]
    go_waits = {dump.pid: GoWaits(dump).find() for dump, _ in of_go}
    go = {dump.pid: GoVerdict(dump, go_waits[dump.pid], own) for dump, own in of_go}
    findings = [finding for verdict in go.values() for finding in verdict.rings()]
    findings += [finding for verdict in go.values() for finding in verdict.stopped()]
    findings += [finding for verdict in go.values() for finding in verdict.blocked()]
    of_threads = _VerdictBuilder(wording).findings()
    findings += [f for f in of_threads if f.kind != "main" or f.nodes[0].pid not in go]
    findings += [verdict.census() for verdict in go.values()]
    told = [f for f in findings if f.kind == "deadlock" or not asked.isdisjoint(node.pid for node in f.nodes)]
    shown = asked.union(node.pid for f in told if f.kind == "deadlock" for node in f.nodes)
    pairs = [pair for pair in processes if pair[0].pid in shown]
    unseen = [finding for dump, threads in pairs for finding in _missing_tools(dump, threads)]
    certain = [finding for finding in told if finding.kind in _CERTAIN_KINDS]
    rest = [finding for finding in told if finding.kind not in _CERTAIN_KINDS]
    return Verdict(pairs, (*certain, *unseen, *rest), waits, wording, go_waits)


def _missing_tools(dump: ProcessDump, threads: Iterable[NamedThread]) -> Iterator[Finding]:
    """Yield a finding if sfsample does not show the threads or tasks of the process's runtime."""
    rows = [row for thread in threads for row in thread.rows()]
    files = {module.path for _, module, _ in rows if module}
    functions = {name.function or "" for _, _, names in rows for name in names if not dump.goroutines}
    found = [text for start, text in _TOOL_BY_FILE.items() if any(is_file(path, (start,)) for path in files)]
    found += [
        text for start, text in _TOOL_BY_FUNCTION.items() if any(f.startswith(start) for f in functions)
    ]
    for text in found[:1]:
        yield Finding("runtime", text.format(dump.pid, dump.pid), (Node(dump.pid, dump.pid),))


def _waits(dump: ProcessDump, threads: tuple[NamedThread, ...]) -> Iterator[tuple[Node, Wait | None]]:
    tids = {thread.dump.ns_tid: thread.tid for thread in threads}
    sleepers = Counter(c.syscall.args[0] for t in threads if (c := t.dump.call) and c.name == "futex")
    modules = {module for thread in dump.threads for module in thread.modules if module}

    @cache
    def name_variable(address: int) -> str | None:
        from sfsample.symbolize.variables import variable_at

        return variable_at(modules, address)

    waiting = [thread.waiting for thread in threads]
    context = WaitContext(
        dump.pid, dump.cmdline, waiting, tids, sleepers, name_variable,
        dump.tracer, dump.stop_signal, dump.children, dump.locks, dump.peers,
    )  # fmt: skip
    for thread in waiting:
        yield Node(dump.pid, thread.tid), wait_of(thread, context)


class _VerdictBuilder:
    """Derives findings from the waits of all threads."""

    def __init__(self, wording: Wording) -> None:
        self._wording = wording
        self._threads = wording.threads
        self._waits = {node: wait for node, wait in wording.waits.items() if wait is not None}
        targets = {node: _target(node, wait) for node, wait in self._waits.items()}
        self._edges = with_processes({node: targets.get(node) for node in wording.waits})
        held = stuck(self._edges)
        certain = (cycle for cycle in cycles(self._edges) if held.issuperset(cycle))
        self._cycles = [cycle for cycle in certain if self._at_one_instant(cycle)]
        self._likely = list(filter(None, map(self._likely_deadlock, wording.dumped)))
        self._suspects = {node for finding in self._likely for node in finding.nodes}

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, the gravest first."""
        grave = [*self._crashed(), *self._deadlocks(), *self._tasks(), *self._likely, *self._blocked(),
                 *self._pools(), *self._alone(_LOCK_KINDS), *self._spinning(),
                 *self._alone(_OUTSIDE_KINDS)]  # fmt: skip
        named = {node for finding in grave for node in finding.nodes}
        loops = filter(self._wording.blocks_loop, self._threads.keys() - named)
        grave += [Finding("event loop", self._sentence(node), (node,)) for node in sorted(loops)]
        yield from grave
        named = {node for finding in grave for node in finding.nodes}
        for pid in self._wording.dumped:
            # the main thread comes first, if it has not ended
            own = sorted((node.tid != pid, node) for node in self._threads if node.pid == pid)
            for has_ended, node in [pair for pair in own[:1] if pair[1] not in named]:
                moves = "; it ran between the looks" * (self._threads[node].dump.moving is True)
                text = "the main thread has ended; " * has_ended + self._sentence(node) + moves
                yield Finding("main", text, (node,))

    def _sentence(self, node: Node) -> str:
        """Return a sentence about a thread, and about its chain of waits if the chain is certain."""
        path = chain(node, self._edges)
        is_told = path[-1] not in self._edges and self._is_certain(path)
        return self._wording.chain(path if is_told else path[:1])

    def _is_certain(self, path: Sequence[Node]) -> bool:
        """Return True if the waits of a chain existed at one instant, and fit into a sentence."""
        return len(path) <= 2 or (len(path) <= _MAX_CHAIN and self._at_one_instant(path[:-1]))

    def _at_one_instant(self, cycle: Sequence[Node]) -> bool:
        """Return True if all threads of a cycle, and of the processes in the cycle, slept at one instant."""
        pids = {node.pid for node in cycle if not node.tid}
        threads = self._threads.items()
        return slept_together([t.dump.asleep for node, t in threads if node in cycle or node.pid in pids])

    def _crashed(self) -> Iterator[Finding]:
        """Yield a finding for the thread that got the fatal signal, unless it is the main thread."""
        for node, thread in self._threads.items():
            if thread.dump.signal and node.tid != node.pid:
                yield Finding("signal", self._wording.sentence(node), (node,))

    def _deadlocks(self) -> Iterator[Finding]:
        ends = {node: chain(node, self._edges)[-1] for node in sorted(self._edges)}
        for cycle in self._cycles:
            threads = tuple(node for node in cycle if node in self._threads)
            pids = {node.pid for node in threads}
            members = f"{len(threads)} threads" if len(pids) == 1 else f"{len(pids)} processes"
            waits = [self._waits[node] for node in threads]
            outlook = "and none can go on"
            if any(wait.timed for wait in waits):
                outlook = "until one gives up: there is a time-out"
            elif any(wait.kind in _SOCKET_KINDS for wait in waits):  # SO_RCVTIMEO cannot be seen
                outlook += ", unless a socket has a time-out of its own"
            text = f"DEADLOCK: {members} wait for each other, {outlook}"
            if len(threads) == 1:
                subject = self._wording.subject(threads[0])
                is_result = self._waits[threads[0]].kind is WaitKind.FUTURE
                what = "result that only it can compute" if is_result else "lock that it holds itself"
                text = f"DEADLOCK: {subject} waits for a {what}"
            behind = [node for node, end in ends.items() if end in cycle and node not in cycle]
            text += self._behind(behind, "it" if len(threads) == 1 else "them")
            yield Finding("deadlock", text, threads, tuple(map(self._wording.sentence, threads)))

    def _behind(self, nodes: Iterable[Node], pronoun: str = "them") -> str:
        """Return a clause about the threads that wait behind a chain or a cycle; "": no such threads."""
        waiting = [self._threads[node].dump.name for node in nodes if node in self._threads]
        count = f"{len(waiting)} more thread{'s wait' if len(waiting) > 1 else ' waits'} behind {pronoun}"
        return f"; {count} ({common_name(waiting)})" if waiting else ""

    def _tasks(self) -> Iterator[Finding]:
        for node, thread in self._threads.items():
            tasks = {task.address: task for task in thread.dump.facts.tasks}
            for nodes in cycles(task_edges(thread.dump.facts.tasks)):
                cycle = [tasks[node.tid] for node in nodes]
                members = f"{len(cycle)} asyncio tasks wait for each other"
                if len(cycle) == 1:
                    members = f"asyncio task {cycle[0].name} waits for itself"
                lines = tuple(
                    f"task {t.name} {task_text(t)}, in {python_path([*map(python_frame, t.stack)])}"
                    for t in cycle
                )
                where = f"in {self._wording.subject(node)}"
                text = f"DEADLOCK: {members} {where}, and none can go on unless one is cancelled"
                yield Finding("deadlock", text, (node,), lines)

    def _likely_deadlock(self, pid: int) -> Finding | None:
        """Return a finding if threads wait only for each other, or for Locks that only these threads use.

        A Lock notes no owner.  Any thread that uses a Lock, and does not wait for it, may release the Lock.
        """
        threads = {node: thread.dump.facts for node, thread in self._threads.items()
                   if node.pid == pid and thread.dump.python}  # fmt: skip
        needs = {node: {self._edges[node]} for node in threads if node in self._edges}
        by_lock = {node: facts.wait.address for node, facts in threads.items()
                   if facts.wait and facts.wait.kind is WaitKind.LOCK and node not in needs}  # fmt: skip
        for node, lock in by_lock.items():
            needs[node] = {other for other, facts in threads.items()
                           if lock in (facts.uses or ()) and by_lock.get(other) != lock}  # fmt: skip
        group = sorted(mutual(needs))
        is_seen = all(thread.dump.stack for node, thread in self._threads.items() if node.pid == pid)
        is_known = is_seen and all(facts.uses is not None for facts in threads.values())
        if not (is_known and by_lock.keys() & group and self._at_one_instant(group)):
            return None
        others = "" if by_lock.keys() >= {*group} else "each other, or for "
        text = f"DEADLOCK is likely: {len(group)} threads wait for {others}Locks that only they use"
        text += ", until one gives up: there is a time-out" * any(self._waits[node].timed for node in group)
        text += self._behind(sorted(node for node in by_lock.keys() - {*group} if {*group} & needs[node]))
        return Finding("likely deadlock", text, tuple(group), tuple(map(self._wording.sentence, group)))

    def _blocked(self) -> Iterator[Finding]:
        """Yield a finding for each end of a chain of waits; the end with most waiting threads comes first."""
        known = {node for cycle in self._cycles for node in cycle}
        matter = {node for node, wait in self._waits.items() if not wait.is_usual} - self._suspects
        ends = [(end, tuple(node for node in nodes if node in matter))
                for end, nodes in blockers(self._edges).items() if end not in known]  # fmt: skip
        for end, waiting in sorted(ends, key=lambda pair: (-len(pair[1]), pair[0])):
            if waiting:
                yield self._blocked_by(end, waiting)

    def _blocked_by(self, end: Node, waiting: tuple[Node, ...]) -> Finding:
        paths = sorted((chain(node, self._edges) for node in waiting), key=len)
        first = next((path for path in paths if path[0].tid == path[0].pid), paths[-1])
        # the wait of the last thread may be usual, and tell nothing: then the others wait for this thread
        end, direct = next((each, nodes) for each in reversed(first)
                           if (nodes := [node for node in waiting if self._edges[node] == each]))  # fmt: skip
        if len(direct) > 1 or not self._is_certain(first):
            subject, does = self._wording.subject(end), self._wording.predicate(end)
            waits = [self._waits[node] for node in direct]
            whats = ["the end of a thread" if wait.kind is WaitKind.THREAD else wait.what for wait in waits]
            objects = Counter(whats).most_common()
            shown = [f"{what} ({counted(number, 'thread')})" if len(objects) > 1 else what
                     for what, number in objects]  # fmt: skip
            behind = f", {len(waiting) - len(direct)} of them behind others," * (len(direct) < len(waiting))
            text = f"{', '.join(shown)}: {self._subjects(waiting)}{behind} wait for {subject}"
            text += f", which {does}" * bool(does)
        else:
            text = self._wording.chain(first) + self._behind({*waiting} - {*first})
            main = Node(end.pid, end.tid or end.pid)  # the sentence says what this thread does
            end = main if main in self._threads else end
        return Finding("blocked", text, (end, *waiting))

    def _subjects(self, nodes: Sequence[Node]) -> str:
        return f"{len(nodes)} threads ({common_name([self._threads[node].dump.name for node in nodes])})"

    def _pools(self) -> Iterator[Finding]:
        """Yield a finding for each executor that has queued calls while all its threads are busy."""
        pools: dict[tuple[int, Pool], list[Node]] = {}
        for node, thread in self._threads.items():
            facts = thread.dump.facts
            if facts.pool and facts.pool.pending and facts.runs:
                pools.setdefault((node.pid, facts.pool), []).append(node)
        known = {node for cycle in self._cycles for node in cycle}
        for (_, pool), nodes in pools.items():
            threads, count = [self._threads[node] for node in nodes], len(pool.pending)
            is_full = len(nodes) == pool.workers and slept_together([t.dump.asleep for t in threads])
            if is_full and known.isdisjoint(nodes):
                calls = f"{count} calls wait" if count > 1 else "1 call waits"
                calls = f"at least {calls}" if count >= MAX_QUEUED else calls
                workers = f"{pool.workers} threads, all" if pool.workers > 1 else "1 thread,"
                functions = [own_function(thread.python) for thread in threads]
                text = f"{calls} for a pool of {workers} in {common_name(functions)}"
                yield Finding("blocked", text, tuple(nodes), tuple(map(self._wording.sentence, nodes[:2])))

    def _spinning(self) -> Iterator[Finding]:
        for node, thread in self._threads.items():
            busy, looks = thread.dump.busy, thread.dump.looks
            if busy is not None and busy >= _MIN_BUSY_SHARE and all(look.state == "R" for look in looks):
                share = f"{100 * min(busy, 1):.0f} % of the time between {len(looks)} looks"
                ran = f"{self._wording.subject(node)} {_busy_place(thread)}: ran, or was ready to run"
                yield Finding("spinning", f"{ran}, {share}", (node,))

    def _alone(self, kinds: Sequence[WaitKind]) -> Iterator[Finding]:
        """Yield findings for waits of `kinds` if the thread that has to act is unknown; join equal waits."""
        same: dict[tuple[int, str, str], list[Node]] = {}
        others = self._edges.keys() | self._suspects
        for node, wait in self._waits.items():
            if wait.kind in kinds and node not in others and not wait.is_usual:
                same.setdefault((node.pid, wait.kind, wait.what), []).append(node)
        for (pid, kind, _), nodes in sorted(same.items(), key=lambda item: (-len(item[1]), item[1])):
            text = self._wording.sentence(nodes[0])
            if len(nodes) > 1:
                is_all = sum(node.pid == pid for node in self._threads) == len(nodes)
                subject = self._wording.process(pid) if is_all else f"{self._subjects(nodes)}: each"
                text = f"{subject} {self._wording.predicate(nodes[0])}"
            yield Finding("blocked" if kind in _LOCK_KINDS else kind, text, tuple(nodes))


def _target(node: Node, wait: Wait) -> Node | None:
    """Return the thread or process that has to act; None if unknown, or if several can act."""
    if wait.tid is not None:
        return Node(node.pid, wait.tid)
    if wait.process in (None, node.pid) or (wait.is_usual and wait.timed):
        return None  # idle servers wait for work with a time-out
    return Node(wait.process, 0)


def _busy_place(thread: NamedThread) -> str:
    """Return the place where a thread is busy: the innermost call that may have lasted since the first look.

    If a function went on between the looks, the calls inside this function are new.  The innermost call may
    be new, too, if the caller repeated the call.  So the text does not say that the function never returned.
    """
    looks = [look.calls[::-1] for look in thread.dump.looks if look.calls]
    same = 0
    for calls in zip(*looks, strict=False) if len(looks) > 1 else ():
        if len({call.frame for call in calls}) > 1:
            break
        same += 1
        if len({call.progress for call in calls}) > 1:
            break
    inside = len(looks[-1]) - same if same else 0  # number of calls inside the innermost lasting call
    verb = "runs" if same and inside <= _MAX_CALLS_INSIDE else "is busy"
    left_out = looks[-1][::-1][:inside] if looks else ()
    depth = sum(call.is_python for call in left_out) if thread.python else inside
    unnamed = thread.frames[depth][0].text if depth < len(thread.frames) else "code that could not be seen"
    return f"{verb} in {thread.call_path(depth) or ('Go code' if unnamed.startswith(GOEXIT) else unnamed)}"
