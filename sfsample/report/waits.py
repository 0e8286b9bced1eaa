"""Finds the waits in the stacks of a report: classes, idle threads, and the table of waits.

The frame of a wait has kind "w", and its `raw` is the class of the wait.  A stack has the class of its
outermost wait.  A wait further inside belongs to the thread that holds the lock (`--blame`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from sfsample.core.quantities import counted, listed
from sfsample.core.wait_kind import WaitClass
from sfsample.modules.location import HELD_BY, IN_POOL, NO_STACK
from sfsample.report.merge import rebuild, rebuild_stacks
from sfsample.report.report import WALL, Report, ReportStack
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.waiting.thread import PYTHON_LIBRARIES, RUNTIME_LIBRARIES, is_file

_FOR_THREADS = (WaitClass.LOCK, WaitClass.GIL, WaitClass.CONDITION)  # classes of waits for other threads
# texts that name no object: one word, or these words
_NAMELESS = re.compile(r"\[(?!GIL\])(\S+|condition variable|(read|write|libc) lock|chan .*|\S+: pipe)\]")
_LIBRARIES = RUNTIME_LIBRARIES + PYTHON_LIBRARIES
# functions of the libraries of C++ and Rust that are part of a program; files of the library of Python
_NATIVE_LIBRARY = re.compile(r"(void |<)?std::|__gthread_")
_PYTHON_LIBRARY = re.compile(r"/python3[^/]*/((asyncio|concurrent|multiprocessing)/|(threading|queue)\.py$)")
_ROUNDING = 1.01  # factor: the time of a wait is a number of ticks, so it is not exact
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


# process, name of the thread with `*` for the digits at its end, and outermost function
_Group = tuple[str, str, str]


def fold_idle(report: Report) -> tuple[Report, dict[str, int]]:
    """Return the report with one frame for each idle group, and each group's samples (docs/waiting.md)."""
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
    """Return the group of each thread, by the index of the thread."""
    found: dict[int, _Group] = {}
    for stack in sorted(report.stacks, key=lambda stack: stack.weights[0]):  # the widest stack comes last
        thread, first = report.threads[stack.thread], _function([report.frames[at] for at in stack.frames])
        found[stack.thread] = thread.process, re.sub(r"\d+$", "*", thread.name), first or ""
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


_Holders = defaultdict[str, Counter[str]]  # ns by holder, and by the wait of this holder


class LockWait(NamedTuple):
    """A stack that waits for a lock, another thread or another process."""

    name: str  # name in the table; if the wait names no object, with the function that waits
    holder: Sequence[NamedFrame]  # mark of the holder, its frames, the mark of its own holder, ...; or empty
    in_table: bool  # False: a wait for a pipe, a socket or a child, without a known holder


class LockRow(NamedTuple):
    """A line of the table of waits."""

    name: str
    ns: int  # sum of the times that threads waited
    most: int  # largest number of threads that waited at one tick; 0: unknown
    holder: str  # share of `ns` with a known holder, and the holder of most of this time; "": unknown


def lock_wait(frames: Sequence[NamedFrame]) -> LockWait | None:
    """Return the wait of a stack; None: the thread runs or is idle.  `frames`: innermost first."""
    frames = frames[::-1]
    at = next((at for at, frame in enumerate(frames) if frame.kind == "w"), None)
    if at is None or frames[at].found == "idle":
        return None
    text, holder = frames[at].text, frames[at + 1 :]
    name = f"{text} in {_function(frames[:at]) or '?'}" if _NAMELESS.fullmatch(text) else text
    return LockWait(name, holder, bool(holder) or frames[at].raw in _FOR_THREADS)


def lock_rows(report: Report) -> list[LockRow]:
    """Return a row for each thing that threads wait for, the longest wait first."""
    totals, holders = Counter[str](), defaultdict[str, _Holders](lambda: defaultdict(Counter))
    in_table = set[str]()
    for stack, ns in zip(report.stacks, report.column(WALL), strict=True):
        if wait := lock_wait([report.frames[at] for at in stack.frames]):
            totals[wait.name] += ns
            in_table |= {wait.name} if wait.in_table else set()
            if wait.holder:
                holder, its_wait = _first_holder(wait.holder)
                holders[wait.name][holder][its_wait] += ns
    most = report.stats.most_waiters
    return [LockRow(name, ns, most[name], _held_by(holders[name], ns))
            for name, ns in totals.most_common() if name in in_table]  # fmt: skip


def lock_lines(report: Report, limit: int) -> Iterator[str]:
    """Yield a line for each of the first `limit` rows of the table."""
    for row in lock_rows(report)[:limit]:
        lock = f"{row.ns / 1e9:.2f} s {row.name}{_at_once(row, report.duration_ns)}"
        yield f"{lock}, {row.holder}" if row.holder else lock


def _first_holder(frames: Sequence[NamedFrame]) -> tuple[str, str]:
    """Return the first holder with its function ("writer, in flush"), and its own wait (" [sleep]" or "").

    `frames` begins with the mark of the holder.  The next mark begins the frames of another holder.
    """
    own = [*takewhile(lambda frame: not frame.text.startswith(HELD_BY), frames[1:])]
    has_wait = own and (own[-1].kind == "w" or own[-1].text in NO_STACK)
    where = f", in {function}" if (function := _function(own)) else ""
    return f"{frames[0].text.removeprefix(HELD_BY)}{where}", f" {own[-1].text}" if has_wait else ""


def _at_once(row: LockRow, duration_ns: int | None) -> str:
    are_several = row.ns > _ROUNDING * row.most * (duration_ns or row.ns)  # several locks have this name
    text = f" (at most {counted(row.most, 'thread')} at once{', for each of several' * are_several})"
    return text if row.most else ""


def _held_by(holders: _Holders, ns: int) -> str:
    if not holders:
        return ""
    holder, waits = max(holders.items(), key=lambda item: item[1].total())
    share = sum(each.total() for each in holders.values()) / max(1, ns)
    others = ", and others" * (len(holders) > 1)
    return f"{100 * share:.0f} % of it held by {holder}{max(waits, key=waits.__getitem__)}{others}"


def _function(frames: Sequence[NamedFrame]) -> str | None:
    return next((frame.text for frame in reversed(frames) if _is_own(frame)), None)


def _is_own(frame: NamedFrame) -> bool:
    is_python = _PYTHON_LIBRARY.search(frame.file or "")
    is_library = is_python or is_file(frame.module or "", _LIBRARIES) or _NATIVE_LIBRARY.match(frame.text)
    return frame.kind not in ("w", "k") and frame.text not in NO_STACK and not is_library


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
        threads = f"{counted(sum(idle.values()))} of {listed(sorted(idle), limit)}"
        yield f"idle      {threads}: they sleep or wait for work (--idle shows them)"
