"""A dump as text, for a terminal at three in the morning, and for a ticket.

Law: the verdict first, in words; then what is unusual, then what is usual; the order is the same each time.
A line fits the terminal: names are folded, then cut.  Text from the target goes through `clean`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sfsample.core.stack import Frame, StopReason
from sfsample.dumping.collect import ProcessDump, ThreadDump
from sfsample.dumping.diagnose.groups import Group, group, in_order
from sfsample.dumping.diagnose.named_thread import NamedThread, fold
from sfsample.dumping.diagnose.verdict import Finding, Verdict
from sfsample.dumping.diagnose.wait import Wait
from sfsample.dumping.diagnose.wait_graph import Node
from sfsample.dumping.diagnose.wording import Words, seconds
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import NamedFrame

_STATES = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced",
           "I": "idle", "P": "parked"}  # fmt: skip
_PROSE = 100  # sentences are wrapped at this, or at the terminal's width
_NAME = 100  # a name is folded when it is longer, in a file
_LINE = 240  # a command line is cut when it is longer
_MANY = 12  # thread ids that a group shows


class Style(NamedTuple):
    """How it is shown: on a terminal of `width`, or in a file; `bold` stands out; `whole`: not folded."""

    clean: Callable[[str], str]
    width: int | None = None
    bold: Callable[[str], str] = str
    whole: bool = False
    kernel: bool = False  # the kernel's stack of every thread


def dump_text(
    processes: Sequence[tuple[ProcessDump, tuple[NamedThread, ...]]], verdict: Verdict, style: Style
) -> Iterator[str]:
    """Yield the lines, without newlines; the verdict is of all, and comes after the first's name."""
    for index, (dump, threads) in enumerate(processes):
        if index:
            yield ""
        yield _header(dump, style)
        if not index:
            yield from _verdict(verdict, style)
        if dump.ran is not None:
            others = f", but for {len(dump.ran)} that ran: {_ids(dump.ran)}" if dump.ran else ""
            yield f"   all threads at one instant{others}"
        yield from _process(dump, threads, verdict, style)


def _verdict(verdict: Verdict, style: Style) -> Iterator[str]:
    for finding in verdict.findings:
        yield from _finding(finding, style)


def _finding(finding: Finding, style: Style) -> Iterator[str]:
    width = min(style.width or _PROSE, _PROSE)
    for index, line in enumerate(wrap(style.clean(finding.text), width, "=> ", "   ")):
        yield style.bold(line) if index == 0 or finding.kind == "deadlock" else line
    for detail in finding.lines:
        yield from wrap(style.clean(detail), width, "   - ", "     ")


def wrap(text: str, width: int, first: str, others: str) -> Iterator[str]:
    """Break a sentence into lines at spaces; a longer word stands alone."""
    line, start = first, True
    for word in text.split(" "):
        if not start and len(line) + 1 + len(word) > width:
            yield line
            line, start = others, True
        line += word if start else f" {word}"
        start = False
    yield line


def _process(
    dump: ProcessDump, threads: tuple[NamedThread, ...], verdict: Verdict, style: Style
) -> Iterator[str]:
    waits = {thread.tid: verdict.waits.get(Node(dump.pid, thread.tid)) for thread in threads}
    for one in in_order(group(threads), waits, verdict.culprits(dump.pid)):
        yield ""
        for line in _group(one, waits, verdict.words, style):
            yield _fit(line, style)


def _header(dump: ProcessDump, style: Style) -> str:
    command = " ".join(dump.cmdline) or dump.exe or ""
    line = style.clean(f"process {dump.pid} {dump.name}: {command}")
    return _fit(line if style.whole or len(line) <= _LINE else f"{line[:_LINE]}...", style)


def _fit(line: str, style: Style) -> str:
    if style.width is None or len(line) <= style.width or style.whole:
        return line
    return f"{line[: style.width - 3]}..."


