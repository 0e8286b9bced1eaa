"""A line that says how far long work has come.

Law: only on a terminal, on stderr, redrawn in place and gone at the end; nothing when stderr is anything else
or the user wants quiet.  What it shows is made printable and fits the width.
"""

import os
import sys
import time
from types import TracebackType
from typing import Self

from sfsample.cli.terminal import emit, printable

_PERIOD_S = 0.1
_ERASE = "\r\x1b[K"


class Progress:
    """The line, while it is entered."""

    def __init__(self, *, quiet: bool) -> None:
        self.shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._drawn_at = -_PERIOD_S
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            emit(_ERASE)

    def show(self, text: str) -> None:
        """Show `text`, unless something was shown a moment ago."""
        now = time.monotonic()
        if self.shown and now - self._drawn_at >= _PERIOD_S:
            self._drawn_at, self._drawn = now, True
            emit(f"{_ERASE}sfsample: {printable(text)[: _columns() - 11]}")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
