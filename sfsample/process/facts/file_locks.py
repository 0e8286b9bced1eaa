"""Finds the processes that hold the file locks for which other processes wait.

Source: proc(5), "/proc/locks"; proc_pid_fdinfo(5), "lock".
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.core.foreign import total
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.procfs import looked_at, read_text

_LOCK_PID, _LOCK_INODE = 3, 4  # indexes of fields in a line of /proc/locks, without the line's number
_MAX_FDS = 1000  # open files of a process among which a file lock is searched


class FileLock(NamedTuple):
    """A file lock for which a process waits."""

    inode: int
    holder: int  # process id; -1: the lock belongs to an open file description, which processes may share
    waiter: int = 0  # process id; -1: as for `holder`; 0: unknown


def contended_locks(files: Iterable[Descriptor]) -> tuple[FileLock, ...]:
    """Return the locks of these files for which processes wait; holder 0: it no longer has the lock."""
    inodes = {file.inode for file in files}
    found = parse_locks(read_text("/proc/locks")) or ()
    return tuple(lock if _is_held(lock) else lock._replace(holder=min(0, lock.holder))
                 for lock in found if lock.inode in inodes)  # fmt: skip


def _is_held(lock: FileLock) -> bool:
    """Return True unless no file of the holder has the lock (fdinfo), or if sfsample cannot see all files."""
    process = f"/proc/{lock.holder}"
    fds = looked_at(lambda: os.listdir(f"{process}/fd")) or ()
    pattern = re.compile(rf"(?m)^lock:.*:{lock.inode} ")
    is_unsure = len(fds) > _MAX_FDS or (not fds and os.path.isdir(process))
    return is_unsure or any(pattern.search(read_text(f"{process}/fdinfo/{fd}")) for fd in fds)


@total
def parse_locks(text: str) -> tuple[FileLock, ...]:
    """Parse /proc/locks: "->" marks a waiter for the lock with its number, and for its other shares."""
    locks: dict[str, tuple[str, ...]] = {}  # number -> its fields without the pid
    holders = defaultdict[tuple[str, ...], list[int]](list)
    waiters = list[tuple[str, int]]()
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        fields = rest.split()
        if fields[:1] == ["->"]:
            waiters.append((number, int(fields[_LOCK_PID + 1])))
        elif len(fields) > _LOCK_INODE and number.isdecimal():
            lock = locks[number] = (*fields[:_LOCK_PID], *fields[_LOCK_INODE:])
            holders[lock].append(int(fields[_LOCK_PID]))
    return tuple(dict.fromkeys(
        FileLock(int(lock[_LOCK_PID].rpartition(":")[2]), holder, waiter)
        for number, waiter in waiters if number in locks
        for lock in [locks[number]] for holder in holders[lock]))  # fmt: skip
