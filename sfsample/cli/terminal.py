"""What is said to people, on stderr.

Law: what came from outside (names, paths, arguments) cannot move the cursor, colour, or change what a line
seems to say.  Saying something never fails: a stderr that is closed or gone costs nobody a result.
"""

import os
import sys

TYPE_CHECKING = False  # `typing` costs 3 ms, and --help comes through here
if TYPE_CHECKING:
    from typing import TextIO

_LONGEST = 1000


def printable(text: str) -> str:
    """Return `text` with `?` for controls, separators, bidirectional marks and surrogates."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text


def say(*lines: str) -> None:
    """Write lines to stderr, made printable."""
    shown = (printable(line) for line in lines)
    emit("".join(f"{line[:_LONGEST]}{'...' if len(line) > _LONGEST else ''}\n" for line in shown))


def emit(text: str) -> None:
    """Write `text`, which is fit for a terminal, to stderr as it is."""
    stream = sys.stderr
    if stream is None:  # closed by who started us
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        silence(stream)


def silence(stream: "TextIO") -> None:
    """Send a stream whose reader has gone to /dev/null, so that the interpreter's last flush succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
