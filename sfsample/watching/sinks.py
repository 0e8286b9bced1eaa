"""Defines a sink of `watch`, which takes slices and gaps: times without a slice.

A sink keeps slices as files (`slice_files`) or in a history, or sends them to another machine.  A sink that
fails loses its slice; the others get theirs.
"""

from collections.abc import Sequence

from sfsample.history.facts import Slice

Metrics = dict[str, dict[str, float]]  # values by name and label


class Sink:
    """Takes slices, and does nothing with them.  Each method may raise SfsampleError, or OSError."""

    def prepare(self) -> None:
        """Find out whether slices can be kept, before the first one is recorded."""

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002
        """Keep a slice, or its part of each service; return the place, for a message."""
        return ""

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep a gap: no slice between two times, and why.  The flags name the `target`."""

    def pin(self, last_s: float) -> int:  # noqa: ARG002
        """Keep the slices of the last `last_s` seconds longer than others; return their number."""
        return 0

    def metrics(self) -> Metrics:
        """Return the metrics of the sink; `pull/door.py` has their names."""
        return {}

    def close(self) -> None:
        """Close files and connections, as the watch ends."""
