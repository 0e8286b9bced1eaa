"""Gives the cause why a file of /proc/PID cannot be read: the only place that judges these errors.

Source: proc(5); open(2) and read(2), "ERRORS".
"""

from collections.abc import Callable
from enum import Enum
from errno import EACCES, EBADF, EINVAL, ENOENT, ENOSYS, ENOTDIR, EOPNOTSUPP, EPERM, ESRCH
from typing import TypeVar

_T = TypeVar("_T")
_LOOKS = 3  # attempts before a file counts as unreadable


class Cause(Enum):
    """Why a file of a process or thread cannot be read."""

    GONE = "the process or thread has ended"
    REFUSED = "sfsample may not read it, or this kernel does not have it"
    TROUBLE = "memory, files, or the device failed: that says nothing of the process"


# EBADF: sfsample has closed the directory of a thread, because the thread had ended
_CAUSES = dict.fromkeys((ENOENT, ESRCH, ENOTDIR, EBADF), Cause.GONE) | dict.fromkeys(
    (EACCES, EPERM, EINVAL, ENOSYS, EOPNOTSUPP), Cause.REFUSED
)


def cause_of(failure: OSError) -> Cause:
    """Return the cause why a file of /proc/PID could not be read."""
    return _CAUSES.get(failure.errno or 0, Cause.TROUBLE)


def looked_at(read: Callable[[], _T]) -> _T | None:
    """Return the result of `read`; None: it failed several times, or the kernel refused it."""
    for _ in range(_LOOKS):
        try:
            return read()
        except OSError as failure:
            if cause_of(failure) is Cause.REFUSED:
                break
    return None
