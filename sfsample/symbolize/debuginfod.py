"""Downloads debug files from debuginfod servers into the cache that the standard client uses.

No server is asked unless the user has said so, and `dump` never waits for the network (`online` False).
Invariant: a download is limited in size and appears complete or not at all; like any debug file, it is used
only if its build-id is the one that was asked for.  A file of another user, or where another user may write,
is not used (tests/symbolize/test_debuginfod.py).

Source: debuginfod_find_debuginfo(3): the file is CACHE/BUILDID/debuginfo; an empty one says that no server
has it.
"""

import os
import stat
import time
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from typing import BinaryIO

from sfsample.core.filesystem import whole_file
from sfsample.errors import SfsampleError
from sfsample.symbolize.disk_cache import make_private
from sfsample.symbolize.options import Progress

_MAX_FILE_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 18
_NOT_FOUND_CACHED_S = 600  # after that time the servers are asked again
_HTTP_NOT_FOUND = 404
_HEX_DIGITS = set("0123456789abcdef")
_SCHEMES = ("http://", "https://")


class Debuginfod:
    """Asks `urls` in turn; `cache` is the standard client's cache directory.

    `timeout_s`: for each connection and read.  `online` False: only the cache is searched.
    """

    def __init__(
        self, urls: Sequence[str], cache: str, timeout_s: float, progress: Progress, *, online: bool = True
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls if url.startswith(_SCHEMES)]
        self._cache, self._timeout_s = cache, timeout_s
        self._progress, self._online = progress, online

    def __call__(self, build_id: str) -> mmap | None:
        """Return the debug file of a build-id, or None.  Raises SfsampleError when a server fails."""
        if not set(build_id) <= _HEX_DIGITS:  # it may be from a file that someone else wrote
            return None
        directory = os.path.join(self._cache, build_id)
        if not self._online and not os.path.lexists(directory):
            return None
        path = os.path.join(directory, "debuginfo")
        try:
            if not make_private(directory):
                raise SfsampleError(f"debuginfod: not used, as another user can write there: {directory}")
            found, known_missing = _read_cache(path)
            if found is not None or known_missing or not self._online:
                return found
            with whole_file(path, 0o644) as file:  # it stays empty when no server has it
                any(self._copy_from(f"{url}/buildid/{build_id}/debuginfo", file) for url in self._urls)
        except OSError as failure:
            raise SfsampleError(f"debuginfod: {failure.__class__.__name__}: {failure}") from None
        return _read_cache(path)[0]

    def _copy_from(self, url: str, file: BinaryIO) -> bool:
        """Copy what a server sends into `file`; return False when it has no such file."""
        from urllib.error import HTTPError
        from urllib.request import urlopen

        self._progress(f"asking {url}")
        try:
            with urlopen(url, timeout=self._timeout_s) as answer:  # noqa: S310 - see _SCHEMES
                size = 0
                while chunk := answer.read(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > _MAX_FILE_BYTES:
                        raise OSError(f"{url}: more than {_MAX_FILE_BYTES >> 30} GiB")
                    file.write(chunk)
        except HTTPError as refusal:
            if refusal.code == _HTTP_NOT_FOUND:
                return False
            raise
        return size > 0


def _read_cache(path: str) -> tuple[mmap | None, bool]:
    """Return the file in the cache, and whether it is known (not too long) that no server has it.

    Raises SfsampleError where the file is not the user's own.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None, False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None, True
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SfsampleError(f"debuginfod: not used, as it belongs to another user: {path}")
        if not status.st_size:
            return None, time.time() - status.st_mtime < _NOT_FOUND_CACHED_S
        return mmap(fd, 0, access=ACCESS_READ), True
    finally:
        os.close(fd)
