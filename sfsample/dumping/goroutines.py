"""Groups the goroutines of a Go program by state and stack: 100,000 have few different stacks."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sfsample.core.stack import Found, Frame, Stack
from sfsample.dumping.model import GoroutineGroup, GoroutineMember
from sfsample.modules.location import Location, locate
from sfsample.modules.module import Module
from sfsample.process.go_capture import FoundGoroutine
from sfsample.runtimes.go.defers import Unlock
from sfsample.runtimes.go.layout import Goroutine
from sfsample.symbolize.named_frame import NamedFrame

_MAX_STATES = 6  # states in a sentence
_IDLE_STATES = ("chan receive", "select", "IO wait", "sleep", "syscall")
_Namer = Callable[[Location], tuple[NamedFrame, ...]]


class _Key(NamedTuple):
    state: str
    tid: int  # 0: no thread runs it; a goroutine that runs is alone in its group
    pcs: tuple[int, ...]


def group_goroutines(
    found: Iterable[FoundGoroutine], find: Callable[[int], Module | None]
) -> tuple[GoroutineGroup, ...]:
    """Return the groups, largest first; `find` returns the module at an address."""
    members: dict[_Key, list[GoroutineMember]] = {}
    stacks: dict[_Key, Stack | None] = {}
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for goroutine, stack, unlocks in found:
        pcs = tuple(frame.pc for frame in stack.frames) if stack else ()
        key = _Key(goroutine.state, goroutine.tid, pcs)
        members.setdefault(key, []).append(_member(goroutine, unlocks, now_ns))
        stacks.setdefault(key, stack)
    groups = [_group(key, members[key], stack, find) for key, stack in stacks.items()]
    return tuple(sorted(groups, key=_largest_first))


def _largest_first(group: GoroutineGroup) -> tuple[int, int]:
    return -len(group.members), group.members[0].id


def _member(goroutine: Goroutine, unlocks: tuple[Unlock, ...], now_ns: int) -> GoroutineMember:
    return GoroutineMember(
        goroutine.id,
        (now_ns - goroutine.since_ns) / 1e9 if goroutine.since_ns else None,
        goroutine.parent,
        goroutine.created_at if goroutine.id != 1 else 0,  # the start code creates the first one
        goroutine.wait,
        unlocks,
    )


def _group(
    key: _Key, members: list[GoroutineMember], stack: Stack | None, find: Callable[[int], Module | None]
) -> GoroutineGroup:
    places = dict.fromkeys(member.created_at for member in members if member.created_at)
    creators = tuple(Frame(place, 0, None, Found.CONTEXT, exact=False) for place in places)
    members.sort(key=lambda member: member.id)
    group = GoroutineGroup(tuple(members), key.state, key.tid, creators, stack, ())
    return group._replace(modules=tuple(find(frame.lookup_pc) for frame in group.frames))


def name_goroutines(groups: Iterable[GoroutineGroup], namer: _Namer, pid: int) -> tuple[GoroutineGroup, ...]:
    """Return the groups with names: first those that work or wait for a lock, then those that wait for input.

    The groups that the runtime itself has started come last.  Groups with the same state, functions and lines
    become one: the compiler may have copied code.
    """
    same: dict[object, GoroutineGroup] = {}
    for group in groups:
        named = group._replace(names=_names(group, namer, pid))
        places = tuple((name.text, name.function, name.file, name.line) for name in named.functions)
        key = named.state, named.tid, places
        same[key] = _join(same[key], named) if key in same else named
    joined = sorted(same.values(), key=_largest_first)
    return tuple(sorted(joined, key=lambda group: (_is_of_runtime(group), group.state in _IDLE_STATES)))


def _join(group: GoroutineGroup, other: GoroutineGroup) -> GoroutineGroup:
    """Return one group of the members of two, with the stack of the first."""
    others = len(other.frames) - len(other.creators)
    return group._replace(
        members=tuple(sorted((*group.members, *other.members), key=lambda member: member.id)),
        creators=(*group.creators, *other.creators),
        modules=(*group.modules, *other.modules[others:]),
        names=(*group.names, *other.names[others:]),
    )


def _is_of_runtime(group: GoroutineGroup) -> bool:
    """Return True if the runtime, not the program's code, has started the goroutines of a group."""
    names = group.creator_names.values()
    return bool(names) and all((name.function or "").startswith("runtime.") for name in names)


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
