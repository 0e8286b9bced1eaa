"""Renders a dump as text, for an engineer at a terminal or for a ticket."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from sfsample.core.printable import columns, fit
from sfsample.core.python_view import PythonView
from sfsample.core.quantities import listed
from sfsample.core.stack import Stack, StopReason
from sfsample.core.wait_kind import WaitKind
from sfsample.dumping.diagnose.go_waits import Waiting
from sfsample.dumping.diagnose.named_thread import FrameRow, Group, NamedThread, fold_name, group_threads
from sfsample.dumping.diagnose.verdict import Verdict
from sfsample.dumping.diagnose.wait_graph import Node
from sfsample.dumping.diagnose.wording import Finding, Wording, common_name, format_seconds, task_text
from sfsample.dumping.model import GoroutineGroup
from sfsample.formats.gopclntab.places import WRAPPER
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.runtimes.cpython.tasks import Task
from sfsample.symbolize.named_frame import NamedFrame, python_frame
from sfsample.waiting.waits import Wait

_STATES = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced",
           "I": "idle", "P": "parked"}  # fmt: skip
_MAX_SENTENCE_WIDTH = 100  # columns; a narrower terminal wraps earlier
_MAX_NAME_IN_FILE = 100  # characters; a longer function name is folded
_MAX_COMMAND = 240  # characters of a command line
_MAX_TIDS = 12  # thread ids that are shown of one group
_MAX_CREATORS = 3  # shown functions that created a group of goroutines
_MAX_TASKS = 100  # shown tasks of a thread


class Style(NamedTuple):
    """The style of the text."""

    clean: Callable[[str], str]
    width: int | None = None  # columns of the terminal; None: a file
    bold: Callable[[str], str] = str  # function that highlights a line
    whole: bool = False  # True: long names are not folded
    kernel: bool = False  # True: show the kernel stack of every thread
    depth: int | None = None  # largest number of shown frames of a stack; None: all frames
    python: PythonView = PythonView.AUTO


def dump_text(verdict: Verdict, style: Style) -> Iterator[str]:
    """Yield lines without newlines.  A verdict on several processes comes before the first process."""
    findings = [line for finding in verdict.findings for line in _finding(finding, style)]
    are_several = len(verdict.processes) > 1
    yield from findings * are_several
    for index, (dump, threads) in enumerate(verdict.processes):
        if index or (are_several and findings):
            yield ""
        command = " ".join(dump.cmdline) or dump.exe or ""
        line = style.clean(f"process {dump.pid} {dump.name}: {command}")
        yield _fit(line if style.whole or len(line) <= _MAX_COMMAND else f"{line[:_MAX_COMMAND]}...", style)
        yield from findings * (not are_several)
        if dump.ran is not None:
            others = f", except {len(dump.ran)} that ran on: {_tids(dump.ran)}" if dump.ran else ""
            yield f"   all threads at one instant{others}"
        for goroutines in dump.goroutines:
            yield ""
            found = verdict.goroutine_waits[dump.pid]
            yield from (_fit(line, style) for line in _goroutines(goroutines, found, style))
        waits = {thread.tid: verdict.waits.get(Node(dump.pid, thread.tid)) for thread in threads}
        nodes = [node for finding in verdict.findings for node in finding.nodes]
        named = [*dict.fromkeys(node.tid for node in nodes if node.pid == dump.pid)]
        for group in sort_groups(group_threads(threads), waits, named):
            yield ""
            yield from (_fit(line, style) for line in _group(group, waits, verdict.wording, style))


def sort_groups(
    groups: Iterable[Group], waits: Mapping[int, Wait | None], verdict_tids: Sequence[int]
) -> list[Group]:
    """Return the groups that the verdict names, then groups that run or are stuck, then idle groups."""

    def rank(group: Group) -> tuple[int, int, int]:
        wait = waits.get(group[0].tid)
        named = [verdict_tids.index(thread.tid) for thread in group if thread.tid in verdict_tids]
        if named:
            return (0, min(named), 0)
        return (2 if wait is not None and wait.is_usual else 1, -len(group), group[0].tid)

    return sorted(groups, key=rank)


def _finding(finding: Finding, style: Style) -> Iterator[str]:
    width = _sentence_width(style)
    for index, line in enumerate(_wrap(style.clean(finding.text), width, "=> ")):
        yield style.bold(line) if index == 0 or finding.kind == "deadlock" else line
    for detail in finding.lines:
        yield from _wrap(style.clean(detail), width, "   - ")


def _sentence_width(style: Style) -> int:
    return min(style.width or _MAX_SENTENCE_WIDTH, _MAX_SENTENCE_WIDTH)


def _wrap(text: str, width: int, bullet: str) -> list[str]:
    """Break a sentence into lines at spaces; a word longer than a line has its own line."""
    lines, indent = [""], " " * len(bullet)
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and len(bullet) + columns(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [f"{indent if at else bullet}{line}" for at, line in enumerate(lines)]


def _fit(line: str, style: Style) -> str:
    return line if style.width is None or style.whole else fit(line, style.width, "...")


def _group(group: Group, waits: Mapping[int, Wait | None], wording: Wording, style: Style) -> Iterator[str]:
    thread = group[0].dump
    title = f"thread {thread.tid} {thread.name}"
    if len(group) > 1:
        title = f"{len(group)} threads {common_name([named.dump.name for named in group])}"
    yield style.bold(style.clean(f"{title}: {_state(group)}"))
    yield from _members(group, style)
    yield from _wait(group, waits, wording, style)
    if thread.kernel_stack and (style.kernel or thread.state == "D" or thread.stack is None):
        yield style.clean(f"  kernel: {' <- '.join(thread.kernel_stack)}")
    yield from _connections(thread.call, style)
    yield from _stack(group[0], style)


def _connections(call: DecodedSyscall | None, style: Style) -> Iterator[str]:
    """Yield the connections of an event loop; the line of the system call shows only their number."""
    for descriptor in call.connections if call else ():
        yield style.clean(f"  fd {descriptor.fd}: {descriptor.text}")
    if call and call.connections and call.has_more_connections:
        yield "  ... (--connections N lists more)"


def _members(group: Group, style: Style) -> Iterator[str]:
    """Yield the thread ids of a group, with names if the names differ.

    At most `_MAX_TIDS` threads are shown, but all threads if the names differ before their last digits.
    """
    names = {thread.dump.name for thread in group}
    kinds = {name.rstrip("0123456789") for name in names}
    label = "{0.tid} {0.name}," if len(names) > 1 else "{0.tid}"
    members = _tids([label.format(t.dump) for t in group], _MAX_TIDS if len(kinds) == 1 else len(group))
    if len(group) > 1:
        yield from _wrap(style.clean(members.rstrip(",")), _sentence_width(style), "  ")


def _goroutines(group: GoroutineGroup, waits: Mapping[int, Waiting], style: Style) -> Iterator[str]:
    ids = [member.id for member in group.members]
    title = f"{len(ids)} goroutines" if len(ids) > 1 else f"goroutine {ids[0]}"
    longest = max((member.since_s or 0 for member in group.members), default=0)
    waited = f" for at least {format_seconds(longest)}" if longest else ""
    thread = f", in thread {group.tid}" if group.tid else ""
    locked = f", locked to thread {group.locked_to}" if group.locked_to else ""
    yield style.bold(style.clean(f"{title}: {group.state}{waited}{thread}{locked}"))
    if len(ids) > 1:
        yield f"  {_tids(ids)}"
    own = [waits[goid] for goid in ids if goid in waits]
    similar = "other times" if own and own[0].kind == "sleep" else "similar objects"
    others = f", and the other goroutines for {similar}" * (len({wait.text for wait in own}) > 1)
    yield from (style.clean(f"  {wait.text}{others}") for wait in own[:1])
    rows = [*enumerate(_without_wrappers(group.rows(style.depth)))]
    functions = ((depth, name.function or "") for depth, (_, _, names) in rows for name in names)
    first = next((depth for depth, function in functions if not function.startswith("runtime.")), 0)
    yield from _frames(rows[first:], style)
    if group.stack is not None:
        yield from _stack_end(group.stack, style)
    if group.creator_names:
        created_in = sorted({member.parent for member in group.members} - {0})
        parents = f" in goroutine{'s' * (len(created_in) > 1)} {_tids(created_in)}" if created_in else ""
        creators = [*dict.fromkeys(name.text for name in group.creator_names.values())]
        yield f"  created by {listed(creators, _MAX_CREATORS)}{parents}"


def _without_wrappers(rows: Iterable[FrameRow]) -> Iterator[FrameRow]:
    """Yield the rows without the functions that Go's compiler makes for `go f(x)`."""
    for frame, module, names in rows:
        yield frame, module, tuple(name for name in names if not WRAPPER.search(name.function or ""))


