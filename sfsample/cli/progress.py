"""Shows the progress of a recording: one line on stderr, redrawn in place, and erased at the end.

It is shown only if stderr is a terminal, and not with --quiet.
"""

import os
import select
import sys
import time
from typing import Self

from sfsample.cli.terminal import emit, shows_progress
from sfsample.core.printable import printable
from sfsample.recording.stats import Stats

_PERIOD_S = 0.1
_PREFIX = "sfsample: "


class Progress:
    """A context manager that shows the line."""

    def __init__(self, *, quiet: bool) -> None:
        self.shown = shows_progress(quiet=quiet)
        self._drawn_at_s = -_PERIOD_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        emit("")  # erases the line

    def due(self) -> bool:
        """Whether the line can be shown, and was not drawn a moment ago."""
        return self.shown and time.monotonic() - self._drawn_at_s >= _PERIOD_S and _is_writable()

    def show(self, text: str) -> None:
        """Show a text; the caller has asked `due`."""
        self._drawn_at_s = time.monotonic()
        emit(printable(f"{_PREFIX}{text}")[: _columns() - 1], draws=True)


def progress_text(stats: Stats, elapsed_s: float, duration_s: float | None, cpu_s: float) -> str:
    """Describe a recording that goes on; `cpu_s` is the CPU time of sfsample."""
    pauses = stats.pauses
    until = f"{elapsed_s:.0f} s" if duration_s is None else f"{elapsed_s:.0f} of {duration_s:g} s"
    parts = [until, f"{stats.samples} samples"]
    if pauses.count:
        parts.append(f"pause p50 {pauses.percentile(50) // 1000} µs max {pauses.max // 1000} µs")
    parts.append(f"sampler {100 * cpu_s / max(elapsed_s, 1e-3):.1f} %")
    return ", ".join([*parts, *(loss.text for loss in stats.losses if loss.number)])


def _is_writable() -> bool:
    """Whether a write would not block: a terminal stopped with Ctrl-S must not stop the work."""
    try:
        return bool(select.select((), (sys.stderr,), (), 0)[1])
    except (OSError, ValueError):
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