def _group(one: Group, waits: Mapping[int, Wait | None], words: Words, style: Style) -> Iterator[str]:
    first, thread = one.first, one.first.dump
    if len(one.threads) == 1:
        title = f"thread {thread.tid} {thread.name}"
    else:
        title = f"{len(one.threads)} threads {one.title()}"
    yield style.bold(style.clean(f"{title}: {_state(one)}"))
    if len(one.threads) > 1:
        yield f"  {_ids([t.tid for t in one.threads])}"
    yield from _waiting(one, waits, words, style)
    if thread.kernel_stack and (style.kernel or thread.state == "D" or thread.stack is None):
        yield style.clean(f"  kernel: {' <- '.join(thread.kernel_stack)}")
    yield from _stack(first, style)


def _ids(tids: Sequence[int]) -> str:
    more = f" and {len(tids) - _MANY} more" if len(tids) > _MANY else ""
    return " ".join(map(str, tids[:_MANY])) + more


def _waiting(one: Group, waits: Mapping[int, Wait | None], words: Words, style: Style) -> Iterator[str]:
    """Say what a group waits for, unless its system call has said all."""
    first, wait = one.first, waits.get(one.first.tid)
    call = first.dump.call
    if wait is None or (wait.idle and not wait.pids and wait.kind != "sleep" and call and call.descriptors):
        return
    different = {other.what for thread in one.threads if (other := waits.get(thread.tid)) is not None}
    text = f"  {wait.verb} {words.wait(Node(first.pid, first.tid), wait)}".rstrip()
    yield style.clean(text + (", and each of the others for another" if len(different) > 1 else ""))


def _state(one: Group) -> str:
    """Return state, since when, system call and CPU time; of a group what holds for all."""
    thread = one.first.dump
    state = _STATES.get(thread.state, thread.state or "in a core file")
    idle = [t.dump.idle_s for t in one.threads if t.dump.idle_s is not None]
    if idle:
        longest, shortest = seconds(max(idle)), seconds(min(idle))
        state += f" for {longest}" if longest == shortest else f" for {shortest} to {longest}"
    parts = [state]
    if thread.syscall is not None:
        parts.append(f"in {call_words(thread)}")
    if thread.wchan is not None:
        parts.append(f"at {thread.wchan}")
    used = [t.dump.cpu_ns for t in one.threads if t.dump.cpu_ns is not None]
    if used:
        parts.append(f"CPU {seconds(sum(used) / 1e9)}")
    if any(t.dump.moving for t in one.threads):
        parts.append("moving")
    return ", ".join(parts)


def call_words(thread: ThreadDump) -> str:
    """Return a system call with what it refers to."""
    if thread.call is None or thread.call.name is None:
        return f"system call {thread.syscall.number if thread.syscall else '?'}"
    return f"{thread.call.name}({', '.join(thread.call.words)})"


def _stack(named: NamedThread, style: Style) -> Iterator[str]:
    stack = named.dump.stack
    if stack is None:
        yield f"  not captured: {style.clean(named.dump.error or '?')}"
        return
    if not stack.frames:
        yield "  works for the kernel (io_uring, vhost), and runs no code of the program"
    rows = zip(stack.frames, named.dump.modules, named.frames, strict=True)
    for depth, (frame, module, names) in enumerate(rows):
        for name in names:
            yield _frame(depth, frame, module, name, style)
    if stack.stop_reason is not StopReason.OUTERMOST:
        yield f"  [truncated: {stack.stop_reason} at {style.clean(stack.stopped_at or '?')}]"


def _frame(depth: int, frame: Frame, module: Module | None, name: NamedFrame, style: Style) -> str:
    start = f"  #{depth:<3} {frame.pc:#018x}  "
    if name.function is None:
        return start + name.text
    where = style.clean(module.path.rpartition("/")[2]) if module else ""
    end = f"+{name.offset:#x}" if name.offset is not None and not name.inlined else ""
    end += "  (inlined)" * name.inlined
    end += f"  ({where})" if where else ""
    if name.file is not None:
        end += f" at {style.clean(name.file)}:{name.line}"
    room = _NAME if style.width is None else style.width - len(start) - len(end)
    return start + (name.function if style.whole else fold(name.function, room)) + end
