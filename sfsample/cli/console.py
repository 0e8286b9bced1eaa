"""What the commands share: where results go, who the target is, and when to stop.

Law: stdout carries only the result.  A file appears complete or not at all.  A signal sets a flag; only the
second Ctrl-C breaks off.
"""

import os
import re
import signal
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from errno import EACCES, EBADF, EISDIR, EPERM, EROFS
from types import FrameType, TracebackType
from typing import Self

from sfsample.cli.terminal import silence
from sfsample.core.filesystem import whole_file
from sfsample.errors import NoSuchProcess, SfsampleError, UsageError
from sfsample.unwind.stepper import Stepper

_STREAMS = {"/dev/stdout": "1", "/dev/stderr": "2"}
_OPEN = re.compile(r"/dev/std(?:out|err)|/(?:dev|proc/self)/fd/(\d{1,9})", re.ASCII)


class Output:
    """A result's destination, checked before the work so that a mistake shows at once.

    A regular file is created by `write`, not before, so whatever ends us leaves nothing behind.  /dev/stdout
    and its like are no files but what is open there, and is written to where that stands (`>> log`).
    Raises SfsampleError when it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.file = ""  # the regular file that `write` replaces
        self._path = path
        self._fd = -1  # of a device, a FIFO or what is open, which cannot be renamed over
        try:
            self._check(path)
        except OSError as failure:
            raise _unwritable(path, failure) from None

    def _check(self, path: str) -> None:
        if path == "-":
            if sys.stdout is None:
                raise _os_error(EBADF)
            return
        if not path or path.endswith("/"):
            raise _os_error(EISDIR)
        if open_already := _OPEN.fullmatch(path):
            self._fd = os.dup(int(_STREAMS.get(path) or open_already[1]))
            return
        there = _stat(path)
        if there is None or stat.S_ISREG(there.st_mode):
            self.file = os.path.realpath(path)
            _check_replaceable(self.file, there)
        else:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, result: str | bytes) -> None:
        """Write the whole result."""
        data = result.encode("utf-8", "replace") if isinstance(result, str) else result
        try:
            if self.file:
                with whole_file(self.file, 0o666) as file:
                    file.write(data)
            elif self._fd >= 0:
                fd, self._fd = self._fd, -1
                with open(fd, "wb") as file:
                    file.write(data)
            else:
                _write_stdout(data)
        except OSError as failure:
            if self._path == "-" and isinstance(failure, BrokenPipeError):
                raise
            raise _unwritable(self._path, failure) from None

    def discard(self) -> None:
        """Close what is open when there is no result."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _check_replaceable(path: str, there: os.stat_result | None) -> None:
    """Raise the OSError that creating a file beside `path` and renaming it to `path` would end with."""
    directory = os.path.dirname(path)
    above = os.stat(directory)
    if not stat.S_ISDIR(above.st_mode) or not os.access(directory, os.W_OK | os.X_OK):
        raise _os_error(EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else EACCES)
    if there is None:
        return
    if not os.access(path, os.W_OK):
        raise _os_error(EACCES)
    if above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, there.st_uid, above.st_uid):
        raise _os_error(EPERM)


def _write_stdout(data: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
        raise


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _unwritable(path: str, failure: OSError) -> SfsampleError:
    where = "standard output" if path == "-" else path or "''"
    return SfsampleError(f"cannot write: {where}: {failure.strerror}", "choose another file")


class _Suspension:
    """Stops ourselves between two pauses: a target that we hold would be stopped as long as we are."""

    held = False  # we are coming back from one: the gate is ours already

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        from sfsample.core.checkpoint import SUSPEND_LOCK

        if self.held:
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        SUSPEND_LOCK.acquire()
        self.held = True
        os.kill(os.getpid(), signal.SIGSTOP)
        SUSPEND_LOCK.release()
        self.held = False


class Interrupt:
    """While it is entered, SIGINT and SIGTERM ask to stop; a second SIGINT raises KeyboardInterrupt.

    So does SIGHUP, when the terminal goes away, unless nohup(1) has said otherwise.  Ctrl-Z suspends us, and
    never the target.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: list[tuple[signal.Signals, object]] = []

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._note)))
        suspension = _Suspension()
        self._take(signal.SIGHUP, self._note)
        for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            self._take(number, suspension)
        return self

    def _take(self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
        """Handle a signal that nobody has said anything about."""
        if signal.getsignal(number) is signal.SIG_DFL:
            self._before.append((number, signal.signal(number, handler)))

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)  # type: ignore[arg-type]


def targets(arguments: Namespace) -> list[int]:
    """Return the pids that -p, -n, --unit mean.  Raises NoSuchProcess, UsageError when -n is ambiguous."""
    if arguments.pid:
        return list(dict.fromkeys(arguments.pid))
    if getattr(arguments, "unit", None):
        return _of_unit(arguments.unit)
    from sfsample.process.find import find_by_name

    found = find_by_name(arguments.name)
    if not found:
        raise NoSuchProcess(0, f"no such process: nothing is called {arguments.name}",
                            "-n takes a process name, or a part of a command line")  # fmt: skip
    if len(found) > 1 and not arguments.all:
        lines = [f"{pid}  {' '.join(line.split())[:100]}" for pid, line in found]
        raise UsageError(f"{len(found)} processes match: {arguments.name}",
                         "choose one with -p, or take them --all:", *lines)  # fmt: skip
    return [pid for pid, _ in found]


def _of_unit(unit: str) -> list[int]:
    from sfsample.process.find import find_by_unit

    found = find_by_unit(unit)
    if not found:
        raise NoSuchProcess(0, f"no such process: none is in the systemd unit {unit}",
                            "systemctl status UNIT tells what runs in it")  # fmt: skip
    return found


def steppers(arguments: Namespace) -> Sequence[Stepper]:
    """Return the steppers that --unwind names, in its order, after those that are always on."""
    from sfsample.unwind.unwinder import ALWAYS, CHOICES

    return (*ALWAYS, *(stepper for name in arguments.unwind for stepper in CHOICES[name]))
