"""A dump as text and as JSON.

Law: the JSON is the contract's, key by key; the text is for a terminal and for a ticket.  Names come from
the functions that are handed in, already fit for a terminal.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from sfsample.model import Frame, StopReason
from sfsample.modules.module import Module
from sfsample.snapshot import ProcessDump, ThreadDump

_STATES = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced",
           "I": "idle", "P": "parked"}  # fmt: skip


class _Symbol(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...


class DumpNames(NamedTuple):
    """How things are named.

    `text` turns (raw symbol, module path, vaddr) into a frame's text; `clean` makes any other text fit for a
    terminal.
    """

    symbol: Callable[[Module, int], _Symbol | None]
    text: Callable[[str | None, str | None, int], str]
    clean: Callable[[str], str]
    syscall: Callable[[int], str | None]


def dump_json(dump: ProcessDump, names: DumpNames) -> dict[str, Any]:
    """Return one element of `processes`."""
    return {
        "pid": dump.pid,
        "name": dump.name,
        "cmdline": dump.cmdline,
        "exe": dump.exe,
        "threads": [_thread_json(thread, names) for thread in dump.threads],
    }


def _thread_json(thread: ThreadDump, names: DumpNames) -> dict[str, Any]:
    call, stack = thread.syscall, thread.stack
    frames = zip(stack.frames, thread.modules, strict=True) if stack else ()
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state,
        "capture": str(thread.capture),
        "stop_ns": thread.stop_ns,
        "error": thread.error,
        "syscall": None if call is None else {
            "number": call.number, "name": names.syscall(call.number), "args": [hex(a) for a in call.args]},
        "wchan": thread.wchan,
        "stop_reason": str(stack.stop_reason) if stack else None,
        "frames": [_frame_json(frame, module, names) for frame, module in frames],
    }  # fmt: skip


def _frame_json(frame: Frame, module: Module | None, names: DumpNames) -> dict[str, Any]:
    symbol = _symbol(frame, module, names)
    path = module.path if module else None
    return {
        "pc": hex(frame.pc),
        "sp": hex(frame.sp),
        "cfa": None if frame.cfa is None else hex(frame.cfa),
        "function": names.text(symbol.name, path, 0) if symbol else None,
        "offset": module.vaddr(frame.pc) - symbol.start if symbol and module else None,
        "module": path,
        "module_offset": hex(module.vaddr(frame.pc)) if module else None,
        "build_id": module.build_id if module else None,
        "found": str(frame.found),
        "file": None,
        "line": None,
        "inlined": False,
    }


def _symbol(frame: Frame, module: Module | None, names: DumpNames) -> _Symbol | None:
    return names.symbol(module, module.vaddr(frame.lookup_pc)) if module else None


def dump_text(dump: ProcessDump, names: DumpNames) -> Iterator[str]:
    """Yield the lines of one process, without newlines."""
    command = names.clean(" ".join(dump.cmdline) or dump.exe or "")
    yield f"process {dump.pid} {names.clean(dump.name)}: {command}"
    for thread in dump.threads:
        yield ""
        yield from _thread_text(thread, names)


def _thread_text(thread: ThreadDump, names: DumpNames) -> Iterator[str]:
    what = [_STATES.get(thread.state, thread.state)]
    if thread.syscall is not None:
        what.append(f"in {names.syscall(thread.syscall.number) or f'system call {thread.syscall.number}'}")
    if thread.wchan is not None:
        what.append(f"at {names.clean(thread.wchan)}")
    yield f"thread {thread.tid} {names.clean(thread.name)}: {', '.join(what)}"
    if thread.stack is None:
        yield f"  not captured: {names.clean(thread.error or '?')}"
        return
    for depth, (frame, module) in enumerate(zip(thread.stack.frames, thread.modules, strict=True)):
        yield _frame_text(depth, frame, module, names)
    if thread.stack.stop_reason is not StopReason.OUTERMOST:
        yield f"  [truncated: {thread.stack.stop_reason} at {names.clean(thread.stack.stopped_at or '?')}]"


def _frame_text(depth: int, frame: Frame, module: Module | None, names: DumpNames) -> str:
    symbol = _symbol(frame, module, names)
    if module is None:
        text = names.text(None, None, frame.pc)
    elif symbol is None:
        text = names.text(None, module.path, module.vaddr(frame.pc))
    else:
        offset = module.vaddr(frame.pc) - symbol.start
        where = names.clean(module.path.rpartition("/")[2])
        text = f"{names.text(symbol.name, module.path, 0)}+{offset:#x}  ({where})"
    return f"  #{depth:<3} {frame.pc:#018x}  {text}"
