"""Lock files: a lock ends with its process, however that ends (flock(2))."""

import os
from fcntl import LOCK_EX, LOCK_NB, flock


def lock(path: str) -> int | None:
    """Return the descriptor that holds the lock until it is closed; None: another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
