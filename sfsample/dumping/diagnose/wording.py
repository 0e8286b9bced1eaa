"""How threads, processes and waits are spoken of.

Law: a thing has one name wherever it is mentioned.  Names are as the target gave them, unclean.
"""

import signal
from collections.abc import Mapping
from typing import NamedTuple

from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait import Wait
from sfsample.dumping.diagnose.wait_graph import Node

_TOLD = 8  # processes that are named in one sentence
_HOLDS = {
    "full pipe": "to be read by",
    "empty pipe": "to be written by",
    "read": "to be sent by",
    "write": "to be read by",
    "events": "at whose other end is",
    "connect": "to be accepted by",
}


class Words(NamedTuple):
    """What is needed to name things; `looked_at` and `others` are names of processes."""

    threads: Mapping[Node, NamedThread]
    waits: Mapping[Node, Wait | None]
    looked_at: Mapping[int, str]
    others: Mapping[int, str]

    def process(self, pid: int) -> str:
        """Name a process."""
        return f"process {pid} ({self.looked_at.get(pid) or self.others.get(pid, '?')})"

    def who(self, node: Node) -> str:
        """Name a thread, or with tid 0 a process."""
        thread = self.threads.get(node)
        if thread is None or sum(other.pid == node.pid for other in self.threads) == 1:
            return self.process(node.pid)
        process = f" of {self.process(node.pid)}" if len(self.looked_at) > 1 else ""
        if node.tid == node.pid:
            return f"the main thread{process or f' ({node.tid})'}"
        return f"thread {node.tid} ({thread.dump.name}){process}"

    def sentence(self, node: Node) -> str:
        """Say who does what."""
        return f"{self.who(node)} {self.doing(node)}"

    def doing(self, node: Node) -> str:
        """Say what a thread does: "waits for mutex 0x1, held by thread 2 (b), for 3 s, in f <- main"."""
        thread, wait = self.threads.get(node), self.waits.get(node)
        if thread is None:
            return ""
        way = thread.way()
        where = f", in {way}" if way and not (wait and wait.kind == "stopped") else ""
        if wait is None:
            return f"{_state(thread)}{where}"
        idle = thread.dump.idle_s
        since = f" for {seconds(idle)}" if idle is not None and wait.kind != "sleep" else ""
        return f"{wait.verb} {self.wait(node, wait)}{since}{where}"

    def wait(self, node: Node, wait: Wait) -> str:
        """Name what is waited for and who has to act."""
        note = f" ({wait.note})" if wait.note else ""
        if wait.tid is not None:
            verb = " " if wait.kind == "thread" else ", held by "
            holder = "itself" if wait.tid == node.tid else self.who(Node(node.pid, wait.tid))
            return f"{wait.what}{verb}{holder}{note}"
        if wait.pids and wait.kind not in ("child", "vfork"):
            who = ", ".join(self.process(pid) for pid in wait.pids[:_TOLD])
            return (
                f"{wait.what}, {_HOLDS.get(wait.kind, 'held by')} {who}{f', {wait.note}' * bool(wait.note)}"
            )
        return f"{wait.what}{note}"


def signal_name(number: int) -> str | None:
    """Return SIGSEGV for 11; None for 0."""
    try:
        return signal.Signals(number).name if number else None
    except ValueError:
        return f"signal {number}"


def _state(thread: NamedThread) -> str:
    call = thread.dump.call
    if thread.dump.state == "R":
        return "runs"
    if not thread.dump.state and thread.dump.signal:  # out of a core file
        return f"got {signal_name(thread.dump.signal)}"
    if call and call.name:
        return f"is in {call.name}"
    return "sleeps" if thread.dump.state else "stood"


def seconds(value: float) -> str:
    """Return a time as people say it."""
    if value < 1:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes = value / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
