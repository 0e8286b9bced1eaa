"""What the commands share: where results go, what is said on stderr, and when to stop.

Law: stdout carries only the result.  A file appears complete or not at all.  A signal sets a flag; only the
second Ctrl-C breaks off.
"""

import os
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

from sfsample.errors import SfsampleError, UsageError
from sfsample.unwind.stepper import Stepper


def say(text: str) -> None:
    """Write lines to stderr."""
    sys.stderr.write(text.rstrip("\n") + "\n")


class Output:
    """A result's destination, opened before the work so that a mistake shows at once.

    Raises SfsampleError when it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = ""
        if path == "-":
            return
        try:
            self._open(path)
        except OSError as failure:
            raise _unwritable(path, failure) from None

    def _open(self, path: str) -> None:
        if os.path.exists(path) and not os.path.isfile(path):  # /dev/null, a FIFO: cannot be renamed over
            self._fd = os.open(path, os.O_WRONLY)
            return
        directory, name = os.path.split(os.path.abspath(os.path.realpath(path)))
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        self._fd, self._temporary = tempfile.mkstemp(dir=directory, prefix=f".{name}.")
        self._final = os.path.join(directory, name)

    def write(self, text: str) -> None:
        """Write the whole result."""
        data = text.encode("utf-8", "replace")
        if self._path == "-":
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            return
        try:
            with open(self._fd, "wb") as file:
                file.write(data)
            if self._temporary:
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(self._temporary, 0o666 & ~umask)  # mkstemp is private, a result is not
                os.replace(self._temporary, self._final)
                self._temporary = ""
        except OSError as failure:
            self.discard()
            raise _unwritable(self._path, failure) from None

    def discard(self) -> None:
        """Leave nothing behind when there is no result."""
        if self._temporary:
            os.unlink(self._temporary)
            self._temporary = ""


def _unwritable(path: str, failure: OSError) -> SfsampleError:
    return SfsampleError(f"cannot write: {path}: {failure.strerror}", "choose another file with -o")


class Interrupt:
    """While it is entered, SIGINT and SIGTERM ask to stop; a second SIGINT raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.requested = False
        self._before: list[tuple[signal.Signals, object]] = []

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before.append((number, signal.signal(number, self._note)))
        return self

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
    """Return the pids that -p or -n mean now.  Raises NoSuchProcess, or UsageError when -n is ambiguous."""
    if arguments.pid:
        return list(dict.fromkeys(arguments.pid))
    from sfsample.errors import NoSuchProcess
    from sfsample.target.process import find_by_name

    found = find_by_name(arguments.name)
    if not found:
        raise NoSuchProcess(0, f"no such process: nothing is called {arguments.name}")
    if len(found) > 1 and not arguments.all:
        lines = [f"{pid}  {' '.join(line.split())[:100]}" for pid, line in found]
        raise UsageError(f"{len(found)} processes match: {arguments.name}",
                         "choose one with -p, or take them --all:", *lines)  # fmt: skip
    return [pid for pid, _ in found]


def steppers(arguments: Namespace) -> Sequence[Stepper]:
    """Return the steppers that --unwind names, in its order; those that read no table are always on."""
    from sfsample.unwind.unwinder import DEFAULT_STEPPERS, NULL_CALL, SIGNAL_FRAME

    by_name = {str(stepper.found): stepper for stepper in DEFAULT_STEPPERS}
    return (SIGNAL_FRAME, NULL_CALL, *(by_name[name] for name in arguments.unwind))
