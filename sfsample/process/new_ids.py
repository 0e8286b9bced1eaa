"""Has anybody been born?  Threads and processes are listed anew only when the kernel has given out an id.

Law: "yes" may be about somebody else, and "no" is not for ever: an id is given out an instant before its
bearer can be seen, and on a machine under load that instant may be long.  So whoever asks here looks without
asking, too, now and then.

Source: proc(5), /proc/loadavg: its last field is the id that was given out last.  Linux kernel/fork.c,
copy_process: alloc_pid comes before attach_pid.
"""

import os


class NewIds:
    """Asks whether an id was given out since the last time it was asked."""

    def __init__(self) -> None:
        self._last = b""
        try:
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def any(self) -> bool:
        """Whether there may be somebody new."""
        try:
            last = os.pread(self._fd, 128, 0).split()[-1]
        except (OSError, IndexError):
            return True
        before, self._last = self._last, last
        return last != before

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