def _tids(tids: Sequence[object], most: int = _MAX_TIDS) -> str:
    more = f" and {len(tids) - most} more" if len(tids) > most else ""
    return " ".join(map(str, tids[:most])) + more


def _wait(group: Group, waits: Mapping[int, Wait | None], wording: Wording, style: Style) -> Iterator[str]:
    """Yield the wait of a group, unless the line with the system call, or the verdict, already shows it."""
    first, wait = group[0], waits.get(group[0].tid)
    call = first.dump.call
    if (
        wait is None
        or wait.kind is WaitKind.STOPPED
        or (  # a server that waits for descriptors, which the line with the system call shows
            wait.is_usual and not wait.pids and wait.kind is not WaitKind.SLEEP and call and call.descriptors
        )
    ):
        return
    distinct = {other.what for thread in group if (other := waits.get(thread.tid)) is not None}
    others = ", and the other threads for similar objects" * (len(distinct) > 1)
    object_ = wording.object(Node(first.pid, first.tid), wait)
    yield style.clean(f"  {wait.verb} {object_}".rstrip() + others)


def _state(group: Group) -> str:
    """Return the state with its duration, the system call and the CPU time, for the whole group."""
    thread = group[0].dump
    state = _STATES.get(thread.state, thread.state or "in a core file")
    idle = [t.dump.idle_s for t in group if t.dump.idle_s is not None]
    if idle:
        longest, shortest = format_seconds(max(idle)), format_seconds(min(idle))
        state += f" for {longest}" if longest == shortest else f" for {shortest} to {longest}"
    parts = [state]
    if (call := thread.call) is not None:  # with its descriptors: "read(3 <pipe 12, read end>)"
        number = f"system call {call.syscall.number}"
        parts.append(f"in {call.name}({', '.join(call.refers_to)})" if call.name else f"in {number}")
    if thread.wchan is not None:
        parts.append(f"at {thread.wchan}")
    used = [t.dump.cpu_ns for t in group if t.dump.cpu_ns is not None]
    if used:
        parts.append(f"CPU {format_seconds(sum(used) / 1e9)}")
    if any(t.dump.moving for t in group):
        parts.append("moving")
    return ", ".join(parts)


