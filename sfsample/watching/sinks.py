"""What `watch` makes, and what takes it: slices, and the times of which there is none.

A sink keeps slices: as files (`slice_files`), in a database, or at another machine.  One that fails loses its
slice; the others get theirs.
"""

from collections.abc import Sequence

from sfsample.history.facts import Slice

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
