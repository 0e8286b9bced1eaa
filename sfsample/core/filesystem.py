"""Opens files by path, below sfsample's root directory or that of a process, and writes files atomically.

Only regular files are opened, whatever a name leads to, and opening never blocks.  A `Root` keeps its
directory open, so files below it can be found after the process has ended.  An absolute symbolic link leads
into sfsample's own root: a caller must recognise a file by its content or its owner, not by its path.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, EISDIR
from itertools import chain
from mmap import ACCESS_READ, ALLOCATIONGRANULARITY, mmap
from select import epoll
from typing import BinaryIO, NamedTuple

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")  # begins the paths of what a process has open


def open_regular(path: str, *, streams: bool = False) -> BinaryIO:
    """Open a regular file; with `streams` also what sfsample has open: `/dev/stdin`, a shell's `<(...)`.

    Anything else may have no end, or wait for ever: a FIFO, a device.  Raises OSError.
    """
    fd = os.open(path, _READ_FLAGS)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or (streams and path.startswith(_STREAMS)):
        os.set_blocking(fd, True)
        return open(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    raise OSError(EINVAL, "not a regular file")


@contextmanager
def whole_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Yield a file to write; it appears at `path`, complete, when the block ends without an exception.

    It takes over the owner and the mode of the file that it replaces.  Raises OSError.
    """
    temporary = os.path.join(os.path.dirname(path), f".sfsample-{os.getpid()}-{time.monotonic_ns():x}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            _copy_owner_and_mode(path, fd)
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def elf_begins_at(fd: int, offsets: Iterable[int]) -> int:
    """Return the offset in an open file at which an ELF object begins: 0, or in an archive one of `offsets`.

    `offsets` are the file offsets mapped at and below the address in question, the nearest first.
    """
    size = os.fstat(fd).st_size
    candidates = (at for at in chain((0,), offsets) if at < size and not at % ALLOCATIONGRANULARITY)
    return next((at for at in candidates if os.pread(fd, 4, at) == b"\x7fELF"), 0)


def _copy_owner_and_mode(path: str, fd: int) -> None:
    try:
        before = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(before.st_mode):
        with suppress(OSError):
            os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, before.st_mode & 0o777)


class Root:
    """A root directory, held open.  Raises OSError when it cannot be opened."""

    def __init__(self, path: str = "/") -> None:
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # this object closes the descriptor in C: a Ctrl-C that arrives while a `__del__` runs is lost
        self._closer = epoll.fromfd(self._fd)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: equal for two processes that share their root directory."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def open(self, path: str, *, follow: bool = True) -> int | None:
        """Return a descriptor of the regular file at an absolute path; None: there is none.

        With `follow` False, a symbolic link as the last component is not followed.
        """
        try:
            flags = _READ_FLAGS if follow else _READ_FLAGS | os.O_NOFOLLOW
            fd = os.open(path.lstrip("/") or ".", flags, dir_fd=self._fd)
        except (OSError, ValueError):  # ValueError: a NUL in a name
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None

    def map(self, path: str) -> mmap | None:
        """Map the regular file at an absolute path; None: there is none, or it is empty."""
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
    """Return the directory with the files of another machine; None: `path` is empty or cannot be opened."""
    with suppress(OSError):
        return Root(path) if path else None
    return None


class ProcessRoot(NamedTuple):
    """Which files a process sees: those with the same root directory and `mounts` see the same files."""

    root: Root | None  # None: sfsample may not open it
    pid: int  # in the process's own pid namespace
    uid: int
    mounts: str | None = None  # the mount namespace; None: unknown
