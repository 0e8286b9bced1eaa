"""One look at every thread of a process.

Law: a thread that cannot be captured is shown with the reason, never left out and never waited for.
"""

import time
from typing import NamedTuple

from sfsample.files import Home
from sfsample.model import Capture, Stack, ThreadSnapshot
from sfsample.modules.module import Module
from sfsample.target.live import LiveProcess
from sfsample.target.permission import tracer_of
from sfsample.target.procfs import Stat
from sfsample.target.tracer import Missed
from sfsample.unwind.unwinder import Unwinder


class Syscall(NamedTuple):
    """The system call that a thread is in."""

    number: int
    args: tuple[int, ...]


class ThreadDump(NamedTuple):
    """One thread.  `stack` is None when it could not be captured; then `error` says why."""

    tid: int
    name: str
    state: str
    capture: Capture
    stop_ns: int | None
    error: str | None
    syscall: Syscall | None
    wchan: str | None
    stack: Stack | None
    modules: tuple[Module | None, ...]  # of each frame


class ProcessDump(NamedTuple):
    """One process.  `time` is seconds since the epoch."""

    pid: int
    name: str
    cmdline: list[str]
    exe: str | None
    time: float
    threads: tuple[ThreadDump, ...]
    problems: tuple[str, ...]
    home: Home | None = None  # where names are to be looked for


def take(target: LiveProcess, unwinder: Unwinder) -> ProcessDump:
    """Look at every thread once.  Raises NotPermitted when none may be looked at."""
    proc = target.proc
    process = proc.stat()
    now = time.time()
    dumps = [_thread(target, unwinder, tid, stat) for tid, stat in target.threads()]
    problems = (*target.opener.problems, *target.index.problems)
    return ProcessDump(
        pid=target.pid,
        name=process.name if process else "?",
        cmdline=_command_line(target),
        exe=proc.link("exe"),
        time=now,
        threads=tuple(d for d in dumps if d is not None),
        problems=problems,
        home=target.home,
    )


def _command_line(target: LiveProcess) -> list[str]:
    """Return the arguments; a program that has written a title over them gives its words."""
    text = (target.proc.read("cmdline") or b"").decode("utf-8", "surrogateescape").rstrip("\0")
    words = text.split("\0") if text else []
    return words[0].split() if len(words) == 1 and " " in words[0] else words


def _thread(target: LiveProcess, unwinder: Unwinder, tid: int, stat: Stat) -> ThreadDump | None:
    target.index.expire()
    syscall, wchan = _syscall(target, tid), _wchan(target, tid)
    before = ThreadDump(tid, stat.name, stat.state, Capture.FAILED, None, None, syscall, wchan, None, ())
    if stat.state == "D":
        return before._replace(error="in uninterruptible sleep, where it cannot be stopped")
    if stat.state == "t":
        return before._replace(error=f"stopped by its tracer, process {tracer_of(target.proc, tid)}")
    taken = _capture(target, unwinder, tid)
    if isinstance(taken, Missed):
        return None if taken.gone else before._replace(error=taken.why)
    snapshot, stack = taken
    modules = tuple(target.index.find(frame.lookup_pc) for frame in stack.frames)
    return before._replace(capture=Capture.STOPPED, stop_ns=snapshot.stop_ns, stack=stack, modules=modules)


def _capture(target: LiveProcess, unwinder: Unwinder, tid: int) -> tuple[ThreadSnapshot, Stack] | Missed:
    taken = target.capture(tid)
    if isinstance(taken, Missed):
        return taken
    stack = unwinder.walk(taken)
    if target.capturer.learn_trampolines(stack):
        again = target.capture(tid)
        if not isinstance(again, Missed):
            return again, unwinder.walk(again)
    return taken, stack


def _syscall(target: LiveProcess, tid: int) -> Syscall | None:
    """Parse /proc/PID/task/TID/syscall (proc(5)): "running", "-1 SP PC" or "NR ARG*6 SP PC"."""
    fields = (target.proc.read(f"task/{tid}/syscall") or b"").split()
    if len(fields) != 9 or fields[0] == b"-1":
        return None
    return Syscall(int(fields[0]), tuple(int(field, 16) for field in fields[1:7]))


def _wchan(target: LiveProcess, tid: int) -> str | None:
    text = (target.proc.read(f"task/{tid}/wchan") or b"").decode("ascii", "replace")
    return None if text in ("", "0") else text
