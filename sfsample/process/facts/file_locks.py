"""Who waits for a file lock, and who holds it.

Law: /proc/locks says both; nothing is guessed.  Source: proc(5), "/proc/locks": a line with an arrow waits
for the one before it with the same number.
"""

from typing import NamedTuple


class FileLock(NamedTuple):
    """A lock that somebody waits for.  `kind` is FLOCK, POSIX, OFDLCK or LEASE; `pid` -1: of nobody alone."""

    number: int
    kind: str
    inode: int
    holder: int
    waiters: tuple[int, ...]


def waited_for() -> tuple[FileLock, ...]:
    """Return the locks that are waited for now."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            return parse_locks(file.read())
    except OSError:
        return ()


def parse_locks(text: str) -> tuple[FileLock, ...]:
    """Parse /proc/locks."""
    held: dict[int, FileLock] = {}
    for line in text.splitlines():
        fields = line.split()
        waits = fields[1:2] == ["->"]
        del fields[1 : 1 + waits]
        if len(fields) < 6 or not fields[0].rstrip(":").isdecimal():
            continue
        number, kind, pid, place = int(fields[0].rstrip(":")), fields[1], int(fields[4]), fields[5]
        if waits and number in held:
            held[number] = held[number]._replace(waiters=(*held[number].waiters, pid))
        elif not waits:
            held[number] = FileLock(number, kind, int(place.rpartition(":")[2]), pid, ())
    return tuple(lock for lock in held.values() if lock.waiters)
