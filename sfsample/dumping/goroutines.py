"""Groups the goroutines of a Go program by state and stack: 100,000 goroutines have few different stacks."""

import time
from collections.abc import Callable, Iterable

from sfsample.core.stack import Found, Frame, Stack
from sfsample.dumping.model import GoroutineGroup, GoroutineMember
from sfsample.modules.location import Location, locate
from sfsample.modules.module import Module
from sfsample.process.go_capture import FoundGoroutine
from sfsample.symbolize.named_frame import NamedFrame

_IDLE_STATES = ("chan receive", "select", "IO wait", "sleep", "syscall")
Namer = Callable[[Location], tuple[NamedFrame, ...]]
_Key = tuple[str, int, int, tuple[int, ...]]  # state, thread (0: no thread), locked_to, pcs


def group_goroutines(
    found: Iterable[FoundGoroutine], find: Callable[[int], Module | None]
) -> tuple[GoroutineGroup, ...]:
    """Return the groups, largest first; `find` returns the module at an address."""
    members: dict[_Key, list[GoroutineMember]] = {}
    stacks: dict[_Key, Stack | None] = {}
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    for goroutine, stack, unlocks in found:
        pcs = tuple(frame.pc for frame in stack.frames) if stack else ()
        since_s = (now_ns - goroutine.since_ns) / 1e9 if goroutine.since_ns else None
        created_at = goroutine.created_at if goroutine.id != 1 else 0  # Go's start code creates goroutine 1
        member = GoroutineMember(goroutine.id, since_s, goroutine.parent, created_at, goroutine.wait, unlocks)
        key = goroutine.state, goroutine.tid, goroutine.locked_to, pcs
        members.setdefault(key, []).append(member)
        stacks.setdefault(key, stack)
    groups = []
    for (state, tid, locked_to, pcs), stack in stacks.items():
        same = sorted(members[state, tid, locked_to, pcs], key=lambda member: member.id)
        places = dict.fromkeys(member.created_at for member in same if member.created_at)
        creators = [Frame(place, 0, None, Found.CONTEXT, exact=False) for place in places]
        modules = tuple(find(frame.lookup_pc) for frame in (stack.frames if stack else ()))
        places_of_creators = tuple((frame, find(frame.lookup_pc)) for frame in creators)
        group = GoroutineGroup(tuple(same), state, tid, places_of_creators, stack, modules)
        groups.append(group._replace(locked_to=locked_to))
    return tuple(sorted(groups, key=_largest_first))


def _largest_first(group: GoroutineGroup) -> tuple[int, int]:
    return -len(group.members), group.members[0].id


def name_stack(
    stack: Stack | None, modules: Iterable[Module | None], namer: Namer, pid: int
) -> tuple[tuple[NamedFrame, ...], ...]:
    """Return the functions at each frame of a stack."""
    pairs = zip(stack.frames if stack else (), modules, strict=True)
    return tuple(namer(locate(frame, module, pid)) for frame, module in pairs)


def name_goroutines(groups: Iterable[GoroutineGroup], namer: Namer, pid: int) -> tuple[GoroutineGroup, ...]:
    """Return the groups with names.  Groups that work or wait for a lock come first.

    Then come groups that wait for input.  Groups that Go's runtime has started come last.  Groups with the
    same state, functions and lines become one group, because the compiler may have copied code.
    """
    same: dict[object, GoroutineGroup] = {}
    for group in groups:
        names = name_stack(group.stack, group.modules, namer, pid)
        creators = {frame.pc: namer(locate(frame, module, pid))[-1] for frame, module in group.creators}
        named = group._replace(names=names, creator_names=creators)
        places = tuple((name.text, name.function, name.file, name.line) for name in named.functions)
        key = named.state, named.tid, named.locked_to, places
        if known := same.get(key):
            members = sorted((*known.members, *named.members), key=lambda member: member.id)
            named = known._replace(members=tuple(members), creator_names={**known.creator_names, **creators})
        same[key] = named
    joined = sorted(same.values(), key=_largest_first)
    return tuple(sorted(joined, key=lambda group: (is_of_runtime(group), group.state in _IDLE_STATES)))


def is_of_runtime(group: GoroutineGroup) -> bool:
    """Return True if only functions of Go's runtime run in the goroutines of a group."""
    names = group.functions or group.creator_names.values()
    return bool(names) and all((name.function or "").startswith("runtime.") for name in names)
