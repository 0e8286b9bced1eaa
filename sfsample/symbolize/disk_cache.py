"""Keeps results on disk for the next run, as files `<hash>.<kind>` in a directory of sfsample.

Invariant: the cache never makes a result wrong and never makes a run fail.  A name has a hash of all bytes
that the result was made from: a build-id does not say what is in a file, as a program can claim that of
another.  A file counts only if it belongs to the user of this process, in a directory that no other user may
enter or replace, and if its checksum is right (tests/symbolize/test_disk_cache.py).  A file appears complete
or not at all (temporary name, then rename), so no lock is needed.  The files that were not used for longest
are deleted when the directory is too large.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from zlib import crc32

from sfsample.core.filesystem import whole_file

_HEADER = Struct("<8sIIQ")  # magic, version, CRC of the payload, its size
_MAGIC, _VERSION = b"sfsnames", 1
_CHUNK_BYTES = 1 << 20
_MAX_BYTES = 512 << 20  # of all files


class DiskCache:
    """A cache of limited size in `directory`; it is always empty if that is None or cannot be used."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory

    def get(self, name: str) -> memoryview | None:
        """Return what was stored under a name, or None."""
        path = self._path(name)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            if not _is_own(os.fstat(fd), stat.S_IFREG) or not _is_intact(fd):
                return None
            os.utime(fd)  # marks it as used now
            return memoryview(mmap(fd, 0, access=ACCESS_READ))[_HEADER.size :]
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def put(self, name: str, payload: bytes) -> None:
        """Store a payload under a name; do nothing if that is not possible."""
        path = self._path(name)
        if path is None or len(payload) > _MAX_BYTES:
            return
        with suppress(OSError):
            with whole_file(path, 0o600) as file:
                file.write(_HEADER.pack(_MAGIC, _VERSION, crc32(payload), len(payload)))
                file.write(payload)
            self._delete_oldest()

    def _path(self, name: str) -> str | None:
        return os.path.join(self._directory, name) if self._directory and self._is_usable else None

    @cached_property
    def _is_usable(self) -> bool:
        return self._directory is not None and _prepare(self._directory)

    def _delete_oldest(self) -> None:
        """Delete the files that were not used for longest, among them leftovers of killed writers."""
        total = 0
        for _, size, path in sorted(self._files(), reverse=True):
            total += size
            if total > _MAX_BYTES:
                with suppress(OSError):
                    os.unlink(path)

    def _files(self) -> Iterator[tuple[float, int, str]]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):  # another process has deleted it
                    found = entry.stat(follow_symlinks=False)
                    yield found.st_mtime, found.st_size, entry.path


def make_private(directory: str) -> bool:
    """Make a directory and those above it, for the user only; return whether no other user can write there.

    Raises OSError.
    """
    path = Path(directory).absolute()
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    return is_private(directory)


def is_private(directory: str) -> bool:
    """Whether no other user can write to a directory, or replace it.  Raises OSError where there is none."""
    named = Path(os.path.abspath(directory))
    resolved = named.resolve()
    return all(_is_protected(each) for path in (named, resolved) for each in (path, *path.parents))


def _is_protected(path: Path) -> bool:
    found = path.lstat()
    may_write = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022
    return found.st_uid in (0, os.geteuid()) and (not may_write or bool(found.st_mode & stat.S_ISVTX))


def _prepare(directory: str) -> bool:
    """Make the directory; return whether no other user may enter or replace it."""
    try:
        is_private, found = make_private(directory), os.lstat(directory)
    except OSError:
        return False
    return is_private and _is_own(found, stat.S_IFDIR) and not found.st_mode & 0o077


def _is_own(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid()


def _is_intact(fd: int) -> bool:
    """Whether the checksum is right.  Reads in pieces, so that the file does not count as used memory."""
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return False
    magic, version, checksum, size = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, _VERSION) or os.fstat(fd).st_size != _HEADER.size + size:
        return False
    actual, at = 0, _HEADER.size
    while chunk := os.pread(fd, _CHUNK_BYTES, at):
        actual = crc32(chunk, actual)
        at += len(chunk)
    return actual == int(checksum)
