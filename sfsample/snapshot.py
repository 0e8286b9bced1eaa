"""One look at every thread of a process.

Law: a thread that cannot be captured is shown with the reason, never left out and never waited for.
"""

import time
from typing import NamedTuple

from sfsample.files import Home
from sfsample.look import Looker
from sfsample.model import Capture, Stack
from sfsample.modules.module import Module
from sfsample.target.live import LiveProcess
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
    looker = Looker(target, unwinder)
    dumps = [_thread(target, looker, tid, stat) for tid, stat in target.threads()]
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


def _thread(target: LiveProcess, looker: Looker, tid: int, stat: Stat) -> ThreadDump | None:
    target.index.expire()
    syscall, wchan = _syscall(target, tid), _wchan(target, tid)
    before = ThreadDump(tid, stat.name, stat.state, Capture.FAILED, None, None, syscall, wchan, None, ())
    found = looker.look(tid, stat.state)
    if isinstance(found, Missed):
        return None if found.gone else before._replace(error=found.why)
    snapshot = found.snapshot
    stop_ns = snapshot.stop_ns if snapshot.capture is Capture.STOPPED else None
    return before._replace(
        capture=snapshot.capture, stop_ns=stop_ns, stack=found.stack, modules=found.modules
    )


def _syscall(target: LiveProcess, tid: int) -> Syscall | None:
    """Parse /proc/PID/task/TID/syscall (proc(5)): "running", "-1 SP PC" or "NR ARG*6 SP PC"."""
    fields = (target.proc.read(f"task/{tid}/syscall") or b"").split()
    if len(fields) != 9 or fields[0] == b"-1":
        return None
    return Syscall(int(fields[0]), tuple(int(field, 16) for field in fields[1:7]))


def _wchan(target: LiveProcess, tid: int) -> str | None:
    text = (target.proc.read(f"task/{tid}/wchan") or b"").decode("ascii", "replace")
    return None if text in ("", "0") else text
