"""Names threads and processes, and describes what they do, in the same words throughout a dump.

The target chooses its names, so a name may contain control characters; `dumping.text` removes the characters.
"""

import signal
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sfsample.core.wait_kind import WaitKind
from sfsample.dumping.diagnose.named_thread import NamedThread, own_function
from sfsample.dumping.diagnose.wait_graph import Node, chain
from sfsample.runtimes.cpython.tasks import Task
from sfsample.symbolize.named_frame import python_frame
from sfsample.waiting.waits import Wait

_MAX_PROCESSES_NAMED = 8  # processes named in one sentence
_MAX_CHAIN = 8  # tasks of a chain that are named
_UNLESS = " unless another of its threads acts"
_MAX_NAMES = 3  # names that are shown if the names of threads have no common prefix
_SECONDS_UP_TO, _MINUTES_UP_TO = 120, 120  # up to 120 s in seconds, up to 120 min in minutes, then in hours
_CALLBACK = ("asyncio/events.py", "Handle._run")  # file and function in which an event loop runs a callback
_CHILD_KINDS = (WaitKind.CHILD, WaitKind.VFORK, WaitKind.SIGNAL)
_PEER_TEXTS = {  # kind of a wait -> text before the processes that may end the wait
    WaitKind.FULL_PIPE: "to be read by",
    WaitKind.EMPTY_PIPE: "to be written by",
    WaitKind.READ: "to be sent by",
    WaitKind.WRITE: "to be read by",
    WaitKind.EVENTS: "with the other end open in",
    WaitKind.CONNECT: "to be accepted by",
}
# kind of a wait -> text if only the waiting process itself has the other end of the pipe or socket
_OWN_TEXTS = {
    WaitKind.FULL_PIPE: "whose only reader is this process itself, so nothing will be read",
    WaitKind.EMPTY_PIPE: "whose only writer is this process itself, so nothing will come",
    WaitKind.READ: "whose other end only this process itself has, so nothing will come",
    WaitKind.WRITE: "whose other end only this process itself has, so nothing will be read",
}
# kind of a wait -> text before the thread that has to act
_LINKS = {WaitKind.THREAD: " ", WaitKind.FUTURE: ", to be computed by "}


class Finding(NamedTuple):
    """One sentence of the verdict.  `kind` is for scripts; `nodes` are the threads in the sentence."""

    kind: str
    text: str
    nodes: tuple[Node, ...]
    lines: tuple[str, ...] = ()  # sentences below `text`, with details
    goroutines: tuple[int, ...] = ()  # ids of the goroutines in the sentence


class Wording(NamedTuple):
    """Names and describes the threads and processes of a dump."""

    threads: Mapping[Node, NamedThread]
    waits: Mapping[Node, Wait | None]
    dumped: Mapping[int, str]  # names of the processes that were dumped, by pid
    others: Mapping[int, str]  # names of other processes, by pid
    asked: frozenset[int]  # pids of the processes that the user has named

    def process(self, pid: int) -> str:
        """Return the name of a process: "process 12 (bank)"."""
        return f"process {pid} ({self.dumped.get(pid) or self.others.get(pid, '?')})"

    def subject(self, node: Node) -> str:
        """Return the name of a thread ("thread 13 (debit)", "the main thread (12)"), or of a process."""
        thread = self.threads.get(node)
        if thread is None or self._is_alone(node):
            return self.process(node.pid)
        process = f" of {self.process(node.pid)}" if self.asked != {node.pid} else ""
        if node.tid == node.pid:
            return f"the main thread{process or f' ({node.tid})'}"
        return f"thread {node.tid} ({thread.dump.name}){process}"

    def sentence(self, node: Node) -> str:
        """Return a sentence about a thread: its name and its predicate."""
        return self.chain((node,))

    def chain(self, path: Sequence[Node]) -> str:
        """Return a sentence on a chain of waits, from the first thread to the activity of the last thread."""
        nodes, end = [node for node in path if node.tid], Node(path[-1].pid, path[-1].tid or path[-1].pid)
        nodes += [end] * (end in self.threads and end not in nodes)
        is_alone, functions = len(nodes) == 1, self.threads[nodes[0]].call_path()
        where = f", in {functions}," if functions and not is_alone else ""
        text = f"{self.subject(nodes[0])}{where} {self.predicate(nodes[0], where=is_alone)}"
        if self.blocks_loop(nodes[0]):
            function = own_function(self.threads[nodes[0]].python)
            is_blocked = f"{function} blocks the event loop" if function else "the event loop stands still"
            text = f"{is_blocked}: {text}"
        for before, node in pairwise(nodes):
            wait, is_named = self.waits.get(before), before.pid == node.pid or self._is_alone(node)
            link = ", which" if is_named else ", whose main thread"
            if wait and (wait.kind in _CHILD_KINDS or (wait.pids and wait.note)):
                link = f"; {self.subject(node)}"
            text += f"{link} {self.predicate(node, where=node == nodes[-1])}"
        return text

    def blocks_loop(self, node: Node) -> bool:
        """Return True if a thread runs an event loop, and a callback or a coroutine blocks the loop."""
        thread, wait = self.threads.get(node), self.waits.get(node)
        if thread is None or thread.dump.moving is not False:
            return False
        # uvloop has no frame like `_CALLBACK`; but an event loop that is not blocked waits for events
        is_elsewhere = thread.dump.facts.tasks and wait and wait.kind is not WaitKind.EVENTS
        return bool(is_elsewhere) or thread.runs_python(*_CALLBACK)

    def _is_alone(self, node: Node) -> bool:
        return sum(other.pid == node.pid for other in self.threads) == 1

    def predicate(self, node: Node, *, where: bool = True) -> str:
        """Return the predicate: "has waited 3.0 s for mutex 0x1, held by thread 2 (b), in f <- main"."""
        thread, wait = self.threads.get(node), self.waits.get(node)
        if thread is None:
            return ""
        functions = thread.call_path() if where and not (wait and wait.kind is WaitKind.STOPPED) else ""
        place = f", in {functions}" if functions else ""
        if wait is None:
            return f"{_state(thread)}{place}"
        idle = thread.dump.idle_s
        verb = wait.verb
        # a thread that waits for the GIL wakes up again and again, so its last sleep is not its whole wait
        if idle is not None and wait.kind not in (WaitKind.SLEEP, WaitKind.GIL):
            verb = wait.lasting.format(time=format_seconds(idle))
        tasks = chain_text(thread.dump.facts.tasks) if wait.kind is WaitKind.EVENTS else ""
        if tasks and not thread.runs_python(*_CALLBACK):
            return f"{verb} asyncio tasks: {tasks}"
        return f"{verb} {self.object(node, wait)}".rstrip() + place

    def object(self, node: Node, wait: Wait) -> str:
        """Return the object of a wait, and the threads or processes that have to act."""
        note = f" ({wait.note})" if wait.note else ""
        if wait.tid is not None:
            link = _LINKS.get(wait.kind, ", held by ")
            holder = "itself" if wait.tid == node.tid else self.subject(Node(node.pid, wait.tid))
            return f"{wait.what}{link}{holder}{note}"
        if wait.pids and wait.kind not in _CHILD_KINDS:
            peers = ", ".join(self.process(pid) for pid in wait.pids[:_MAX_PROCESSES_NAMED])
            if wait.pids == (node.pid,) and wait.kind in _OWN_TEXTS:
                return f"{wait.what}, {_OWN_TEXTS[wait.kind]}{'' if self._is_alone(node) else _UNLESS}"
            peer_note = f", {wait.note}" if wait.note else ""
            return f"{wait.what}, {_PEER_TEXTS.get(wait.kind, 'held by')} {peers}{peer_note}"
        is_told = self.asked >= {*wait.pids} or (len(wait.pids) == 1 and wait.pids[0] in self.dumped)
        return f"{wait.what}{note}{' (-s shows what they do)' * (wait.kind in _CHILD_KINDS and not is_told)}"


