"""Names, checks and locks the files of a history, one for each UTC day."""

import os
import re
import stat
import struct
import time
from calendar import timegm
from collections.abc import Iterator
from contextlib import suppress
from fcntl import F_OFD_SETLK, F_WRLCK, fcntl
from hashlib import sha256
from shlex import quote
from typing import NamedTuple

from sfsample.core.foreign import utc
from sfsample.errors import BadInput

DAY_S = 86400
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.sqlite", re.ASCII)
_ASIDE = re.compile(r"(\d{4}-\d\d-\d\d)\.sqlite\.damaged-\d{8}T\d{6}Z(?:-wal|-journal)?", re.ASCII)
_OFFSET_BYTES = 7  # bytes of a hash that become the offset of a lock, which is a positive off_t
BESIDE = ("-wal", "-shm", "-journal")  # suffixes of the files that SQLite keeps beside a database


class FileName(NamedTuple):
    """The name of a file of a history; `day`: days since the epoch."""

    directory: str
    day: int

    @property
    def path(self) -> str:
        """The path of the file."""
        day = utc(self.day * DAY_S, "%Y-%m-%d")
        return os.path.join(self.directory, f"{day}.sqlite")

    @property
    def end_s(self) -> int:
        """The end of the day, in seconds since the epoch."""
        return (self.day + 1) * DAY_S


def file_names(directory: str) -> list[FileName]:
    """Return the files of a history, the oldest first.  Raises OSError."""
    return sorted(name for _, name in _matching(directory, _NAME))


def files_set_aside(directory: str) -> list[tuple[FileName, str]]:
    """Return former name and path of each damaged file that was set aside, oldest first.  Raises OSError."""
    return sorted((name, os.path.join(directory, found)) for found, name in _matching(directory, _ASIDE))


def _matching(directory: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, FileName]]:
    for match in filter(None, map(pattern.fullmatch, os.listdir(directory))):
        with suppress(ValueError):
            day = timegm(time.strptime(match[1], "%Y-%m-%d")) // DAY_S
            yield match[0], FileName(directory, day)


def check_owner(path: str, *, directory: bool = False) -> None:
    """Raise BadInput unless the path is a file (`directory`: a directory) that no other user can write to."""
    status = os.lstat(path)
    if not (stat.S_ISDIR if directory else stat.S_ISREG)(status.st_mode):
        is_link = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "something else"
        raise BadInput(f"{is_link}, not a {'directory' if directory else 'regular file'}")
    if status.st_uid not in (0, os.geteuid()):
        raise BadInput(f"belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022:
        raise BadInput(f"other users may write to it: chmod go-w {quote(path)}")


def remove(name: FileName) -> None:
    """Unlink a file of a history; SQLite's files beside it go first, or a new file would inherit them."""
    for suffix in (*BESIDE, ""):
        with suppress(FileNotFoundError):
            os.unlink(name.path + suffix)


def set_aside(name: FileName) -> str:
    """Rename a damaged file and SQLite's files beside it; return the new path."""
    path = f"{name.path}.damaged-{utc(time.time(), '%Y%m%dT%H%M%SZ')}"
    for suffix in (*BESIDE, ""):
        with suppress(FileNotFoundError):
            os.rename(name.path + suffix, path + suffix)
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")  # index of the log, which SQLite makes anew
    return path


def lock(directory: str, name: str) -> int | None:
    """Return a descriptor that holds the lock `name` while open, or None if another process has the lock.

    All locks are bytes of the file `.lock`, so no other file remains.  A lock ends with its process, even if
    the process is killed (open file description locks: fcntl(2)).
    """
    path = os.path.join(directory, ".lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    at = int.from_bytes(sha256(name.encode("utf-8", "replace")).digest()[:_OFFSET_BYTES], "little")
    try:
        fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", F_WRLCK, os.SEEK_SET, at, 1, 0))  # struct flock
    except (BlockingIOError, PermissionError):
        os.close(fd)
        return None
    return fd
