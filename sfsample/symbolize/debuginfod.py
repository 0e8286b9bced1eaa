"""Debug files from debuginfod servers, in the cache that the standard client uses.

Law: asks nobody unless the user has said so, and a dump never waits for the network (`online` False).  What
comes is bounded, appears complete or not at all, and is believed by its build-id like any debug file.

Source: debuginfod_find_debuginfo(3): CACHE/BUILDID/debuginfo; an empty file there says that no server has it.
"""

import os
import stat
import time
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from typing import BinaryIO

from sfsample.core.filesystem import whole_file
from sfsample.errors import SfsampleError
from sfsample.symbolize.options import Progress

_MOST_BYTES = 4 << 30
_CHUNK = 1 << 18
_MISS_S = 600  # a server is asked again after that time
_NOT_FOUND = 404
_SCHEMES = ("http://", "https://")


class Debuginfod:
    """Asks `urls` in turn; `cache` is the standard client's directory."""

    def __init__(
        self, urls: Sequence[str], cache: str, timeout_s: float, progress: Progress, *, online: bool = True
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls if url.startswith(_SCHEMES)]
        self._cache, self._timeout = cache, timeout_s
        self._progress, self._online = progress, online

    def __call__(self, build_id: str) -> mmap | None:
        """Return the debug file of a build-id.  Raises SfsampleError when a server does not answer."""
        path = os.path.join(self._cache, build_id, "debuginfo")
        found, known = _cached(path)
        if found is not None or known or not self._online:
            return found
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            self._download(build_id, path)
        except OSError as failure:
            raise SfsampleError(f"debuginfod: {failure.__class__.__name__}: {failure}") from None
        return _cached(path)[0]

    def _download(self, build_id: str, path: str) -> None:
        """Put the file of the first server that has it at `path`, or an empty one when none has."""
        with whole_file(path, 0o666) as file:
            any(self._ask(f"{url}/buildid/{build_id}/debuginfo", file) for url in self._urls)

    def _ask(self, url: str, file: BinaryIO) -> bool:
        """Copy what a server sends; False when it has no such file."""
        from urllib.error import HTTPError
        from urllib.request import urlopen

        self._progress(f"asking {url}")
        try:
            with urlopen(url, timeout=self._timeout) as answer:  # noqa: S310 - see _SCHEMES
                size = 0
                while chunk := answer.read(_CHUNK):
                    size += len(chunk)
                    if size > _MOST_BYTES:
                        raise OSError(f"{url}: more than {_MOST_BYTES >> 30} GiB")
                    file.write(chunk)
        except HTTPError as refusal:
            if refusal.code == _NOT_FOUND:
                return False
            raise
        return size > 0


def _cached(path: str) -> tuple[mmap | None, bool]:
    """Return the file in the cache, and whether it is known lately that there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None, False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None, True
        if not status.st_size:
            return None, time.time() - status.st_mtime < _MISS_S
        return mmap(fd, 0, access=ACCESS_READ), True
    finally:
        os.close(fd)
