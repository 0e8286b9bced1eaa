"""Puts threads with the same stack into one group, so that a dump shows 200 idle workers once.

Threads are in one group when their stacks have the same addresses and their states and system calls are the
same.  Unusual groups come first, then the largest.
"""

from collections.abc import Iterable, Mapping, Sequence

from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.waits import Wait

_MAX_NAMES = 3  # of a group whose threads' names have nothing in common


Group = list[NamedThread]  # with the same stack, by ascending tid; the first one stands for all


def group_threads(threads: Iterable[NamedThread]) -> list[Group]:
    """Return the groups, in the order of their first threads."""
    groups: dict[object, Group] = {}
    for thread in threads:
        groups.setdefault(_key(thread), []).append(thread)
    return list(groups.values())


def _key(thread: NamedThread) -> object:
    dump = thread.dump
    if dump.stack is None:
        return dump.tid
    pcs = tuple(frame.pc for frame in dump.stack.frames)
    return (dump.state, dump.capture, dump.call.name if dump.call else None, pcs, dump.stack.stop_reason)


def sort_groups(
    groups: Iterable[Group], waits: Mapping[int, Wait | None], verdict_tids: Sequence[int]
) -> list[Group]:
    """Sort: groups that the verdict names; those that run or are stuck; those that wait for work."""

    def rank(group: Group) -> tuple[int, int, int]:
        wait = waits.get(group[0].tid)
        named = [verdict_tids.index(thread.tid) for thread in group if thread.tid in verdict_tids]
        if named:
            return (0, min(named), 0)
        return (2 if wait is not None and wait.idle else 1, -len(group), group[0].tid)

    return sorted(groups, key=rank)


def common_name(names: list[str]) -> str:
    """Return a pattern for names ("worker-*"), or the first names where they have nothing in common."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    first, last = min(distinct), max(distinct)
    length = next((at for at, letter in enumerate(first) if last[at : at + 1] != letter), len(first))
    prefix = first[:length].rstrip("0123456789")
    if prefix:
        return f"{prefix}*"
    return ", ".join(distinct[:_MAX_NAMES]) + ", ..." * (len(distinct) > _MAX_NAMES)
