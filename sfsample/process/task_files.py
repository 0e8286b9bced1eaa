"""Small files of many threads, read again and again: /proc/PID/task/TID/{stat,schedstat,syscall}.

Law: a file is kept open, so that reading it is one system call, as long as half the limit of open files
allows.  A file that was opened for a thread never answers for another: when its thread has ended it says
ESRCH, and a thread that has been given the same id since is opened anew.  A thread that has ended is None.

Source: proc(5).
"""

import os
from collections.abc import Iterable
from errno import ESRCH
from itertools import count
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Protocol, TypeVar

from sfsample.errors import NO_FILES

_CHUNK = 4096
_LINE = 128  # bytes of a short file
_MOST = 1 << 16


def open_many() -> None:
    """Raise our limit of open files as far as we may: for many processes, or many threads."""
    most = getrlimit(RLIMIT_NOFILE)[1]
    setrlimit(RLIMIT_NOFILE, (most, most))


class Known(Protocol):
    """A thread, and what its file said; None: it is not known."""

    tid: int
    off_cpu_counters: bytes | None


T = TypeVar("T", bound=Known)


class TaskFiles:
    """The files below an open /proc/PID/task directory."""

    kept_open = 0  # of all processes

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._fds: dict[str, dict[int, int]] = {}  # by name and thread
        self._holders: dict[int, int] = {}  # of ids: a number of its own for each thread
        self._numbers = count()
        limit = getrlimit(RLIMIT_NOFILE)[0]
        self._room = min(limit if limit >= 0 else _MOST, _MOST) // 2

    def read(self, tid: int, name: str) -> bytes | None:
        """Return what the file says now.  Raises OSError when there are no files left to open."""
        try:
            return os.pread(self._fds[name][tid], _CHUNK, 0)
        except KeyError:
            return self._first(tid, name)
        except OSError as failure:
            if failure.errno != ESRCH:
                return None
            self.forget(tid)  # the id may have been given away: there is a new file then
            return self._first(tid, name)

    def unchanged(self, name: str, threads: Iterable[T]) -> tuple[list[T], list[T]]:
        """Return the threads whose file, if it is open, says what it did (`off_cpu_counters`), and the others.

        For many of them, and short files: all is one loop.  Why one could not be read is not found out here.
        """
        fds, read = self._fds.get(name, {}), os.pread
        same: list[T] = []
        others: list[T] = []
        for thread in threads:
            try:
                unchanged = (
                    thread.off_cpu_counters is not None
                    and read(fds[thread.tid], _LINE, 0) == thread.off_cpu_counters
                )
            except (KeyError, OSError):
                unchanged = False
            (same if unchanged else others).append(thread)
        return same, others

    def _first(self, tid: int, name: str) -> bytes | None:
        try:
            return self._open(tid, name)
        except OSError as failure:
            if failure.errno in NO_FILES:
                raise
            return None

    def _open(self, tid: int, name: str) -> bytes:
        fd = os.open(f"{tid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._tasks)
        if TaskFiles.kept_open >= self._room:
            try:
                return os.pread(fd, _CHUNK, 0)
            finally:
                os.close(fd)
        self._fds.setdefault(name, {})[tid] = fd
        self._holders.setdefault(tid, next(self._numbers))
        TaskFiles.kept_open += 1
        return os.pread(fd, _CHUNK, 0)

    def holder(self, tid: int) -> int | None:
        """Return a number for the thread whose files are open; it is another once a file has told its end."""
        return self._holders.get(tid)

    def known(self) -> list[int]:
        """Return the threads of which a file is open."""
        return sorted(self._known())

    def _known(self) -> set[int]:
        return set().union(*self._fds.values())

    def forget(self, tid: int) -> None:
        """Close what is kept open for a thread; if it is asked for again, it is another one."""
        self._holders.pop(tid, None)
        for fds in self._fds.values():
            if tid in fds:
                os.close(fds.pop(tid))
                TaskFiles.kept_open -= 1

    def keep_only(self, tids: Iterable[int]) -> None:
        """Close what is kept open for other threads."""
        for tid in self._holders.keys() - {*tids}:
            self.forget(tid)
