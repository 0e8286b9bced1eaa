"""The locks of a history: a lock is one byte of a common file, so that no file is left behind.

A lock ends with its process, even if the process is killed (open file description locks: fcntl(2)).
"""

import os
import struct
from fcntl import F_OFD_SETLK, F_WRLCK, fcntl
from hashlib import sha256

_OFFSET_BYTES = 7  # bytes of a name's hash, the offset of its lock; an off_t is positive


def lock(directory: str, name: str) -> int | None:
    """Return the descriptor that holds the lock until it is closed; None: another process holds it."""
    path = os.path.join(directory, ".lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    at = int.from_bytes(sha256(name.encode("utf-8", "replace")).digest()[:_OFFSET_BYTES], "little")
    try:
        fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", F_WRLCK, os.SEEK_SET, at, 1, 0))  # struct flock
    except (BlockingIOError, PermissionError):
        os.close(fd)
        return None
    return fd
