"""Which processes hold the ends of a pipe.

Law: looks only at processes that we may look at, and opens nothing but /proc; asked only when a thread sleeps
in a pipe.  Source: proc(5), "/proc/PID/fd".
"""

import os
from collections.abc import Container, Iterator
from typing import NamedTuple

from sfsample.target.descriptors import access_mode


class PipeEnd(NamedTuple):
    """Process `pid` can read ("r"), write ("w") or both."""

    pid: int
    inode: int
    mode: str


def pipe_ends(inodes: Container[int]) -> tuple[PipeEnd, ...]:
    """Return the ends of these pipes, by pid."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    return tuple(dict.fromkeys(end for pid in pids for end in _of(pid, inodes)))


def _of(pid: int, inodes: Container[int]) -> Iterator[PipeEnd]:
    for fd in _entries(f"/proc/{pid}/fd"):
        link = _link(f"/proc/{pid}/fd/{fd}")
        if link.startswith("pipe:[") and int(link[6:-1]) in inodes:
            yield PipeEnd(pid, int(link[6:-1]), _mode(pid, fd))


def _mode(pid: int, fd: str) -> str:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            return access_mode(next((line for line in file if line.startswith("flags:")), ""))
    except OSError:
        return ""


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
