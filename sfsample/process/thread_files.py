"""Reads the /proc files of one thread again and again: /proc/PID/task/TID/{stat,schedstat,syscall,sched}.

Files stay open, so that a reading is one system call.  They use at most half of the limit of open files.
After the thread has ended, a reading fails with ESRCH, even if a new thread has the id.  Then sfsample opens
the file of this new thread.  Source: proc(5).
"""

import os
from collections.abc import Callable
from errno import ESRCH
from functools import cache
from itertools import count
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

from sfsample.core.snapshot import LastRun
from sfsample.process import proc_text

_CHUNK_BYTES = 4096  # more bytes than any of these files has
_SHORT_BYTES = 128  # more bytes than a schedstat file has
_MAX_LIMIT = 1 << 16  # open files; the system's limit may be infinite
KERNEL_STACK_REFUSED = (
    "kernel stacks cannot be read: that needs CAP_SYS_ADMIN, and a kernel with CONFIG_STACKTRACE"
)
_CLOSED = -1  # invalid descriptor of a directory: every open below it fails
_numbers = count()


def open_many() -> None:
    """Raise sfsample's limit of open files as far as permitted, for many processes or threads."""
    hard_limit = getrlimit(RLIMIT_NOFILE)[1]
    setrlimit(RLIMIT_NOFILE, (hard_limit, hard_limit))


@cache
def _kernel_counts() -> bool:
    """Return True if the kernel has scheduler counters (CONFIG_SCHED_INFO): sfsample's counters are not 0."""
    with open("/proc/self/schedstat", "rb") as file:
        return not file.read().startswith(b"0 0 0")


def max_kept_open() -> int:
    """Return the number of files that may stay open."""
    limit = getrlimit(RLIMIT_NOFILE)[0]
    return min(limit if limit >= 0 else _MAX_LIMIT, _MAX_LIMIT) // 2


class ThreadFiles:
    """The files of thread `tid` below `tasks`, an open /proc/PID/task directory.

    All instances together keep at most `max_open` files open.  `check` raises ReadFailed for an OSError
    of the kind `Cause.TROUBLE`.
    """

    __slots__ = ("_check", "_max_open", "_tasks", "fds", "holder", "tid")
    kept_open = 0  # number of open files of all instances

    def __init__(self, tasks: int, tid: int, max_open: int, check: Callable[[OSError], None]) -> None:
        self._tasks = tasks
        self._max_open = max_open
        self._check = check
        self.tid = tid
        self.fds: dict[str, int] = {}  # descriptor by name of the file
        self.holder: int | None = None  # identifies the thread whose files are open: an id can be reused

    def read(self, name: str) -> bytes | None:
        """Return the present content of a file.  Raises ReadFailed."""
        try:
            return os.pread(self.fds[name], _CHUNK_BYTES, 0)
        except KeyError:
            return self._open_and_read(name)
        except OSError as failure:
            if failure.errno != ESRCH:
                self._check(failure)
                return None
            self.close()  # the thread ended, and a new thread may have its id
            return self._open_and_read(name)

    def _open_and_read(self, name: str) -> bytes | None:
        try:
            fd = os.open(f"{self.tid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._tasks)
        except OSError as failure:
            self._check(failure)
            return None
        keep = ThreadFiles.kept_open < self._max_open
        if keep:
            self.fds[name] = fd
            self.holder = next(_numbers) if self.holder is None else self.holder
            ThreadFiles.kept_open += 1
        try:
            return os.pread(fd, _CHUNK_BYTES, 0)
        except OSError as failure:
            self._check(failure)
            return None
        finally:
            if not keep:
                os.close(fd)

    def end(self) -> None:
        """Close the files for good: the thread has ended."""
        self.close()
        self._tasks = _CLOSED

    def close(self) -> None:
        """Close the files; the next read opens the files of the thread that has the id then."""
        ThreadFiles.kept_open -= len(self.fds)
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
        self.holder = None

    def stat(self) -> proc_text.Stat | None:
        """Return the stat line; None: the thread has ended."""
        line = self.read("stat")
        return proc_text.parse_stat(line) if line else None

    def asleep(self) -> proc_text.SyscallInfo | None:
        """Return the system call in which the thread sleeps; None: it is awake, ended or unreadable."""
        line = self.read("syscall")
        return proc_text.parse_syscall(line) if line else None

    def counters(self) -> bytes | None:
        """Return the scheduler's counters: time run, time waited, number of times run.

        As long as the counters stay the same, a sleeping thread has not run.  None: the thread has ended.  If
        the kernel has no such counters, the result only says how often the thread was taken off a CPU.
        """
        try:
            line: bytes | None = os.pread(self.fds["schedstat"], _SHORT_BYTES, 0)  # a faster `read`
        except (KeyError, OSError):
            line = self.read("schedstat")
        if line is not None and (_kernel_counts() or not line.startswith(b"0 0 0")):
            return line
        return (self.read("status") or b"").partition(b"\nvoluntary_ctxt_switches")[2] or None

    def last_run(self) -> LastRun | None:
        """Return the time when the thread last started or stopped running; None: unknown."""
        return proc_text.parse_last_run(self.read("sched"))

    def kernel_stack(self) -> tuple[str, ...] | None:
        """Return the kernel functions in which the thread sleeps, innermost first; None: unreadable.

        The functions are valid only if the thread has not run meanwhile (`counters`).
        """
        text = self.read("stack")
        return None if text is None else proc_text.parse_kernel_stack(text)
