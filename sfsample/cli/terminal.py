"""Prints messages on stderr, without control characters of the target.

Printing never fails: without a usable stderr, the result must still be written.
"""

import os
import sys
import time
from collections.abc import Callable
from locale import CODESET, nl_langinfo
from typing import TextIO

from sfsample.core.foreign import utc
from sfsample.core.printable import printable_lines

_MAX_LINE = 1000  # characters


def say(what: object, *details: str) -> None:
    """Write a message to stderr, with indented details below; long lines are cut."""
    lines = (f"sfsample: {what}", *(f"  {line}" for line in details))
    emit(printable_lines(line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}..." for line in lines))


def say_at(what: object, *details: str) -> None:
    """Say a message with the time in UTC, as in the names of files."""
    say(f"{utc(time.time(), '%Y-%m-%dT%H:%M:%SZ')} {what}", *details)


def emit(text: str) -> None:
    """Write a printable text to stderr."""
    stream = sys.stderr
    if stream is None:  # the caller closed it
        return
    try:
        stream.write(spelled(text))
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
    """Return `tell`, or a function without effect if stderr is no terminal: the summary repeats the texts."""
    return tell if not quiet and sys.stderr is not None and sys.stderr.isatty() else lambda _text: None


def silence(stream: TextIO) -> None:
    """Redirect a stream without a reader to /dev/null, so that Python's last flush succeeds."""
    null_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null_fd, stream.fileno())
    os.close(null_fd)
