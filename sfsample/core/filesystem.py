"""Opens files by path, below the root directory of sfsample or of a process, and writes files atomically.

A target, a core file or a sysroot chooses the paths and the files, but sfsample opens them with its own
privileges.  So sfsample resolves a path and its symbolic links inside the root directory.  sfsample opens
only regular files, because opening a device or a FIFO can have an effect, or block.  A `Root` keeps a root
directory open, so sfsample finds the files below this directory even after the process has ended.

Python does not offer openat2(2) with RESOLVE_IN_ROOT.  So sfsample opens each name in a path, in 2 us.

Source: open(2), O_PATH; proc(5), /proc/PID/fd; path_resolution(7).
"""

import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EFBIG, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, EPERM, EROFS
from mmap import ACCESS_READ, mmap
from select import epoll
from typing import BinaryIO, NamedTuple

from sfsample.core.foreign import total

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PATH_FLAGS = os.O_PATH | os.O_CLOEXEC
_MAX_LINKS = 40  # symbolic links in one path; the kernel has the same limit
_MAX_DEPTH = 256  # directories that are open at once
_STREAMS = ("/dev/std", "/dev/fd/", "/proc/")  # prefixes of paths that may name a file that sfsample has open


@contextmanager
def whole_file(path: str, mode: int, *, keep: bool = False) -> Iterator[BinaryIO]:
    """Yield a temporary file; when the block ends without an exception, rename it to `path`.

    The file belongs to the user of this process.  If the old file at `path` belongs to this user, the new
    file gets the mode of the old file.  Raises OSError.  `keep`: if only the rename fails, keep the temporary
    file; then the error has the temporary name in `filename`, and `path` in `filename2`.
    """
    temporary = os.path.join(os.path.dirname(path), f".sfsample-{os.getpid()}-{time.monotonic_ns():x}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            with suppress(FileNotFoundError):
                before = os.lstat(path)
                if stat.S_ISREG(before.st_mode) and before.st_uid == os.fstat(fd).st_uid:
                    os.fchmod(fd, before.st_mode & 0o777)
            yield file
        os.replace(temporary, path)
    except BaseException as failure:
        if not (keep and getattr(failure, "filename2", None)):
            with suppress(OSError):
                os.unlink(temporary)
        raise


def open_regular(path: str, *, streams: bool = False) -> int:
    """Return a descriptor of the regular file at a path that the user or the kernel has chosen.

    Magic links of /proc (`map_files`, `exe`) are followed.  `streams`: also accept a pipe or a device that
    sfsample has open (`/dev/stdin`, a shell's `<(...)`).  Raises OSError.
    """
    _check_path(path)
    if streams and path.startswith(_STREAMS):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return _reopened(os.open(path, _PATH_FLAGS))


def _check_path(path: str) -> None:
    if "\0" in path or total(os.fsencode)(path) is None:  # paths for which os.open raises ValueError
        raise OSError(EINVAL, "no file can have this path")


def read_regular(path: str, max_bytes: int, *, streams: bool = False) -> bytes:
    """Return the contents of a file (see `open_regular`).  Raises OSError, also for more than `max_bytes`."""
    with open(open_regular(path, streams=streams), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(EFBIG, f"larger than {max_bytes >> 10} KiB")
    return data


def _reopened(path_fd: int) -> int:
    """Open the regular file of an O_PATH descriptor for reading, and close the descriptor."""
    try:
        mode = os.fstat(path_fd).st_mode
        if not stat.S_ISREG(mode):
            number = EISDIR if stat.S_ISDIR(mode) else EINVAL
            raise OSError(number, os.strerror(EISDIR) if number == EISDIR else "not a regular file")
        return os.open(f"/proc/self/fd/{path_fd}", _READ_FLAGS)
    finally:
        os.close(path_fd)


def map_and_close(fd: int) -> mmap:
    """Map an open file, and close its descriptor.  Raises OSError, also for an empty file."""
    try:
        if not os.fstat(fd).st_size:
            raise OSError(EINVAL, "is empty")
        return mmap(fd, 0, access=ACCESS_READ)
    finally:
        os.close(fd)


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


class Root:
    """A root directory, held open.  Raises OSError if it cannot be opened."""

    def __init__(self, path: str = "/") -> None:
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # `epoll` closes the descriptor in C: a `__del__` would lose a Ctrl-C that arrives while it runs
        self._closer = epoll.fromfd(self._fd)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the directory: processes with equal values share their root directory."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def open(self, path: str, *, follow: bool = True) -> int:
        """Return a descriptor of a regular file.  Raises OSError.  `follow` False: no link as last name."""
        _check_path(path)
        return _reopened(self._walk(path, follow=follow))

    def _walk(self, path: str, *, follow: bool) -> int:
        """Return an O_PATH descriptor of a path, which is resolved name by name, never above this root.

        A magic link of /proc (`exe`, `root`) is resolved by its text (readlink(2)).
        """
        names, links, opened = deque(path.split("/")), 0, [os.dup(self._fd)]
        try:
            while names:
                name = names.popleft()
                if name == ".." and len(opened) > 1:
                    os.close(opened.pop())
                if name in ("", ".", ".."):
                    continue
                fd = os.open(name, _PATH_FLAGS | os.O_NOFOLLOW, dir_fd=opened[-1])
                opened.append(fd)
                if len(opened) > _MAX_DEPTH:
                    raise OSError(ENAMETOOLONG, os.strerror(ENAMETOOLONG))
                if stat.S_ISLNK(os.fstat(fd).st_mode) and (follow or any(names)):
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(ELOOP, os.strerror(ELOOP))
                    target = os.readlink("", dir_fd=fd)
                    names.extendleft(reversed(target.split("/")))
                    keep = 1 if target.startswith("/") else len(opened) - 1
                    _close_all(opened[keep:])
                    del opened[keep:]
            return opened.pop()
        finally:
            _close_all(opened)

    def map(self, path: str) -> mmap | None:
        """Map the regular file at an absolute path; None: it is missing, unreadable or empty."""
        with suppress(OSError):
            return map_and_close(self.open(path))
        return None


class ProcessRoot(NamedTuple):
    """The files that a process sees: all files below `root`, in the process's mount namespace."""

    root: Root | None  # None: sfsample may not open the root directory
    pid: int  # pid in the process's own pid namespace
    uid: int
    mounts: str | None = None  # mount namespace; None: unknown


def check_replaceable(path: str, old: os.stat_result | None) -> None:
    """Raise OSError if the user may not replace `path`; `old`: status of the present file; None: no file."""
    directory = os.path.dirname(path)
    parent = os.stat(directory)
    if not stat.S_ISDIR(parent.st_mode) or not os.access(directory, os.W_OK | os.X_OK):
        raise os_error(EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else EACCES)
    if old is None:
        return
    if not os.access(path, os.W_OK):
        raise os_error(EACCES)
    if parent.st_mode & stat.S_ISVTX and os.geteuid() not in (0, old.st_uid, parent.st_uid):
        raise os_error(EPERM)


def os_error(number: int) -> OSError:
    """Return the OSError for an errno."""
    return OSError(number, os.strerror(number))
