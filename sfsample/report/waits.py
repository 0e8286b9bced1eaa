"""Finds the waits in the stacks of a report: classes, idle threads, and the table of waits.

The frame of a wait has kind "w", and its `raw` is the class of the wait.  A stack has the class of its
outermost wait.  A wait further inside belongs to the thread that holds the lock (`--blame`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile

from sfsample.core.quantities import counted, listed
from sfsample.core.wait_kind import WaitClass
from sfsample.modules.location import IN_POOL
from sfsample.report.merge import rebuild, rebuild_stacks
from sfsample.report.report import WALL, Report, ReportStack
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.waiting.thread import C_LIBRARIES, is_file

_HELD = (WaitClass.LOCK, WaitClass.GIL, WaitClass.CONDITION)  # classes of waits for other threads
_NAMELESS = ("[condition variable]", "[read lock]", "[write lock]")
_RUNNING = NamedFrame("[no wait]", "[no wait]")


def wait_frame(frames: Sequence[NamedFrame]) -> NamedFrame | None:
    """Return the frame of a stack's outermost wait; None: no wait.  `frames`: innermost first."""
    return next((frame for frame in reversed(frames) if frame.kind == "w"), None)


def wait_of(report: Report, stack: ReportStack) -> str | None:
    """Return the class of a stack's wait; None: no wait is known."""
    frame = wait_frame([report.frames[at] for at in stack.frames])
    return frame.raw if frame else None


def by_wait(report: Report) -> Report:
    """Add the class of a stack's wait as the first frame of the stack (`--by wait`)."""

    def with_class(frames: Sequence[NamedFrame]) -> list[NamedFrame]:
        frame = wait_frame(frames)
        return [*frames, NamedFrame(f"[{frame.raw}]", f"[{frame.raw}]") if frame else _RUNNING]

    return rebuild(report, with_class)


# -- idle threads


# process, name of the thread with `*` for the digits at its end, and outermost function
_Group = tuple[str, str, str]


def fold_idle(report: Report) -> tuple[Report, dict[str, int]]:
    """Return the report with one frame `[idle: worker-*]` for each group of threads that wait for work.

    Also return the samples of each group.  docs/waiting.md has the rules.
    """
    groups, folded = _groups(report), Counter[str]()
    pools = _pools(report, groups)

    def fold(stack: ReportStack) -> list[NamedFrame]:
        frames, group = [report.frames[at] for at in stack.frames], groups[stack.thread]
        wait = wait_frame(frames)
        if not wait or not (wait.found == "idle" or (group, _texts(frames)) in pools):
            return frames
        text = f"[idle: {group[1]}]"
        folded[group[1]] += stack.weights[0]
        return [NamedFrame(text, text, wait.raw, kind="w", found="idle")]

    return rebuild_stacks(report, fold), dict(folded)


def _groups(report: Report) -> dict[int, _Group]:
    """Return the group of each thread, by its index."""
    found: dict[int, _Group] = {}
    for stack in sorted(report.stacks, key=lambda stack: stack.weights[0]):  # the widest stack comes last
        thread, frames = report.threads[stack.thread], [report.frames[at] for at in reversed(stack.frames)]
        first = next((frame.text for frame in frames if _is_own(frame)), "")
        found[stack.thread] = thread.process, re.sub(r"\d+$", "*", thread.name), first
    return found


def _pools(report: Report, groups: Mapping[int, _Group]) -> set[tuple[_Group, tuple[str, ...]]]:
    """Return each group with the stacks in which most of its threads wait most of the time.

    These stacks wait long at one condition variable, as the workers of a pool do while they have no work.
    """
    totals: Counter[int] = Counter()
    waits: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for stack in report.stacks:
        totals[stack.thread] += stack.weights[0]
        frames = [report.frames[at] for at in stack.frames]
        if (wait := wait_frame(frames)) and wait.found == IN_POOL:
            waits[stack.thread, _texts(frames)] += stack.weights[0]
    sizes = Counter(groups.values())
    idle = Counter((groups[thread], row) for (thread, row), n in waits.items() if 2 * n > totals[thread])
    return {key for key, number in idle.items() if 2 * number > sizes[key[0]] > 1}


