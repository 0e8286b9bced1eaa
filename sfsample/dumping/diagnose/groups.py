"""Threads that do the same, together.

Law: threads are in one group when their stacks have the same places and they wait in the same way; the
order is stable: what is unusual comes before what is usual, and then the largest group first.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait import Wait


class Group(NamedTuple):
    """Threads with the same stack, by ascending id."""

    threads: tuple[NamedThread, ...]

    @property
    def first(self) -> NamedThread:
        """The thread that stands for all."""
        return self.threads[0]

    def title(self) -> str:
        """Return the name that its threads share: "worker-*"."""
        return common_name([thread.dump.name for thread in self.threads])


def group(threads: Iterable[NamedThread]) -> tuple[Group, ...]:
    """Put threads with the same stack together, in the order of their first members."""
    found: dict[object, list[NamedThread]] = {}
    for thread in threads:
        found.setdefault(_key(thread), []).append(thread)
    return tuple(Group(tuple(members)) for members in found.values())


def _key(thread: NamedThread) -> object:
    dump = thread.dump
    if dump.stack is None:
        return dump.tid
    places = tuple(frame.pc for frame in dump.stack.frames)
    return (dump.state, dump.capture, dump.call.name if dump.call else None, places, dump.stack.stop_reason)


def in_order(
    groups: Iterable[Group], waits: Mapping[int, Wait | None], culprits: Sequence[int]
) -> list[Group]:
    """Sort: those that the verdict speaks of, those that run or are stuck, then those that wait for work."""

    def rank(one: Group) -> tuple[int, int, int]:
        wait = waits.get(one.first.tid)
        named = [culprits.index(thread.tid) for thread in one.threads if thread.tid in culprits]
        if named:
            return (0, min(named), 0)
        return (2 if wait is not None and wait.idle else 1, -len(one.threads), one.first.tid)

    return sorted(groups, key=rank)


def common_name(names: list[str]) -> str:
    """Return a pattern for names: "worker-*"; the names themselves where they share nothing."""
    different = list(dict.fromkeys(names))
    if len(different) == 1:
        return different[0]
    first, last = min(different), max(different)
    length = next((at for at, letter in enumerate(first) if last[at : at + 1] != letter), len(first))
    start = first[:length].rstrip("0123456789")
    if start:
        return f"{start}*"
    return ", ".join(different[:3]) + ", ..." * (len(different) > 3)
