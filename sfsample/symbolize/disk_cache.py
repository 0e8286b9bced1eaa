"""Keeps results on disk for the next run, as files `<hash>.<kind>` in a directory of sfsample.

Invariant: the cache never makes a result wrong, and never makes a run fail
(tests/symbolize/test_disk_cache.py). For that reason:

* The name of a file has a hash of all bytes from which the result was made.  A build-id would not do, because
  a program can claim the build-id of another.
* A file is used only if it belongs to the user of this process.
* No other user may enter or replace the directory, or a directory above it.  This holds for the path as it is
  written, and for the path behind its symbolic links.  Root is trusted.  In a sticky directory (/tmp), a user
  can rename only the user's own files, inode(7).
* A file appears complete or not at all, also after a loss of power (fsync(2)), so no lock is needed.

If the directory is too large, the files that were not used for the longest time are deleted.
"""

import os
import stat
from contextlib import suppress
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path

from sfsample.core.filesystem import whole_file

_MAX_BYTES = 512 << 20  # bytes of all files


class DiskCache:
    """A cache of limited size in `directory`.  It is always empty if that is None or cannot be used."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory

    def get(self, name: str) -> memoryview | None:
        """Return the payload that was stored under a name, or None."""
        path = self._path(name)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            if not _is_own(os.fstat(fd), stat.S_IFREG):
                return None
            os.utime(fd)  # time of the last use
            return memoryview(mmap(fd, 0, access=ACCESS_READ))
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def put(self, name: str, payload: bytes) -> None:
        """Store a payload under a name, if possible."""
        path = self._path(name)
        if path is None or len(payload) > _MAX_BYTES:
            return
        with suppress(OSError):
            with whole_file(path, 0o600) as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            self._delete_oldest()

    def _path(self, name: str) -> str | None:
        return os.path.join(self._directory, name) if self._directory and self._is_usable else None

    @cached_property
    def _is_usable(self) -> bool:
        """Make the directory; return True if no other user may enter or replace it."""
        directory = self._directory or ""
        try:
            is_safe, status = make_private(directory), os.lstat(directory)
        except OSError:
            return False
        return is_safe and _is_own(status, stat.S_IFDIR) and not status.st_mode & 0o077

    def _delete_oldest(self) -> None:
        """Delete the files that were not used for the longest time, also leftovers of killed writers."""
        files, total = [], 0
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):  # file that another process has deleted
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, entry.path))
        for _, size, path in sorted(files, reverse=True):
            total += size
            if total > _MAX_BYTES:
                with suppress(OSError):
                    os.unlink(path)


def make_private(directory: str) -> bool:
    """Make a directory and those above it; True: no other user can write there.  Raises OSError."""
    path = Path(directory).absolute()
    for level in (*reversed(path.parents), path):
        if not level.exists():
            level.mkdir(mode=0o700, exist_ok=True)
    named = Path(os.path.abspath(directory))
    return all(_is_protected(level) for each in (named, named.resolve()) for level in (each, *each.parents))


def _is_protected(path: Path) -> bool:
    status = path.lstat()
    may_write = not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o022
    return status.st_uid in (0, os.geteuid()) and (not may_write or bool(status.st_mode & stat.S_ISVTX))


def _is_own(status: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid()
