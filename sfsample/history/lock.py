"""Lock files: a lock ends with its process, however that ends (flock(2)).

The holder may unlink the file, so a lock counts only while the path still leads to it.
"""

import os
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock


def lock(path: str) -> int | None:
    """Return the descriptor that holds the lock until it is closed; None: another holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return fd
        os.close(fd)