def _texts(frames: Sequence[NamedFrame]) -> tuple[str, ...]:
    return tuple(frame.text for frame in frames)


# -- the table of waits


def lock_name(frames: Sequence[NamedFrame]) -> str | None:
    """Return the name of what a thread waits for, as in the table; None: it waits for no other thread.

    `frames` begins with the outermost frame.  A lock without a name has its taker's name.
    """
    at = next((at for at, frame in enumerate(frames) if frame.kind == "w"), None)
    if at is None or frames[at].raw not in _HELD or frames[at].found == "idle":
        return None
    taker = next((frame.text for frame in reversed(frames[:at]) if _is_own(frame)), "?")
    text = frames[at].text
    is_channel = text.startswith("[chan ")
    has_name = text == "[GIL]" or (" " in text and not is_channel and text not in _NAMELESS)
    return text + f" in {taker}" * (not has_name)


def lock_lines(report: Report, limit: int) -> Iterator[str]:
    """Yield a line for each lock or other wait for threads, the longest waits first."""
    totals = Counter[str]()
    held = defaultdict[str, Counter[str]](Counter)  # holders of each lock
    waits = defaultdict[tuple[str, str], Counter[str]](Counter)  # what these holders wait for themselves
    for stack, ns in zip(report.stacks, report.column(WALL), strict=True):
        frames = [report.frames[at] for at in reversed(stack.frames)]
        if (name := lock_name(frames)) is None:
            continue
        totals[name] += ns
        if behind := [*dropwhile(lambda frame: frame.kind != "w", frames)][1:]:
            function = next((frame.text for frame in reversed(behind[1:]) if _is_own(frame)), "?")
            holder = f"{behind[0].text.removeprefix('[held by]')}, in {function}"
            wait = f" {behind[-1].text}" if behind[-1].kind == "w" and behind[-1].raw else ""
            held[name][holder] += ns
            waits[name, holder][wait] += ns
    most = report.stats.most_waiters
    for name, ns in totals.most_common(limit):
        at_once = f" (at most {counted(most[name], 'thread')} at once)" if most[name] else ""
        if most[name] and ns > most[name] * (report.duration_ns or ns) * 1.01:
            at_once = at_once.replace(")", ", for each of several)")
        by = ""
        for holder, _ in held[name].most_common(1):
            [(wait, _)] = waits[name, holder].most_common(1)
            others = ", and others" * (len(held[name]) > 1)
            by = f", {100 * held[name].total() / max(1, ns):.0f} % of it held by {holder}{wait}{others}"
        yield f"{ns / 1e9:.2f} s {name}{at_once}{by}"


def _is_own(frame: NamedFrame) -> bool:
    is_library = is_file(frame.module or "", C_LIBRARIES) or "/asyncio/" in (frame.file or "")
    return frame.kind not in ("w", "k") and not is_library


def wait_lines(report: Report, idle: Mapping[str, int], limit: int = 5) -> Iterator[str]:
    """Yield lines about the waits of a report; `idle`: samples of idle threads by group, from `fold_idle`."""
    total, classes = report.total(WALL), Counter[str]()
    for stack, ns in zip(report.stacks, report.column(WALL), strict=True):
        frame = wait_frame([report.frames[at] for at in stack.frames])
        if frame is not None and frame.found != "idle":
            classes[frame.raw or ""] += ns
    if not total or not classes:
        return
    shares = ", ".join(f"{name} {100 * ns / total:.1f} %" for name, ns in classes.most_common())
    yield f"waiting   {100 * classes.total() / total:.1f} % of the threads' time: {shares}"
    yield from (f"          {line}" for line in lock_lines(report, limit))
    if idle:
        groups = listed(sorted(idle), limit)
        yield f"idle      {counted(sum(idle.values()))} of {groups}: they wait for work (--idle shows them)"
