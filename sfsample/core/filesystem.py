"""Files by path, below our root directory or that of a process.

Law: what is opened is a regular file, whatever its name leads to, and opening never waits.  A root directory
is held open, so files can still be found below it when its process has ended.  Symbolic links that are
absolute lead into our own root: whoever reads a file must know it by its content or its owner, never by its
path.  What is written appears complete or not at all.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from mmap import ACCESS_READ, ALLOCATIONGRANULARITY, mmap
from select import epoll
from typing import BinaryIO, NamedTuple

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def whole_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Give a file to write, which is at `path` once the block has ended well.  Raises OSError.

    A file that was there hands down its owner and mode.
    """
    temporary = os.path.join(os.path.dirname(path), f".sfsample-{os.getpid()}-{time.monotonic_ns():x}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            _inherit(path, fd)
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def elf_begins_at(fd: int, offsets: Iterable[int]) -> int:
    """Return where in an open file an ELF object begins: at 0, or in an archive at one of `offsets`.

    `offsets`: what of the file is mapped at and below the address in question, the nearest first.
    """
    size = os.fstat(fd).st_size
    inside = (at for at in chain((0,), offsets) if at < size and not at % ALLOCATIONGRANULARITY)
    return next((at for at in inside if os.pread(fd, 4, at) == b"\x7fELF"), 0)


def _inherit(path: str, fd: int) -> None:
    try:
        before = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(before.st_mode):
        with suppress(OSError):
            os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, before.st_mode & 0o777)


class Root:
    """A root directory.  Raises OSError when it cannot be opened."""

    def __init__(self, path: str = "/") -> None:
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # closes it in C when it goes: a Ctrl-C that arrives while a `__del__` runs is lost
        self._closer = epoll.fromfd(self._fd)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: equal where two processes share their root."""
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def open(self, path: str, *, follow: bool = True) -> int | None:
        """Open a regular file by its absolute path; `follow` False: its last part is no symbolic link."""
        try:
            flags = _FLAGS if follow else _FLAGS | os.O_NOFOLLOW
            fd = os.open(path.lstrip("/") or ".", flags, dir_fd=self._fd)
        except (OSError, ValueError):  # ValueError: a NUL in a name
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None

    def map(self, path: str) -> mmap | None:
        """Map a regular file that is not empty; None when there is none."""
        fd = self.open(path)
        if fd is None:
            return None
        try:
            return mmap(fd, 0, access=ACCESS_READ)
        except (OSError, ValueError):  # empty
            return None
        finally:
            os.close(fd)


def root_at(path: str) -> Root | None:
    """Return the directory that stands for another machine's root; None: there is none, or it is ours."""
    with suppress(OSError):
        return Root(path) if path else None
    return None


class ProcessRoot(NamedTuple):
    """Where a process lives.  Two with the same root directory see the same files if they share `mounts`."""

    root: Root | None  # None where we may not enter
    pid: int  # as it is known there
    uid: int
    mounts: str | None = None  # the mount namespace
