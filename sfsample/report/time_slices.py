"""Divides a report by time: sums of stacks for slices of time, and the gaps between slices."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sfsample.report.report import Numbers, Report

TIME_UNIT_NS = 100_000  # unit of the times in columns
Columns = Sequence[Sequence[int]]  # stacks, samples, wall time, CPU time: columns of one length


class TimeSlice(NamedTuple):
    """A slice of time, in seconds since the epoch."""

    begin_s: float
    end_s: float
    cpu_charged_ns: int  # CPU time of the threads
    cpu_sampled_ns: int  # CPU time that samples represent
    columns: Columns  # the column of stacks has indexes into `Report.stacks`
    cpu_ms: Sequence[int] = ()  # sampled CPU time of each second; empty if it is unknown


class TimeSlices(NamedTuple):
    """The slices of a report, the oldest first, and the gaps between them: begin, end, reason."""

    slices: Sequence[TimeSlice]
    gaps: Sequence[tuple[float, float, str]] = ()


def add_columns(slices: Iterable[Columns], stacks: int) -> Columns:
    """Return the sum of slices: the stacks, ascending, then sums; `stacks`: number of the report's stacks."""
    seen: set[int] = set()
    samples, wall, cpu = sums = [[0] * stacks for _ in range(3)]
    for numbers, *columns in slices:
        seen.update(numbers)
        for stack, one, two, three in zip(numbers, *columns, strict=True):
            samples[stack] += one
            wall[stack] += two
            cpu[stack] += three
    found = sorted(seen)
    return [found, *([total[stack] for stack in found] for total in sums)]


def join_slices(group: Sequence[TimeSlice], stacks: int) -> TimeSlice:
    """Join several slices into one."""
    return TimeSlice(
        min(each.begin_s for each in group), max(each.end_s for each in group),
        sum(each.cpu_charged_ns for each in group), sum(each.cpu_sampled_ns for each in group),
        add_columns((each.columns for each in group), stacks),
        group[0].cpu_ms if len(group) == 1 else (),
    )  # fmt: skip


def renumber(parts: Iterable[tuple[Report, Sequence[TimeSlice]]]) -> list[TimeSlice]:
    """Return the slices of several reports, with the indexes of stacks in the merged report."""
    indexes = Numbers[object]()
    found: list[TimeSlice] = []
    for report, slices in parts:
        new = [
            indexes[report.threads[thread], tuple(map(report.frames.__getitem__, frames)), reason]
            for thread, frames, reason, _ in report.stacks
        ]
        for each in slices:
            numbers, *weights = each.columns
            found.append(each._replace(columns=[[*map(new.__getitem__, numbers)], *weights]))
    return sorted(found)
