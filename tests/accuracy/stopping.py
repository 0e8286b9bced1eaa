"""One instant of a process, held for as long as it takes three unwinders to look at it.

Law: SIGSTOP holds it, so nobody who looks needs to keep it, and all see the same state; that it *was* the
same is proved afterwards, thread by thread, by the stack pointer and pc that the kernel tells.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

_PATIENCE_S = 2.0


class Place(NamedTuple):
    """Where a thread is; `asleep`: in a system call."""

    asleep: bool
    sp: str
    pc: str


Where = dict[int, Place]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[bool]:
    """Hold a process; False: it has ended, or a thread of it does not stop."""
    try:
        os.kill(pid, signal.SIGSTOP)
        yield _wait(pid)
    except ProcessLookupError:
        yield False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _wait(pid: int) -> bool:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        states = {state(pid, tid) for tid in tids(pid)}
        if states <= {"T"}:
            return bool(states)
        time.sleep(0.0005)
    return False


def tids(pid: int) -> list[int]:
    """Return the threads of a process; none when it has ended."""
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


def places(pid: int) -> Where:
    """Return where each thread is.

    /proc/PID/task/TID/syscall begins with the number of a system call, or -1, and ends with sp and pc.
    """
    found: Where = {}
    for tid in tids(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
            words = file.read().split()
            if len(words) > 2:
                found[tid] = Place(words[0] != "-1", words[-2], words[-1])
    return found
