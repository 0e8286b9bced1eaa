"""Builds a report: fills its tables, and counts equal stacks once.

Every producer of reports (naming, readers, merging, filtering) uses this class, so that no table holds a row
twice and every index is valid.
"""

from collections.abc import Iterable, Sequence

from sfsample.report.report import SAMPLES, Report, ReportFrame, ReportStack, ReportThread

_StackKey = tuple[int, tuple[int, ...], str]  # thread index, frame indexes, stop reason


class ReportBuilder:
    """Collects weighted stacks; `weights` names the numbers of each stack."""

    def __init__(self, weights: Sequence[str] = (SAMPLES,)) -> None:
        self.weights = tuple(weights)
        self._threads: dict[ReportThread, int] = {}
        self._frames: dict[ReportFrame, int] = {}
        self._stacks: dict[_StackKey, int] = {}
        self._sums: list[tuple[int, ...]] = []

    def add(
        self, thread: ReportThread, frames: Iterable[ReportFrame], stop_reason: str, weights: tuple[int, ...]
    ) -> int:
        """Add the weights of a stack (innermost frame first); return the index of the stack."""
        table = self._frames
        row = tuple([table.setdefault(frame, len(table)) for frame in frames])
        key = (self._threads.setdefault(thread, len(self._threads)), row, stop_reason)
        at = self._stacks.setdefault(key, len(self._sums))
        if at == len(self._sums):
            self._sums.append(weights)
        else:
            self._sums[at] = tuple(map(sum, zip(self._sums[at], weights, strict=True)))
        return at

    def finish(self) -> Report:
        """Return the report; its times, its timeline and its losses are unknown."""
        stacks = tuple(ReportStack(*key, sums) for key, sums in zip(self._stacks, self._sums, strict=True))
        return Report(tuple(self._threads), tuple(self._frames), stacks, self.weights)
