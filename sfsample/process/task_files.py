"""Reads small files of many threads again and again: /proc/PID/task/TID/{stat,schedstat,syscall}.

A file stays open, so that reading it is one system call, until half the limit of open files is reached.  A
file that was opened for one thread never answers for another: once its thread has ended, reading it fails
with ESRCH.  The file is then opened again, as the id may have been given to a new thread.  The content is
None for a thread that has ended.

Source: proc(5).
"""

import os
from collections.abc import Iterable
from errno import ESRCH
from itertools import count
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Protocol, TypeVar

from sfsample.errors import NO_FILE_ERRNOS

_CHUNK_BYTES = 4096  # more than a file has
_SHORT_BYTES = 128  # more than a schedstat file has
_MAX_LIMIT = 1 << 16  # of open files; the limit may also be infinite


def open_many() -> None:
    """Raise sfsample's limit of open files as far as permitted: for many processes, or many threads."""
    hard_limit = getrlimit(RLIMIT_NOFILE)[1]
    setrlimit(RLIMIT_NOFILE, (hard_limit, hard_limit))


class HasCounters(Protocol):
    """A thread with the content that its file had earlier; None: unknown."""

    tid: int
    off_cpu_counters: bytes | None


T = TypeVar("T", bound=HasCounters)


class _ThreadFiles:
    """The open files of one thread, by name; `number` identifies the thread, as its id may be reused."""

    __slots__ = ("fds", "number")

    def __init__(self, number: int) -> None:
        self.fds: dict[str, int] = {}
        self.number = number


class TaskFiles:
    """The files below an open /proc/PID/task directory."""

    kept_open = 0  # by all instances

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._threads: dict[int, _ThreadFiles] = {}  # by thread id; each has an open file
        self._numbers = count()
        limit = getrlimit(RLIMIT_NOFILE)[0]
        self._max_open = min(limit if limit >= 0 else _MAX_LIMIT, _MAX_LIMIT) // 2

    def read(self, tid: int, name: str) -> bytes | None:
        """Return the content of a file now.  Raises OSError when no file descriptors are left."""
        try:
            return os.pread(self._threads[tid].fds[name], _CHUNK_BYTES, 0)
        except KeyError:
            return self._open_and_read(tid, name)
        except OSError as failure:
            if failure.errno != ESRCH:
                return None
            self.forget(tid)  # the id may belong to a new thread, which has a new file
            return self._open_and_read(tid, name)

    def unchanged(self, name: str, threads: Iterable[T]) -> tuple[list[T], list[T]]:
        """Return the threads whose open file still has the content `off_cpu_counters`, and all others.

        For many threads and short files.  A thread whose file is not open, or cannot be read, is among the
        others.
        """
        opened, read = self._threads, os.pread
        same: list[T] = []
        others: list[T] = []
        for thread in threads:
            counters = thread.off_cpu_counters
            try:
                unchanged = (
                    counters is not None and read(opened[thread.tid].fds[name], _SHORT_BYTES, 0) == counters
                )
            except (KeyError, OSError):
                unchanged = False
            (same if unchanged else others).append(thread)
        return same, others

    def _open_and_read(self, tid: int, name: str) -> bytes | None:
        try:
            fd = os.open(f"{tid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._tasks)
            if TaskFiles.kept_open < self._max_open:
                self._keep(tid, name, fd)
                return os.pread(fd, _CHUNK_BYTES, 0)
            try:
                return os.pread(fd, _CHUNK_BYTES, 0)
            finally:
                os.close(fd)
        except OSError as failure:
            if failure.errno in NO_FILE_ERRNOS:
                raise
            return None

    def _keep(self, tid: int, name: str, fd: int) -> None:
        files = self._threads.get(tid)
        if files is None:
            files = self._threads[tid] = _ThreadFiles(next(self._numbers))
        files.fds[name] = fd
        TaskFiles.kept_open += 1

    def holder(self, tid: int) -> int | None:
        """Return the number of the thread whose files are open; another thread with this id has another."""
        files = self._threads.get(tid)
        return None if files is None else files.number

    def known(self) -> list[int]:
        """Return the ids of the threads of which a file is open, in ascending order."""
        return sorted(self._threads)

    def forget(self, tid: int) -> None:
        """Close the files of a thread; the next read opens those of the thread that has the id then."""
        files = self._threads.pop(tid, None)
        if files is not None:
            for fd in files.fds.values():
                os.close(fd)
            TaskFiles.kept_open -= len(files.fds)

    def keep_only(self, tids: Iterable[int]) -> None:
        """Close the files of all other threads."""
        for tid in self._threads.keys() - {*tids}:
            self.forget(tid)
