"""Detects that the kernel has assigned a new process or thread id, so that /proc is listed only then.

The new id may belong to an unrelated process.  And an id is assigned an instant before its thread appears in
/proc; on a loaded machine that instant may be long.  So callers list /proc now and then without a new id,
too.

Source: proc(5), /proc/loadavg; Linux kernel/fork.c, copy_process: alloc_pid comes before attach_pid.
"""

import os

from sfsample.process.proc_text import parse_last_id

_LOADAVG_BYTES = 128  # more than the file has


class NewIds:
    """Compares the id that was assigned last with that of the previous call."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        try:
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def any(self) -> bool:
        """Return whether there may be a new process or thread since the last call; True where unknown."""
        try:
            last = parse_last_id(os.pread(self._fd, _LOADAVG_BYTES, 0))
        except OSError:
            return True
        previous, self._last = self._last, last
        return last is None or last != previous

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
