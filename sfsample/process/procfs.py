"""Reads /proc/PID as values: memory map, threads, states, counters.  `proc_text` parses the texts.

sfsample opens every file below a directory that stays open.  After the end of the target, the files of this
directory answer ESRCH.  So sfsample never mistakes a later process with the same pid for the target.  If a
process or thread has ended, the result is None, never an exception.  `cause_of` judges other failures.

Source: proc(5); open(2) and read(2), "ERRORS"; clock_getcpuclockid(3): the number of a process's clock; Linux
kernel/fork.c, copy_process: alloc_pid comes before attach_pid.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from errno import EACCES, EBADF, EINVAL, ENOENT, ENOSYS, ENOTDIR, EOPNOTSUPP, EPERM, ESRCH
from fcntl import ioctl
from io import FileIO
from itertools import islice
from struct import Struct
from time import clock_gettime_ns
from typing import TypeVar

from sfsample.core.checkpoint import with_checkpoints
from sfsample.errors import (
    FILES_HELP,
    FIND_HELP,
    NO_FILE_ERRNOS,
    NoSuchProcess,
    NotPermitted,
    ReadFailed,
    TargetError,
)
from sfsample.modules.mapping import Mapping, MapsParser, Place, split_mark
from sfsample.process.proc_text import Stat, parse_last_id, parse_stat, parse_status
from sfsample.process.thread_files import ThreadFiles, max_kept_open

_T = TypeVar("_T")
_CHUNK_BYTES = 1 << 20
_LOADAVG_BYTES = 128  # more bytes than /proc/loadavg has
_CPUCLOCK_SCHED = 2
# _IOWR('f', 17, struct procmap_query): Linux include/uapi/linux/fs.h, PROCMAP_QUERY
_PROCMAP_QUERY, _QUERY_BYTES = 0xC068_6611, 104
_QUESTION = Struct("=QQQ")  # size, query_flags, query_addr
_ANSWER = Struct("=24x2Q16x2Q2I")  # vma_start, vma_end; vma_offset, inode, dev_major, dev_minor
_MAX_READINGS = 4  # readings of a process that seems to have ended
_LOOKS = 3  # attempts before a file counts as unreadable
HIDDEN = (
    "/proc is mounted with hidepid, for another pid namespace, or not at all;",
    "run as root: sudo sfsample ...",
)


class Cause(Enum):
    """The reason why sfsample cannot read a file of a process or thread."""

    GONE = "the process or thread has ended"
    REFUSED = "sfsample may not read it, or this kernel does not have it"
    TROUBLE = "memory, descriptors or the device failed, which says nothing about the process"


# EBADF: sfsample has dropped the files of this thread (`ThreadFiles.end`), because the thread had ended
_CAUSES = dict.fromkeys((ENOENT, ESRCH, ENOTDIR, EBADF), Cause.GONE) | dict.fromkeys(
    (EACCES, EPERM, EINVAL, ENOSYS, EOPNOTSUPP), Cause.REFUSED
)


def cause_of(failure: OSError) -> Cause:
    """Return the cause of an error in reading a file of /proc/PID.  No other code judges these errors."""
    return _CAUSES.get(failure.errno or 0, Cause.TROUBLE)


def looked_at(read: Callable[[], _T]) -> _T | None:
    """Return the result of `read`; None: the kernel refused, or all calls failed."""
    for _ in range(_LOOKS):
        try:
            return read()
        except OSError as failure:
            if cause_of(failure) is Cause.REFUSED:
                break
    return None


def read_text(path: str) -> str:
    """Return a whole file of /proc as text; empty if it cannot be read."""

    def read() -> str:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read()

    return looked_at(read) or ""


def read_link(path: str) -> str | None:
    """Return the path to which a symbolic link of /proc points; None: unreadable."""
    return looked_at(lambda: os.readlink(path))


def process_name(pid: int) -> str:
    """Return the name of any process; "?" if it has ended."""
    return read_text(f"/proc/{pid}/comm").rstrip("\n") or "?"


def stat_of(pid: int | str) -> Stat | None:
    """Return the stat line of any process, or thread ("12/task/13"); None if it cannot be read."""

    def read() -> Stat | None:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.read(_CHUNK_BYTES))

    return looked_at(read)


class NewIds:
    """Detects that the kernel has assigned a process or thread id, so that callers list /proc less often.

    The new id may belong to an unrelated process.  The kernel assigns an id before the thread appears in
    /proc, on a loaded machine long before.  So callers also list /proc now and then without a new id.
    """

    def __init__(self) -> None:
        self._last: bytes | None = None
        try:
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def any(self) -> bool:
        """Return True if a process or thread may have been created since the last call."""
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


class ProcFs:
    """The /proc directory of one process.  Raises NoSuchProcess, or NotPermitted if /proc hides it.

    Every method raises ReadFailed for a failure of the kind `Cause.TROUBLE`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._maps = MapsParser(self.has_file)
        self._threads: dict[int, ThreadFiles] = {}
        self._max_kept_open = max_kept_open()
        self._dir = self._maps_fd = -1
        self._query = bytearray(_QUERY_BYTES)
        try:
            self._dir = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._dir)
        except OSError as failure:
            if self._dir >= 0:
                os.close(self._dir)
            if cause_of(failure) is Cause.TROUBLE:
                raise _refusal(pid, failure) from None
            raise _unseen(pid) from None

    def _raise_if_in_trouble(self, failure: OSError) -> None:
        if cause_of(failure) is not Cause.TROUBLE:
            return
        if failure.errno in NO_FILE_ERRNOS:
            for thread in self._threads.values():  # frees descriptors for the work that follows
                thread.close()
        raise _refusal(self.pid, failure) from None

    def close(self) -> None:
        """Close every file."""
        self.keep_only(())
        self._close_maps()
        for fd in (self._tasks, self._dir):
            os.close(fd)

    def read(self, name: str, chunks: int | None = None) -> bytes | None:
        """Return a file ("status") or None.  `chunks`: limit in MiB if the target chooses the file's size."""
        try:
            return b"".join(islice(self._chunks(name), chunks))
        except OSError as failure:
            self._raise_if_in_trouble(failure)
            return None

    def _chunks(self, name: str) -> Iterator[bytes]:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir)
        try:
            while chunk := os.read(fd, _CHUNK_BYTES):
                yield chunk
        finally:
            os.close(fd)

    def open_exe(self) -> FileIO:
        """Open the program that the process runs, even if it was deleted.  Raises OSError."""
        return FileIO(os.open(f"task/{self.anchor()}/exe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir))

    def link(self, name: str) -> str | None:
        """Return the path to which a symbolic link ("exe", "ns/mnt") points; None: unreadable."""
        try:
            return os.readlink(name, dir_fd=self._dir)
        except OSError:
            return None

    def has_file(self, path: str, inode: int) -> bool:
        """Return True if the file at this absolute path below the process's root directory has this inode."""
        with suppress(OSError, ValueError):
            return os.stat(f"root{path}", dir_fd=self._dir, follow_symlinks=False).st_ino == inode
        return False

    def exe_path(self) -> str | None:
        """Return the path of the program that the process runs, even if it was deleted; None: unknown."""
        name = f"task/{self.anchor()}/exe"
        with suppress(OSError):
            inode = os.stat(name, dir_fd=self._dir).st_ino
            return split_mark(self.link(name) or "", lambda path: self.has_file(path, inode))[0] or None
        return None

    def has_ended(self) -> bool:
        """Return True if no thread of the process lives.

        The first thread may end before the other threads, and is then a zombie.  When another thread calls
        execve(2), the first thread is a zombie until the calling thread takes its id.  So one reading is not
        enough: a reading may show only a zombie although the process lives on.
        """
        return all(self._seems_ended() for _ in range(_MAX_READINGS))

    def _seems_ended(self) -> bool:
        with suppress(ReadFailed):
            stat = self.stat()
            return stat is None or (stat.state in "ZX" and all(tid == self.pid for tid in self.threads()))
        return False

    def anchor(self) -> int:
        """Return the thread id under which memory, memory map and files of the process can be read.

        The id is the pid, unless the first thread has ended with pthread_exit(3) and other threads live on.
        """
        stat = self.stat()
        if stat is not None and stat.state in "ZX":
            living = (tid for tid in self.threads() if (s := self.thread(tid).stat()) and s.state not in "ZX")
            return next(living, self.pid)
        return self.pid

    def maps(self) -> tuple[Mapping, ...]:
        """Return the memory map; empty if the process has ended.  Raises NotPermitted."""
        self._close_maps()
        try:
            return self._maps.parse(b"".join(with_checkpoints(self._chunks(f"task/{self.anchor()}/maps"))))
        except OSError as failure:
            if cause_of(failure) is Cause.REFUSED:
                raise NotPermitted(self.pid, f"not permitted to read the memory map of {self.pid}") from None
            self._raise_if_in_trouble(failure)
            return ()

    def place_at(self, address: int) -> Place | None:
        """Return the place that is mapped at an address; None: the kernel cannot tell (before Linux 6.11)."""
        _QUESTION.pack_into(self._query, 0, _QUERY_BYTES, 0, address)
        try:
            if self._maps_fd < 0:
                path = f"task/{self.anchor()}/maps"
                self._maps_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir)
            ioctl(self._maps_fd, _PROCMAP_QUERY, self._query)
        except OSError as failure:
            return Place() if cause_of(failure) is Cause.GONE else None
        return Place._make(_ANSWER.unpack_from(self._query))

    def _close_maps(self) -> None:
        if self._maps_fd >= 0:
            os.close(self._maps_fd)
            self._maps_fd = -1

    def threads(self) -> list[int]:
        """Return the present thread ids, in ascending order; empty if the process has ended."""
        try:
            with os.scandir(self._tasks) as entries:  # 20 ms for 5,000 threads
                return sorted(int(entry.name) for entry in with_checkpoints(entries))
        except OSError as failure:
            self._raise_if_in_trouble(failure)
            return []

    def stat(self) -> Stat | None:
        """Return the stat line of the process; None: the process has ended (a second read confirms this)."""
        data = self.read("stat") or self.read("stat")
        return parse_stat(data) if data else None

    def cpu_ns(self) -> int | None:
        """Return the CPU time of the process in ns, ended threads included; None: it cannot be read."""
        with suppress(OSError, ReadFailed):
            used = clock_gettime_ns(~self.pid << 3 | _CPUCLOCK_SCHED)
            return used if self.stat() else None
        return None

    def thread(self, tid: int) -> ThreadFiles:
        """Return the files of a thread: the same instance until `keep_only` drops the thread."""
        files = self._threads.get(tid)
        if files is None:
            check = self._raise_if_in_trouble
            files = self._threads[tid] = ThreadFiles(self._tasks, tid, self._max_kept_open, check)
        return files

    def thread_stats(self) -> list[tuple[int, Stat]]:
        """Return the stat line of every thread, by ascending id."""
        # Read all open files first, and parse them afterwards.  Otherwise sleeping threads could wake up on
        # another CPU while sfsample parses, and would seem to have been running before.
        known = {tid: thread.read("stat") for tid, thread in sorted(self._threads.items()) if thread.fds}
        tids = self.threads()
        self.keep_only(tids)
        lines = ((tid, known[tid] if tid in known else self.thread(tid).read("stat")) for tid in tids)
        return [(tid, stat) for tid, line in lines if line and (stat := parse_stat(line))]

    def keep_only(self, tids: Iterable[int]) -> None:
        """Close the files of all threads except `tids`."""
        for tid in self._threads.keys() - {*tids}:
            self._threads.pop(tid).end()

    def status(self, tid: int | None = None) -> dict[str, str]:
        """Return the status file of the process or of a thread as a dictionary; empty after its end."""
        name = "status" if tid is None else f"task/{tid}/status"
        return parse_status((self.read(name) or b"").decode("utf-8", "replace"))


def _unseen(pid: int) -> TargetError:
    """Return the error for a process that does not exist, or that /proc does not show to sfsample."""
    with suppress(ProcessLookupError, OverflowError):
        if pid > 0:
            with suppress(PermissionError):
                os.kill(pid, 0)  # check of existence that sends no signal
            return NotPermitted(pid, f"not permitted to look at: {pid}", *HIDDEN)
    return NoSuchProcess(pid, f"no such process: {pid}", FIND_HELP)


def _refusal(pid: int, failure: OSError) -> ReadFailed:
    if failure.errno in NO_FILE_ERRNOS:
        return ReadFailed(pid, f"too many open files: to look at {pid}", FILES_HELP)
    return ReadFailed(pid, f"cannot look at {pid}: {failure.strerror}")
