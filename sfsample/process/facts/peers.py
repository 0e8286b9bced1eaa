"""Which processes hold the other end of a pipe or a socket.

Law: looks only at processes that we may look at, and opens nothing but /proc; asked only when a thread sleeps
in a pipe or a socket.  Source: proc(5), "/proc/PID/fd".
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sfsample.process.facts.descriptors import access_mode


class Wanted(NamedTuple):
    """The other end of pipe or socket `inode`; `listens`: a socket that has not accepted the connection."""

    inode: int
    listens: bool = False


class End(NamedTuple):
    """Process `pid` has it; `mode`: it can read ("r"), write ("w") or both."""

    pid: int
    of: Wanted
    mode: str


def ends(links: Mapping[str, Wanted]) -> tuple[End, ...]:
    """Return who has the files that /proc/PID/fd calls so ("pipe:[12]", "socket:[34]"), by pid."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    return tuple(dict.fromkeys(end for pid in pids for end in _of(pid, links)))


def _of(pid: int, links: Mapping[str, Wanted]) -> Iterator[End]:
    for fd in _entries(f"/proc/{pid}/fd"):
        wanted = links.get(_link(f"/proc/{pid}/fd/{fd}"))
        if wanted is not None:
            yield End(pid, wanted, _mode(pid, fd))


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
