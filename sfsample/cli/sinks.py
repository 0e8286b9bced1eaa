"""What `watch` makes, and what takes it: slices, and the times of which there is none.

A sink keeps slices: as files (`slice_files`), in a database, or at another machine.  One that fails loses its
slice; the others get theirs.
"""

from collections.abc import Callable, Sequence

from sfsample.history.facts import Slice

_MIN_GAP_S = 1.0  # what it takes to write a slice before the next one begins is no gap


Metrics = dict[str, dict[str, float]]  # by name and label


class Sink:
    """Takes slices, and does nothing with them.  Each method may raise SfsampleError, or OSError."""

    def prepare(self) -> None:
        """Find out whether slices can be kept, before the first one is recorded."""

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002
        """Keep a slice, or its part of each service; return where it is, for a message."""
        return ""

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep that there is no slice between two times, and why.  `target` is what the flags name."""

    def pin(self, last_s: float) -> int:  # noqa: ARG002
        """Keep the slices of the last `last_s` seconds longer than others; return how many."""
        return 0

    def metrics(self) -> Metrics:
        """Return what is known of it, by the names of `pull/door.py` and their labels."""
        return {}

    def close(self) -> None:
        """Let go of what is open, as the watch ends."""


class Gaps:
    """Finds the times without a slice.  `tell` is called with begin, end and reason of each that is over."""

    def __init__(self, tell: Callable[[float, float, str], None]) -> None:
        self._tell = tell
        self._begin_s: float | None = None  # of the gap that goes on
        self._why = ""

    def begin(self, now_s: float, why: str) -> None:
        """Note that there is no slice from now on; the first reason counts."""
        if self._begin_s is None:
            self._begin_s, self._why = now_s, why

    def end(self, now_s: float) -> None:
        """Note that a slice begins, or that `watch` ends."""
        if self._begin_s is not None and now_s - self._begin_s > _MIN_GAP_S:
            self._tell(self._begin_s, now_s, self._why)
        self._begin_s = None
