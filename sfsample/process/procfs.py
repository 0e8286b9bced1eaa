"""/proc/PID as values: maps, threads, states, names.

Law: text in /proc is parsed here and nowhere else.  Everything is reached through a directory that is kept
open, so a recycled pid is never mistaken for the process that was asked for: its files answer ESRCH.
A file that cannot be read because its process or thread has ended is None, never an exception.

Source: proc(5); clock_getcpuclockid(3): the number of a process's clock.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import EACCES, ENOENT, ENOTDIR, EPERM, ESRCH
from time import clock_gettime_ns
from typing import NamedTuple

from sfsample.core.checkpoint import with_checkpoints
from sfsample.core.snapshot import LastRun
from sfsample.errors import FIND_IT, MORE_FILES, NO_FILES, NoSuchProcess, NotPermitted, TargetError
from sfsample.modules.mapping import Mapping, MapsParser
from sfsample.process.task_files import T, TaskFiles

_CHUNK = 1 << 20
_CPUCLOCK_SCHED = 2
_LOOKS = 4
_LAST_RUN = re.compile(  # lines `name   :   value`, in this order
    rb"^se\.exec_start *: *(\S+)\n"
    rb"(?:(?:(?!nr_sw).*\n)*nr_switches *: *(\d+)\n)?"
    rb"(?:(?:(?!se\.avg\.last).*\n)*se\.avg\.last_update_time *: *(\d+)\n)?",
    re.MULTILINE,
)
_GONE = (ENOENT, ESRCH, ENOTDIR)
_FORBIDDEN = (EACCES, EPERM)
HIDDEN = (
    "/proc does not show it to us: it is mounted with hidepid, for another pid namespace, or not at all;",
    "run as root: sudo sfsample ...",
)
PF_KTHREAD = 0x00200000


class Stat(NamedTuple):
    """What we use of /proc/PID/[task/TID/]stat.  Times are clock ticks.

    `program` is where code, stack, data and arguments begin and end; it changes with exec.
    """

    name: str
    state: str
    flags: int
    starttime: int
    program: tuple[bytes, ...] = ()
    parent: int = 0
    threads: int = 1

    @property
    def is_over(self) -> bool:
        """Whether nothing of the process is left but this line."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def stack_top(self) -> int:
        """Where the first thread's stack began: above are its arguments and its environment (0: not told)."""
        return int(self.program[2]) if self.program else 0


def parse_stat(data: bytes) -> Stat:
    """Parse one stat line; the name is between the first "(" and the last ")"."""
    left, right = data.index(b"("), data.rindex(b")")
    fields = data[right + 2 :].split()
    return Stat(data[left + 1 : right].decode("utf-8", "replace"), fields[0].decode(),
                int(fields[6]), int(fields[19]),
                (*fields[23:26], *fields[42:49]), int(fields[1]), int(fields[17]))  # fmt: skip


