"""Finds the process on which an OS thread of sfsample is stuck in a system call, and sets the process aside.

The next call on that process may be stuck, too.  So sfsample does not open the process while the OS thread is
stuck, and at least for some seconds.  Recordings of other processes go on.  `watch` executes itself again
(execve(2)).  This ends the stuck OS thread, so the kernel releases the target's threads.  `hand_over` and
`take_over` pass the list of set-aside processes to the new program.
"""

import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple

from sfsample.errors import AlreadyTraced
from sfsample.process.procfs import read_text, stat_of
from sfsample.process.syscall_names import syscall_name

_DELAY_S = 15.0  # least time in seconds that a process is set aside


class LeftBehind(SystemExit):
    """Raised in a stuck OS thread when its call returns; by then, another OS thread does the work."""


class SetAside(AlreadyTraced):
    """The process is set aside: an OS thread of sfsample is, or was, stuck in a call on the process."""


class _Aside(NamedTuple):
    os_thread: int  # thread id of the stuck thread of sfsample; 0: it ended with an execve(2)
    until_s: float  # time when sfsample may try the process again (time.monotonic)
    held: str = ""  # text for the error message: the threads of the process that stay stopped

    @property
    def is_stuck(self) -> bool:
        return os.path.exists(f"/proc/self/task/{self.os_thread}")


# (process id, start time) -> the stuck OS thread, and the time of the next attempt
_aside: dict[tuple[int, int], _Aside] = {}


def target_of(ident: int) -> int | None:
    """Return the pid of the target on which an OS thread of sfsample works; None: unknown.

    The id comes from the innermost Python frame whose `self` or `self.process` has a pid.  (The sampler's
    current process would be wrong: a checkpoint may capture a thread of another process.)
    """
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - documented so
    while frame is not None:
        owner = frame.f_locals.get("self")
        for each in (owner, getattr(owner, "process", None)):
            if isinstance(pid := getattr(each, "pid", None), int):
                return pid
        frame = frame.f_back
    return None


def waits_for_sfsample(os_thread: int) -> bool:
    """Return True if an OS thread runs or is runnable, waits for a lock of sfsample, or has ended."""
    number, *_ = read_text(f"/proc/self/task/{os_thread}/syscall").split() or ["running"]
    return number == "running" or (number.isdecimal() and syscall_name(int(number)) == "futex")


def set_aside(pid: int, os_thread: int) -> None:
    """Take no samples of a process for a while: an OS thread is stuck on it."""
    if stat := stat_of(pid):
        stats = {tid: stat_of(f"{pid}/task/{tid}") for tid in os.listdir(f"/proc/{pid}/task")}
        stopped = ", ".join(tid for tid, thread in stats.items() if thread and thread.state == "t")
        held = f" (thread {stopped} stays stopped until the call returns)" if stopped else ""
        _aside[pid, stat.starttime] = _Aside(os_thread, time.monotonic() + _DELAY_S, held)


def check_not_aside(pid: int) -> None:
    """Raise SetAside if a call on a process is stuck, or was stuck a short time ago."""
    stat = stat_of(pid) if _aside else None
    aside = _aside.get((pid, stat.starttime)) if stat else None
    if aside is not None and aside.is_stuck:
        raise SetAside(
            pid, f"sfsample traces it already, in a call that does not return{aside.held}: {pid}",
            "the tracer is a recording that goes on, or that is stuck in a system call on this process",
        )  # fmt: skip
    if aside is not None and time.monotonic() < aside.until_s:
        raise SetAside(pid, f"not sampled for a while, because a system call on it did not return: {pid}")


def any_stuck() -> bool:
    """Return True if an OS thread is stuck on a process."""
    return any(aside.is_stuck for aside in _aside.values())


def hand_over() -> str:
    """Return the processes that are set aside, for `take_over`."""
    return " ".join(f"{pid},{start},{aside.until_s}" for (pid, start), aside in _aside.items())


def take_over(text: str) -> None:
    """Set aside the processes that this program had set aside before its execve(2)."""
    with suppress(ValueError):  # a text that `hand_over` did not write
        for pid, start, until_s in (entry.split(",") for entry in text.split()):
            _aside[int(pid), int(start)] = _Aside(0, float(until_s))
