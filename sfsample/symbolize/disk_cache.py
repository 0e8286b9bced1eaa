"""Files that save work next time: `<build-id>.<kind>` in a directory of our own.

Law: a cache never makes a result wrong and never makes a run fail.  What is read was written by our own user,
in a directory that nobody else may enter, and its checksum holds; else it is not there.  A file appears
complete or not at all (a temporary name, then a rename), so no lock is needed.  The oldest go when there is
too much.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from struct import Struct
from zlib import crc32

from sfsample.core.filesystem import whole_file

_HEADER = Struct("<8sIIQ")  # magic, version, CRC of the payload, its size
_MAGIC, _VERSION = b"sfsnames", 1
_CHUNK = 1 << 20
_MOST_BYTES = 512 << 20
_LEFTOVER_S = 3600  # a temporary file that is older was left behind by somebody who was killed


class DiskCache:
    """A directory; one that cannot be used is a cache that is always empty."""

    def __init__(self, directory: str | None, most_bytes: int = _MOST_BYTES) -> None:
        self._directory = directory
        self._most = most_bytes
        self._usable: bool | None = None

    def get(self, name: str) -> memoryview | None:
        """Return what was put under a name."""
        path = self._path(name)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            if not _is_ours(os.fstat(fd), stat.S_IFREG) or not _is_whole(fd):
                return None
            os.utime(fd)  # the oldest go first
            return memoryview(mmap(fd, 0, access=ACCESS_READ))[_HEADER.size :]
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def put(self, name: str, payload: bytes) -> None:
        """Keep something; that it cannot be kept is no failure."""
        path = self._path(name)
        if path is None or len(payload) > self._most:
            return
        with suppress(OSError):
            with whole_file(path, 0o600) as file:
                file.write(_HEADER.pack(_MAGIC, _VERSION, crc32(payload), len(payload)))
                file.write(payload)
            self._make_room()

    def _path(self, name: str) -> str | None:
        if self._directory is None:
            return None
        if self._usable is None:
            self._usable = _prepare(self._directory)
        return os.path.join(self._directory, name) if self._usable else None

    def _make_room(self) -> None:
        """Delete the files that were not used for longest, and what killed writers have left."""
        total = 0
        for used, size, path in sorted(self._files(), reverse=True):
            total += size
            if total > self._most or (path.endswith(".tmp") and used < time.time() - _LEFTOVER_S):
                with suppress(OSError):
                    os.unlink(path)

    def _files(self) -> Iterator[tuple[float, int, str]]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(OSError):  # another process has deleted it
                    found = entry.stat(follow_symlinks=False)
                    yield found.st_mtime, found.st_size, entry.path


def _prepare(directory: str) -> bool:
    """Make the directory; return whether it is ours alone."""
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        found = os.lstat(directory)
    except OSError:
        return False
    return _is_ours(found, stat.S_IFDIR) and not found.st_mode & 0o077


def _is_ours(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid()


def _is_whole(fd: int) -> bool:
    """Whether the payload is what was written; read in pieces, so that it does not count as our memory."""
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return False
    magic, version, checksum, size = _HEADER.unpack(header)
    if (magic, version) != (_MAGIC, _VERSION) or os.fstat(fd).st_size != _HEADER.size + size:
        return False
    actual, at = 0, _HEADER.size
    while chunk := os.pread(fd, _CHUNK, at):
        actual = crc32(chunk, actual)
        at += len(chunk)
    return actual == int(checksum)
