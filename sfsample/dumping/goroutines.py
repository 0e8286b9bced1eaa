"""Groups the goroutines of a Go program by state and stack: 100,000 have few different stacks."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sfsample.core.stack import Found, Frame, Stack
from sfsample.dumping.model import GoroutineGroup, GoroutineMember
from sfsample.modules.location import Location, locate
from sfsample.modules.module import Module
from sfsample.runtimes.go.goroutines import Goroutine
from sfsample.symbolize.named_frame import NamedFrame

_MAX_STATES = 6  # states in a sentence
_IDLE_STATES = ("chan receive", "select", "IO wait", "sleep", "syscall")
_Namer = Callable[[Location], tuple[NamedFrame, ...]]


class _Key(NamedTuple):
    state: str
    created_at: int
    pcs: tuple[int, ...]
    tid: int  # 0: no thread runs it; a goroutine that runs is alone in its group


def group_goroutines(
    goroutines: Iterable[tuple[Goroutine, Stack | None]], find: Callable[[int], Module | None]
) -> tuple[GoroutineGroup, ...]:
    """Return the groups, largest first; `find` returns the module at an address."""
    members: dict[_Key, list[Goroutine]] = {}
    stacks: dict[_Key, Stack | None] = {}
    for goroutine, stack in goroutines:
        pcs = tuple(frame.pc for frame in stack.frames) if stack else ()
        created_at = goroutine.created_at if goroutine.id != 1 else 0  # the start code creates the first one
        key = _Key(goroutine.state, created_at, pcs, goroutine.tid)
        members.setdefault(key, []).append(goroutine._replace(stack=b""))
        stacks.setdefault(key, stack)
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    groups = [_group(key, members[key], stack, now_ns, find) for key, stack in stacks.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.members), group.members[0].id)))


def _group(
    key: _Key, goroutines: list[Goroutine], stack: Stack | None, now_ns: int,
    find: Callable[[int], Module | None],
) -> GoroutineGroup:  # fmt: skip
    members = sorted(
        GoroutineMember(
            goroutine.id,
            (now_ns - goroutine.since_ns) / 1e9 if goroutine.since_ns else None,
            goroutine.parent,
        )
        for goroutine in goroutines
    )
    created_at = Frame(key.created_at, 0, None, Found.CONTEXT, exact=False) if key.created_at else None
    group = GoroutineGroup(tuple(members), key.state, key.tid, created_at, stack, ())
    return group._replace(modules=tuple(find(frame.lookup_pc) for frame in group.frames))


def name_goroutines(groups: Iterable[GoroutineGroup], namer: _Namer, pid: int) -> tuple[GoroutineGroup, ...]:
    """Return the groups with names: first those that work or wait for a lock, then those that wait for input.

    The groups that the runtime itself has started come last.
    """
    named = [group._replace(names=_names(group, namer, pid)) for group in groups]
    return tuple(sorted(named, key=lambda group: (_is_of_runtime(group), group.state in _IDLE_STATES)))


def _is_of_runtime(group: GoroutineGroup) -> bool:
    """Return True if the runtime, not the program's code, has started the goroutines of a group."""
    creator = group.names[-1][-1].function if group.created_at else None
    return creator is not None and creator.startswith("runtime.")


def summarize(groups: Iterable[GoroutineGroup]) -> str:
    """Return a sentence on what the goroutines of a process do: "38 goroutines: 20 chan receive, ..."."""
    states = Counter[str]()
    for group in groups:
        states[group.state] += len(group.members)
    parts = [f"{count} {state}" for state, count in states.most_common(_MAX_STATES)]
    others = states.total() - sum(count for _, count in states.most_common(_MAX_STATES))
    return f"{states.total()} goroutines: {', '.join(parts)}{f', {others} others' * bool(others)}"


def _names(group: GoroutineGroup, namer: _Namer, pid: int) -> tuple[tuple[NamedFrame, ...], ...]:
    pairs = zip(group.frames, group.modules, strict=True)
    return tuple(namer(locate(frame, module, pid)) for frame, module in pairs)