def task_text(task: Task) -> str:
    """Return the predicate of a task, such as "waits for asyncio.Lock 0x1, held by task Task-2"."""
    if not task.awaits:
        return "is ready, or runs" if task.stack else "is in no coroutine of Python"
    return f"waits for {task.awaits}" + f", held by task {task.held_by}" * bool(task.held_by)


def chain_text(tasks: Sequence[Task]) -> str:
    """Return a sentence about the longest chain of tasks that wait for one another; "": no chain.

    Of equally long chains, a chain that begins with a sleeping task comes last, as a sleep ends by itself.
    """
    edges, by_node = task_edges(tasks), {Node(0, task.address): task for task in tasks}
    needed = {address for task in tasks for address in task.on}
    chains = [chain(node, edges) for node in by_node if node.tid not in needed]
    if not chains:
        return ""
    sleepers = {address for address, task in by_node.items() if task.awaits.endswith("asyncio.sleep")}
    path = [by_node[node] for node in max(chains, key=lambda nodes: (len(nodes), nodes[0] not in sleepers))]
    text = f"task {path[0].name} {task_text(path[0])}"
    for before, task in pairwise(path[:_MAX_CHAIN]):
        text += f", of them {task.name}" * (len(before.on) > 1) + f", which {task_text(task)}"
    function = own_function([*map(python_frame, path[-1].stack)])
    more = sum(each[-1].tid == path[-1].address for each in chains) - 1
    behind = f"; {more} more task{'s wait' if more > 1 else ' waits'} behind {'them' if path[1:] else 'it'}"
    return text + f", in {function}" * bool(function) + behind * (more > 0)


def task_edges(tasks: Sequence[Task]) -> dict[Node, Node]:
    """Return an edge from each task to the first task that it needs; a node has the address of a task."""
    nodes = {task.address: Node(0, task.address) for task in tasks}
    needs = ((task, next(filter(nodes.get, task.on), None)) for task in tasks)
    return {nodes[task.address]: nodes[address] for task, address in needs if address is not None}


def common_name(names: list[str]) -> str:
    """Return a pattern for names ("worker-*"), or the first names if they have no prefix in common."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    first, last = min(distinct), max(distinct)
    length = next((at for at, letter in enumerate(first) if last[at : at + 1] != letter), len(first))
    if prefix := first[:length].rstrip("0123456789"):
        return f"{prefix}*"
    return ", ".join(distinct[:_MAX_NAMES]) + ", ..." * (len(distinct) > _MAX_NAMES)


def signal_name(number: int) -> str | None:
    """Return the name of a signal ("SIGSEGV" for 11); None for 0, which is no signal."""
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"signal {number}"


def _state(thread: NamedThread) -> str:
    call = thread.dump.call
    if thread.dump.state == "R":
        return "runs"
    if not thread.dump.state and thread.dump.signal:  # core file, which has no state
        return f"got {signal_name(thread.dump.signal)}"
    if call and call.name:
        return f"is in {call.name}"
    return "sleeps" if thread.dump.state else "last ran"


def format_seconds(value: float) -> str:
    """Return a time with a unit that fits: "0.01 s", "12.3 s", "10 min", "24.0 h"."""
    if value < 0.995:
        return f"{value:.2f} s"
    if value < _SECONDS_UP_TO:
        return f"{value:.1f} s"
    minutes = value / 60
    return f"{minutes:.0f} min" if minutes < _MINUTES_UP_TO else f"{minutes / 60:.1f} h"