def _stack(named: NamedThread, style: Style) -> Iterator[str]:
    stack = named.dump.stack
    if stack is None:
        yield f"  not captured: {style.clean(named.dump.error or '?')}"
        return
    yield from _python(named, style)
    if not stack.frames:
        yield "  works for the kernel (io_uring, vhost), and runs no code of the program"
    shown = [*named.rows_beside_python(style.python, style.depth)]
    yield from _frames(shown, style)
    if shown:
        yield from _stack_end(stack, style)


def _frames(rows: Iterable[tuple[int, FrameRow]], style: Style) -> Iterator[str]:
    """Yield the lines of native frames, each with its number; equal frames in a row are one line."""
    for _, run in groupby(rows, key=lambda row: row[1][0].pc):
        (depth, row), *more = run
        times = f" x {len(more) + 1}" * bool(more)
        yield from (_frame(depth, row, name, style, times) for name in row[-1])


def _stack_end(stack: Stack, style: Style) -> Iterator[str]:
    if style.depth is not None and len(stack.frames) > style.depth:
        yield f"  ... and {len(stack.frames) - style.depth} more"
    elif stack.stop_reason is not StopReason.OUTERMOST:
        yield f"  [truncated: {stack.stop_reason} at {style.clean(stack.stopped_at or '?')}]"


def _python(named: NamedThread, style: Style) -> Iterator[str]:
    """Yield the Python frames, which come before native frames because the user knows Python frames best."""
    frames = named.python
    shown = enumerate(zip(frames[: style.depth], map(named.locals_of, range(len(frames))), strict=False))
    for (frame, variables), run in groupby(shown, key=lambda numbered: numbered[1]):
        (depth, _), *more = run
        where = f"{frame.file}:{frame.line or '?'}" if frame.file else ""
        yield f"  py{depth:<3} {frame.function}  {where}{f' x {len(more) + 1}' * bool(more)}"
        for name, text in variables:
            yield style.clean(f"        {name} = {text}")
    if style.depth is not None and len(frames) > style.depth:
        yield f"  ... and {len(frames) - style.depth} more"
    if named.dump.python is not None and not named.dump.python.is_whole:
        yield "  [truncated: python]"
    yield from _tasks(named.dump.facts.tasks, style)


def _tasks(tasks: Sequence[Task], style: Style) -> Iterator[str]:
    for task in tasks[:_MAX_TASKS]:
        yield style.clean(f"  task {task.name}: {task_text(task)}")
        for frame in map(python_frame, task.stack[: style.depth]):
            yield f"        {frame.function}  {frame.file}:{frame.line or '?'}"
    if len(tasks) > _MAX_TASKS:
        yield f"  ... ({len(tasks)} tasks were read)"


def _frame(depth: int, row: FrameRow, name: NamedFrame, style: Style, times: str) -> str:
    frame, module, _ = row
    start = f"  #{depth:<3} {frame.pc:#018x}  "
    if name.function is None:
        return start + name.text + times
    file = style.clean(module.path.rpartition("/")[2]) if module else ""
    end = f"+{name.symbol_offset:#x}" if name.symbol_offset is not None and not name.inlined else ""
    end += "  (inlined)" * name.inlined
    end += f"  ({file})" if file else ""
    if name.file is not None:
        end += f" at {style.clean(name.file)}:{name.line}"
    end += times
    room = _MAX_NAME_IN_FILE if style.width is None else style.width - len(start) - columns(end)
    return start + (name.function if style.whole else fold_name(name.function, room)) + end
