"""Reads which processes wait for a file lock, and which process holds it.

Source: proc(5), "/proc/locks": a line with an arrow waits for the line before it with the same number.
"""

from typing import NamedTuple


class FileLock(NamedTuple):
    """A lock that some process waits for; `kind` is FLOCK, POSIX, OFDLCK or LEASE.

    `holder` and `waiters` are pids; -1: a lock of an open file description, which several processes may
    share.
    """

    number: int
    kind: str
    inode: int
    holder: int
    waiters: tuple[int, ...]


def parse_locks(text: str) -> tuple[FileLock, ...]:
    """Parse /proc/locks, and return the locks that some process waits for."""
    locks: dict[int, FileLock] = {}
    for line in text.splitlines():
        fields = line.split()
        waits = fields[1:2] == ["->"]
        del fields[1 : 1 + waits]
        if len(fields) < 6 or not fields[0].rstrip(":").isdecimal():
            continue
        number, kind, pid, file_id = int(fields[0].rstrip(":")), fields[1], int(fields[4]), fields[5]
        if waits and number in locks:
            locks[number] = locks[number]._replace(waiters=(*locks[number].waiters, pid))
        elif not waits:
            locks[number] = FileLock(number, kind, int(file_id.rpartition(":")[2]), pid, ())
    return tuple(lock for lock in locks.values() if lock.waiters)
