"""Builds a report: the tables, and stacks that are equal counted once.

Law: everything that makes a report (naming, readers, merging, filtering) makes it here, so that a table never
holds a row twice and an index always fits.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sfsample.report.report import SAMPLES, Report, ReportFrame, ReportStack, ReportTimeline, Thread

_Key = tuple[int, tuple[int, ...], str]


class ReportBuilder:
    """Collects weighted stacks; `weights` are the names of their numbers."""

    def __init__(self, weights: Sequence[str] = (SAMPLES,)) -> None:
        self.weights = tuple(weights)
        self._threads: dict[Thread, int] = {}
        self._frames: dict[ReportFrame, int] = {}
        self._stacks: dict[_Key, int] = {}
        self._sums: list[tuple[int, ...]] = []

    def add(
        self, thread: Thread, frames: Iterable[ReportFrame], stop_reason: str, weights: tuple[int, ...]
    ) -> int:
        """Count a stack (innermost first); return its index."""
        table = self._frames
        row = tuple([table.setdefault(frame, len(table)) for frame in frames])
        key = (self._threads.setdefault(thread, len(self._threads)), row, stop_reason)
        at = self._stacks.setdefault(key, len(self._sums))
        if at == len(self._sums):
            self._sums.append(weights)
        else:
            self._sums[at] = tuple(map(sum, zip(self._sums[at], weights, strict=True)))
        return at

    def finish(
        self,
        *,
        started_ns: int | None = None,
        duration_ns: int | None = None,
        rate_hz: float | None = None,
        timeline: ReportTimeline | None = None,
        stats: dict[str, Any] | None = None,
    ) -> Report:
        """Return the report, with what else is known about it."""
        stacks = tuple(ReportStack(*key, sums) for key, sums in zip(self._stacks, self._sums, strict=True))
        return Report(tuple(self._threads), tuple(self._frames), stacks, self.weights,
                      started_ns, duration_ns, rate_hz, timeline, stats)  # fmt: skip
