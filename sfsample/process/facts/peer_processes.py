"""Finds the processes that have the other end of a pipe or a socket open, or that hold a file lock.

For pipes and sockets, sfsample searches /proc/PID/fd of every process that it may read.  This takes long on a
large machine, so a dump does it only if a thread sleeps in a pipe or a socket.

Source: proc(5), "/proc/PID/fd", "/proc/locks".
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sfsample.core.foreign import total
from sfsample.process.facts.descriptors import access_mode
from sfsample.process.procfs import read_link, read_text

_LOCK_PID, _LOCK_INODE = 3, 4  # indexes of the fields after the number of a line of /proc/locks


class NearEnd(NamedTuple):
    """The pipe or socket that a thread sleeps in, by inode."""

    inode: int
    listens: bool = False  # the other end is a listening socket: its process has not accepted the connection


class PeerProcess(NamedTuple):
    """Process `pid` has the other end of `near` open, to read ("r"), to write ("w") or both ("rw")."""

    pid: int
    near: NearEnd
    mode: str


def find_peer_processes(links: Mapping[str, NearEnd]) -> tuple[PeerProcess, ...]:
    """Return the processes that have a file of `links` open, in the order of their pids.

    A key of `links` is the other end as /proc/PID/fd shows it: "pipe:[12]", "socket:[34]".
    """
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    return tuple(dict.fromkeys(peer for pid in pids for peer in _in_process(pid, links)))


def _in_process(pid: int, links: Mapping[str, NearEnd]) -> Iterator[PeerProcess]:
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for fd in fds:
        near = links.get(read_link(f"/proc/{pid}/fd/{fd}") or "")
        if near is not None:
            yield PeerProcess(pid, near, access_mode(read_text(f"/proc/{pid}/fdinfo/{fd}")))


class FileLock(NamedTuple):
    """A lock on a file that some process waits for."""

    inode: int
    holder: int  # process id; -1: the lock belongs to an open file description, which processes may share


@total
def parse_locks(text: str) -> tuple[FileLock, ...]:
    """Parse /proc/locks: a line with an arrow waits for the line before it with the same number."""
    locks: dict[str, FileLock] = {}
    waited_for: dict[str, FileLock] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        fields = rest.split()
        if fields[:1] == ["->"]:
            if number in locks:
                waited_for[number] = locks[number]
        elif len(fields) > _LOCK_INODE and number.isdecimal():
            inode = int(fields[_LOCK_INODE].rpartition(":")[2])
            locks[number] = FileLock(inode, int(fields[_LOCK_PID]))
    return tuple(waited_for.values())
