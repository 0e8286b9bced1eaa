"""Prints messages and progress on stderr, without control characters of the target.

Printing never fails: without a usable stderr, the result must still be written.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from locale import CODESET, nl_langinfo
from threading import Lock
from typing import Self, TextIO

from sfsample.core.foreign import utc
from sfsample.core.printable import printable_lines

_MAX_LINE = 1000  # characters
_ERASE = "\r\x1b[K"
_PERIOD_S = 0.1  # least time between two drawings of the progress line
_LOCK = Lock()


def say(what: object, *details: str) -> None:
    """Write a message to stderr, with indented details below; long lines are cut."""
    lines = (f"sfsample: {what}", *(f"  {line}" for line in details))
    emit(printable_lines(line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..." for line in lines))


def say_at(what: object, *details: str) -> None:
    """Say a message with the time in UTC, as in the names of files."""
    say(f"{utc(time.time(), '%Y-%m-%dT%H:%M:%SZ')} {what}", *details)


def emit(text: str, *, draws: bool = False) -> None:
    """Erase the progress line, and write a printable text.  `draws`: the text is a progress line."""
    stream = sys.stderr
    if stream is None:  # the caller closed stderr
        return
    with _LOCK:  # the sampling thread also prints messages
        erased = _ERASE if draws or Progress.is_drawn else ""
        Progress.is_drawn = draws
        try:
            stream.write(f"{erased}{spelled(text)}")
            stream.flush()
        except (OSError, ValueError):
            silence(stream)


def spelled(text: str) -> str:
    """Return a text with "us" for "µs" if the user's locale has no µ."""
    try:
        "µ".encode(nl_langinfo(CODESET))
    except (LookupError, UnicodeEncodeError):
        return text.replace("µ", "u")
    return text


def progress_printer(*, quiet: bool, tell: Callable[[str], None] = say) -> Callable[[str], None]:
    """Return `tell`; if progress is not shown, return a function without effect."""
    return tell if shows_progress(quiet=quiet) else lambda _text: None


def shows_progress(*, quiet: bool) -> bool:
    """Return True if stderr is a terminal, and the user wants to see progress."""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


def silence(stream: TextIO) -> None:
    """Redirect a stream without a reader to /dev/null, so that Python's last flush succeeds."""
    null_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null_fd, stream.fileno())
    os.close(null_fd)


class Progress:
    """A context manager that shows the progress line."""

    is_drawn = False  # True: the progress line is on the terminal

    def __init__(self, *, quiet: bool) -> None:
        self.shown = shows_progress(quiet=quiet)
        self._drawn_at_s = -_PERIOD_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        emit("")  # erases the line

    def show(self, text: str) -> None:
        """Draw a short text, at most ten times a second."""
        now_s = time.monotonic()
        if self.shown and now_s - self._drawn_at_s >= _PERIOD_S and _is_writable():
            self._drawn_at_s = now_s
            emit(f"sfsample: {text}", draws=True)


def _is_writable() -> bool:
    """Return True if a write does not block: a terminal stopped with Ctrl-S must not stop the sampling."""
    try:
        return bool(select.select((), (sys.stderr,), (), 0)[1])
    except (OSError, ValueError):
        return False
