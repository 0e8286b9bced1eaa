"""A line that says how far long work has come.

Law: only on a terminal, on stderr, redrawn in place and gone at the end; nothing when stderr is anything else
or the user wants quiet.  What it shows is made printable and fits the width.
"""

import os
import select
import sys
import time
from types import TracebackType
from typing import Self

from sfsample.cli.terminal import emit, printable
from sfsample.recording.stats import Stats

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

    def due(self) -> bool:
        """Whether there is somebody to show something to, and nothing was shown a moment ago."""
        return self.shown and time.monotonic() - self._drawn_at >= _PERIOD_S and _writable()

    def show(self, text: str) -> None:
        """Show `text`, if it is due."""
        if self.due():
            self._drawn_at, self._drawn = time.monotonic(), True
            emit(f"{_ERASE}sfsample: {printable(text)[: _columns() - 11]}")


def recording(stats: Stats, elapsed_s: float, duration_s: float | None, cpu_s: float) -> str:
    """Return what there is to say about a recording that goes on."""
    pauses = stats.pauses
    until = f"{elapsed_s:.0f} s" if duration_s is None else f"{elapsed_s:.0f} of {duration_s:g} s"
    parts = [until, f"{stats.samples} samples"]
    if pauses.count:
        parts.append(f"pause p50 {pauses.percentile(50) // 1000} µs max {pauses.max // 1000} µs")
    parts.append(f"sampler {100 * cpu_s / max(elapsed_s, 1e-3):.1f} %")
    if stats.late_ticks:
        parts.append(f"{stats.late_ticks} missed")
    return ", ".join(parts)


def _writable() -> bool:
    """Whether a write would not wait: a terminal stopped with Ctrl-S must not stop the work."""
    try:
        return bool(select.select((), (sys.stderr,), (), 0)[1])
    except (OSError, ValueError):
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
