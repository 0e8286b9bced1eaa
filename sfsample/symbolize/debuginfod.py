"""Downloads debug files from debuginfod servers into the cache that the standard client uses.

sfsample asks a server only with --debuginfod.  `dump` never waits for the network (`online` False).

Invariant: a download is limited in size; the cache gets the complete file or none; a file that another user
may have written is not used (tests/symbolize/test_debuginfod.py).  The build-id of a download is checked.
Source: debuginfod_find_debuginfo(3): the file is CACHE/BUILDID/debuginfo; an empty file: no server has it.
"""

import os
import stat
import time
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO

from sfsample.core.filesystem import open_regular, whole_file
from sfsample.errors import SfsampleError
from sfsample.symbolize.options import Progress

_MAX_FILE_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 18
_NOT_FOUND_CACHED_S = 600  # seconds after which sfsample asks the servers again
_HTTP_NOT_FOUND = 404
_HEX_DIGITS = set("0123456789abcdef")
_SCHEMES = ("http://", "https://")


class Debuginfod:
    """Asks `urls` in turn.  `cache`: the standard client's directory.  `timeout_s`: limit of each wait."""

    def __init__(
        self, urls: Sequence[str], cache: str, timeout_s: float, progress: Progress, *, online: bool = True
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls if url.startswith(_SCHEMES)]
        self._cache, self._timeout_s = cache, timeout_s
        self._progress, self._online = progress, online

    def __call__(self, build_id: str) -> mmap | None:
        """Return the debug file of a build-id, or None.  Raises SfsampleError if a server fails."""
        if not set(build_id) <= _HEX_DIGITS:  # text from a file that another user may have written
            return None
        directory = os.path.join(self._cache, build_id)
        if not self._online and not os.path.lexists(directory):
            return None
        path = os.path.join(directory, "debuginfo")
        try:
            if not make_private(directory):
                raise SfsampleError(f"debuginfod: not used, as another user can write there: {directory}")
            debug_file, is_answered = _read_cache(path)
            if is_answered or not self._online:
                return debug_file
            with whole_file(path, 0o644) as file:  # stays empty if no server has the debug file
                any(self._copy_from(f"{url}/buildid/{build_id}/debuginfo", file) for url in self._urls)
        except OSError as failure:
            raise SfsampleError(f"debuginfod: {failure.__class__.__name__}: {failure}") from None
        return _read_cache(path)[0]

    def _copy_from(self, url: str, file: BinaryIO) -> bool:
        """Copy the answer of a server into `file`; return False if the server has no such file."""
        from http.client import HTTPException
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
        except (HTTPException, ValueError, OverflowError) as failure:  # malformed answer
            raise OSError(f"{url}: {type(failure).__name__}: {failure}") from None
        return size > 0


def _read_cache(path: str) -> tuple[mmap | None, bool]:
    """Return the cached file or None, and True if the cache has an answer.  Raises SfsampleError."""
    try:
        fd = open_regular(path)
    except OSError:
        return None, False
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SfsampleError(f"debuginfod: not used, as it belongs to another user: {path}")
        if not status.st_size:
            return None, time.time() - status.st_mtime < _NOT_FOUND_CACHED_S
        return mmap(fd, 0, access=ACCESS_READ), True
    finally:
        os.close(fd)


def make_private(directory: str) -> bool:
    """Make a directory and its parents; True: no other user can write there.  Raises OSError.

    sfsample checks the path as written, and the path to which symbolic links lead.  Root is trusted.  In a
    sticky directory (/tmp), a user can rename only the user's own files, inode(7).
    """
    path = Path(directory).absolute()
    for level in (*reversed(path.parents), path):
        if not level.exists():
            level.mkdir(mode=0o700, exist_ok=True)
    named = Path(os.path.abspath(directory))
    return all(_is_protected(level) for form in (named, named.resolve()) for level in (form, *form.parents))


def _is_protected(path: Path) -> bool:
    status = path.lstat()
    may_write = not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o022
    return status.st_uid in (0, os.geteuid()) and (not may_write or bool(status.st_mode & stat.S_ISVTX))