def stat_of(pid: int) -> Stat | None:
    """Return the line of any process; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.read(_CHUNK))
    except OSError:
        return None


class Asleep(NamedTuple):
    """What a thread that does not run was last doing: where its user code stands, and its system call.

    `number` is -1 outside a system call: in a page fault, or stopped.
    """

    number: int
    args: tuple[int, ...]
    sp: int
    pc: int


def parse_syscall(data: bytes) -> Asleep | None:
    """Parse a syscall file, "NR ARG*6 SP PC" or "-1 SP PC"; None: the thread runs, or wants to."""
    number, *words = data.split()
    if number == b"running":
        return None
    *args, sp, pc = (int(word, 16) for word in words)
    return Asleep(int(number), tuple(args), sp, pc)


def parse_last_run(text: bytes | None) -> LastRun | None:
    """Parse what a `sched` file says of that."""
    found = _LAST_RUN.search(text or b"")
    if found is None:
        return None
    at, left, renewed = found.groups()
    return LastRun(at, int(renewed or 0), int(left or -1))


class ProcFs:
    """One process's directory.  Raises NoSuchProcess when there is none.

    Every method raises TargetError when there are no files left to open.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._maps = MapsParser()
        self._dir = -1
        try:
            self._dir = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._dir)
            self._files = TaskFiles(self._tasks)
        except OSError as failure:
            if self._dir >= 0:
                os.close(self._dir)
            if failure.errno in (*_GONE, *_FORBIDDEN):
                raise _unseen(pid) from None
            raise _refusal(pid, failure) from None

    def _refused(self, failure: OSError) -> TargetError:
        """Return the error for a failure that does not mean that somebody has ended."""
        if failure.errno in NO_FILES:
            self._files.keep_only(())  # so that there are some to end with
        return _refusal(self.pid, failure)

    def close(self) -> None:
        """Close every file."""
        self._files.keep_only(())
        for fd in (self._tasks, self._dir):
            os.close(fd)

    def read(self, name: str) -> bytes | None:
        """Return a whole file of the directory ("status", "task/12/syscall"), or None."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir)
        except OSError as failure:
            if failure.errno in NO_FILES:
                raise self._refused(failure) from None
            return None
        try:
            return b"".join(_chunks(fd))
        except OSError:
            return None
        finally:
            os.close(fd)

    def link(self, name: str) -> str | None:
        """Return where a symbolic link ("exe", "ns/mnt") points, or None."""
        try:
            return os.readlink(name, dir_fd=self._dir)
        except OSError:
            return None

    def has_ended(self) -> bool:
        """Whether no thread of it lives; its first one may leave before the others, and is a zombie then.

        When another thread calls execve(2), the first is a zombie, and the other takes its id.  That may
        happen between any two of our readings, but not each time.
        """
        return all(self._seems_ended() for _ in range(_LOOKS))

    def _seems_ended(self) -> bool:
        stat = self.stat()
        return stat is None or (stat.state in "ZX" and all(tid == self.pid for tid in self.threads()))

    def anchor(self) -> int:
        """Return the id under which the memory, the map and the files of the process are to be had.

        That is the pid, unless the first thread has left by pthread_exit(3) and the others live on.
        """
        stat = self.stat()
        if stat is not None and stat.state in "ZX":
            living = (tid for tid in self.threads() if (s := self.thread_stat(tid)) and s.state not in "ZX")
            return next(living, self.pid)
        return self.pid

    def maps(self) -> tuple[Mapping, ...]:
        """Return the memory map; empty when the process has ended.  Raises NotPermitted."""
        try:
            fd = os.open(f"task/{self.anchor()}/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir)
        except OSError as refusal:
            if refusal.errno in _FORBIDDEN:
                raise NotPermitted(self.pid, f"not permitted to read the memory map of {self.pid}") from None
            if refusal.errno in NO_FILES:
                raise self._refused(refusal) from None
            return ()
        try:
            return self._maps.parse(b"".join(with_checkpoints(_chunks(fd))))
        except OSError:
            return ()
        finally:
            os.close(fd)

    def threads(self) -> list[int]:
        """Return the thread ids now, in ascending order; empty when the process has ended."""
        try:
            with os.scandir(self._tasks) as entries:  # 20 ms for 5,000
                return sorted(int(entry.name) for entry in with_checkpoints(entries))
        except OSError as failure:
            if failure.errno in NO_FILES:
                raise self._refused(failure) from None
            return []

    def stat(self) -> Stat | None:
        """Return the process's own line."""
        data = self.read("stat")
        return parse_stat(data) if data else None

    def cpu_ns(self) -> int | None:
        """Return the CPU time of the process, of threads that have ended too; None when it is gone."""
        try:
            used = clock_gettime_ns(~self.pid << 3 | _CPUCLOCK_SCHED)
        except OSError:
            return None
        return used if self.stat() else None

    def thread_stats(self) -> list[tuple[int, Stat]]:
        """Return every thread's line, by ascending id.

        Those that are known are read first, and parsed afterwards: while we run, a thread that was asleep
        wakes up behind us and looks as if it had been running.
        """
        known = {tid: self.task(tid, "stat") for tid in self._files.known()}
        tids = self.threads()
        self._files.keep_only(tids)
        lines = ((tid, known[tid] if tid in known else self.task(tid, "stat")) for tid in tids)
        return [(tid, parse_stat(line)) for tid, line in lines if line]

    def keep_only(self, tids: list[int]) -> None:
        """Close what is kept open for other threads."""
        self._files.keep_only(tids)

    def thread_stat(self, tid: int) -> Stat | None:
        """Return a thread's line; None when the thread has ended."""
        line = self.task(tid, "stat")
        return parse_stat(line) if line else None

    def asleep(self, tid: int) -> Asleep | None:
        """Return where a thread stands that does not run; None: it runs or has ended, or we may not know."""
        line = self.task(tid, "syscall")
        return parse_syscall(line) if line else None

    def counters(self, tid: int) -> bytes | None:
        """Return what the scheduler counts for a thread: time run, time waited, number of times run.

        As long as they stay the same, a thread that was asleep has not run.  A kernel that does not keep them
        says "0 0 0"; then it is how often the thread was taken off a processor.
        """
        line = self.task(tid, "schedstat")
        if line is not None and not line.startswith(b"0 0 0"):
            return line
        return (self.task(tid, "status") or b"").partition(b"\nvoluntary_ctxt_switches")[2] or None

    def not_run(self, threads: Iterable[T]) -> tuple[list[T], list[T]]:
        """Return the threads whose counters are what they were, and those of which that is not known."""
        return self._files.unchanged("schedstat", threads)

    def last_run(self, tid: int) -> LastRun | None:
        """Return when a thread lost its processor, on the scheduler's clock; None: not known."""
        return parse_last_run(self.task(tid, "sched"))

    def holder(self, tid: int) -> int | None:
        """Return a number for the thread of which files were read last; another, if the id was given away."""
        return self._files.holder(tid)

    def task(self, tid: int, name: str) -> bytes | None:
        """Return a thread's file, which is kept open; None when the thread has ended."""
        try:
            return self._files.read(tid, name)
        except OSError as failure:
            raise self._refused(failure) from None

    def status(self) -> dict[str, str]:
        """Return /proc/PID/status as a dictionary; empty when the process has ended."""
        lines = (self.read("status") or b"").decode("utf-8", "replace").splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _unseen(pid: int) -> TargetError:
    """Return the error for a process that /proc does not show, or not to us."""
    if pid > 0 and _exists(pid):
        return NotPermitted(pid, f"not permitted to look at: {pid}", *HIDDEN)
    return NoSuchProcess(pid, f"no such process: {pid}", FIND_IT)


def _refusal(pid: int, failure: OSError) -> TargetError:
    if failure.errno in NO_FILES:
        return TargetError(pid, f"no files left to open: to look at {pid}", MORE_FILES)
    return TargetError(pid, f"cannot look at {pid}: {failure.strerror}")


def _exists(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)  # no signal, only the question
        except (ProcessLookupError, OverflowError):
            return False
    return True


def _chunks(fd: int) -> Iterator[bytes]:
    while chunk := os.read(fd, _CHUNK):
        yield chunk
