"""Prints on stderr, so that a terminal shows nothing but text.

Printing never fails: a stderr that is closed or gone must not cost a result.
"""

import os
import sys
import time
from collections.abc import Callable
from threading import Lock
from typing import TextIO

from sfsample.core.foreign import utc
from sfsample.core.printable import printable_lines

_MAX_LINE = 1000  # characters
_ERASE = "\r\x1b[K"
_LOCK = Lock()


class _Progress:
    """The state of the terminal: whether the cursor is at the end of a progress line."""

    is_drawn = False


def say(what: object, *details: str) -> None:
    """Write a message to stderr, with indented details below; long lines are cut."""
    lines = (f"sfsample: {what}", *(f"  {line}" for line in details))
    emit(printable_lines(line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..." for line in lines))


def say_at(what: object, *details: str) -> None:
    """Say a message with the time in UTC, as in the names of files."""
    say(f"{utc(time.time(), '%Y-%m-%dT%H:%M:%SZ')} {what}", *details)


def emit(text: str, *, draws: bool = False) -> None:
    """Write a text to stderr as it is, so it must be printable already; erase the progress line before.

    `draws`: the text is a progress line, which the next text erases.
    """
    stream = sys.stderr
    if stream is None:  # the caller closed it
        return
    with _LOCK:  # the sampling thread reports missed ticks
        erased = _ERASE if draws or _Progress.is_drawn else ""
        _Progress.is_drawn = draws
        try:
            stream.write(f"{erased}{text}")
            stream.flush()
        except (OSError, ValueError):
            silence(stream)


class Messages:
    """A stream for a log; it erases a progress line before each log line."""

    write = staticmethod(emit)

    def flush(self) -> None:
        """Do nothing, as `emit` has flushed."""


def shows_progress(*, quiet: bool) -> bool:
    """Whether to print progress: only on a terminal, because the summary repeats it."""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


def progress_printer(*, quiet: bool) -> Callable[[str], None]:
    """Return `say`, or a function without effect if progress is not shown."""
    return say if shows_progress(quiet=quiet) else lambda _text: None


def silence(stream: TextIO) -> None:
    """Redirect a stream without a reader to /dev/null, so that Python's last flush succeeds."""
    null_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null_fd, stream.fileno())
    os.close(null_fd)
