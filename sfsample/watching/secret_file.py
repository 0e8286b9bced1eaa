"""Reads secrets (tokens, headers with credentials) from files that no other user can read or replace."""

import os
from shlex import quote

from sfsample.core.filesystem import open_regular
from sfsample.errors import SfsampleError

_MAX_BYTES = 1 << 16


def read_secret(path: str) -> bytes:
    """Return the bytes of such a file.  Raises SfsampleError."""
    try:
        fd = open_regular(path)
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path}: {failure.strerror}") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if status.st_mode & 0o037 or status.st_uid not in (0, os.geteuid()):
            raise SfsampleError(
                f"other users can read or replace the secret: {path}", f"chmod 600 {quote(path)}"
            )
        return file.read(_MAX_BYTES)
