"""Stops a process with SIGSTOP while three unwinders read it.

All see the same state, which is checked afterwards for each thread by its sp and pc.  The threads that slept
are determined before the stop: a stopped thread in a system call may have been running there.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

_MAX_STOP_S = 2.0


class Place(NamedTuple):
    """The position of a thread."""

    in_call: bool  # in a system call
    sp: str
    pc: str


Where = dict[int, Place]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[set[int] | None]:
    """Stop a process; yield the threads that slept, or None if it has ended or one does not stop."""
    slept = {tid: runs(pid, tid) for tid in tids(pid) if state(pid, tid) in "SD"}
    try:
        os.kill(pid, signal.SIGSTOP)
        held = _wait(pid)
        yield {tid for tid, times in slept.items() if runs(pid, tid) <= times + 1} if held else None
    except ProcessLookupError:
        yield None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _wait(pid: int) -> bool:
    end = time.monotonic() + _MAX_STOP_S
    while time.monotonic() < end:
        states = {state(pid, tid) for tid in tids(pid)}
        if states <= {"T"}:
            return bool(states)
        time.sleep(0.0005)
    return False


def tids(pid: int) -> list[int]:
    """Return the threads of a process; none after its end."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []


def state(pid: int, tid: int) -> str:
    """Return a thread's state letter."""
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return "X"


def runs(pid: int, tid: int) -> int:
    """Return how often a thread was put on a CPU (schedstat); a stop needs one time."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[2])
    except OSError:
        return 0


def places(pid: int) -> Where:
    """Return the position of each thread.

    /proc/PID/task/TID/syscall begins with the number of a system call, or -1, and ends with sp and pc.
    """
    found: Where = {}
    for tid in tids(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
            words = file.read().split()
            if len(words) > 2:
                found[tid] = Place(words[0] != "-1", words[-2], words[-1])
    return found
