"""Makes reports out of reports: merges several, merges frames, selects stacks.

Weights are added and never invented.  Where the merged values differ, the result is unknown.  A timeline is
kept only by operations that keep each stack or drop it; a merge of several reports has none.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, groupby
from typing import Any, Literal

from sfsample.report.report import Report, ReportBuilder, ReportFrame, ReportTimeline

MergeBy = Literal["function", "module", "address"]
_FrameKey = tuple[object, ...]


def rebuild(
    report: Report, change: Callable[[Sequence[ReportFrame]], Iterable[ReportFrame] | None]
) -> Report:
    """Return the report with the frames of each stack (innermost first) changed; None drops the stack."""
    builder = ReportBuilder(report.weights)
    indexes: list[int | None] = []
    for stack in report.stacks:
        changed = change([report.frames[at] for at in stack.frames])
        thread = report.threads[stack.thread]
        indexes.append(
            None if changed is None else builder.add(thread, changed, stack.stop_reason, stack.weights)
        )
    timeline = None if report.timeline is None else _renumber(report.timeline, indexes)
    threads, frames, stacks, *_ = builder.finish()
    return report._replace(threads=threads, frames=frames, stacks=stacks, timeline=timeline)


def _renumber(timeline: ReportTimeline, indexes: list[int | None]) -> ReportTimeline:
    """Return the timeline with the new indexes of its stacks; None: the stack was dropped."""
    *columns, dropped = timeline
    kept = [new is not None for new in map(indexes.__getitem__, timeline.stack)]
    at_ns, stack, samples, wall_ns, cpu_ns = (list(compress(column, kept)) for column in columns)
    stack = [new for old in stack if (new := indexes[old]) is not None]
    return ReportTimeline(at_ns, stack, samples, wall_ns, cpu_ns, dropped)


# -- several reports


def merge(reports: Sequence[Report]) -> Report:
    """Return one report of several, with the weights that all of them have.  Durations are added."""
    if len(reports) == 1:
        return reports[0]
    weights = tuple(name for name in reports[0].weights if all(name in report.weights for report in reports))
    builder = ReportBuilder(weights)
    for report in reports:
        columns = [report.weights.index(name) for name in weights]
        number = [builder.number(frame) for frame in report.frames]
        for stack in report.stacks:
            frames = [number[at] for at in stack.frames]
            numbers = tuple(stack.weights[at] for at in columns)
            builder.add_row(report.threads[stack.thread], frames, stack.stop_reason, numbers)
    durations = [report.duration_ns for report in reports]
    rates = {report.rate_hz for report in reports}
    return builder.finish()._replace(
        started_ns=min((report.started_ns for report in reports if report.started_ns), default=None),
        duration_ns=None if None in durations else sum(filter(None, durations)),
        rate_hz=rates.pop() if len(rates) == 1 else None,
        stats=_sum_stats([report.stats for report in reports if report.stats]),
    )


_ADDED = ("ticks", "late_ticks", "samples", "eintr_prone_stops", "cpu_charged_ns", "cpu_sampled_ns")


def _sum_stats(all_stats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the sums of the counts (above all the losses); what cannot be added is left out."""
    if not all_stats:
        return None
    problems = [texts for stats in all_stats if isinstance(texts := stats.get("problems"), list)]
    merged: dict[str, Any] = {"problems": list(chain.from_iterable(problems))}
    for key in _ADDED:
        merged[key] = sum(value for stats in all_stats if isinstance(value := stats.get(key), int))
    for key in ("captures", "stacks", "frames"):
        counts: Counter[str] = Counter()
        for stats in all_stats:
            found = stats.get(key)
            if isinstance(found, dict):
                counts.update({name: n for name, n in found.items() if isinstance(n, int)})
        merged[key] = dict(counts)
    return merged


# -- frames


def merge_by(report: Report, by: MergeBy) -> Report:
    """Return the report with all frames of one function (or module, or address) merged.

    By module, adjacent frames of one module become one frame.
    """
    key = _KEYS[by]
    merged: dict[_FrameKey, ReportFrame] = {}
    for frame in report.frames:
        name = key(frame)
        merged[name] = _common(merged[name], frame) if name in merged else frame
    table = {frame: _relabel(merged[key(frame)], by) for frame in report.frames}

    def change(frames: Sequence[ReportFrame]) -> list[ReportFrame]:
        changed = [table[frame] for frame in frames]
        return [frame for frame, _ in groupby(changed)] if by == "module" else changed

    return rebuild(report, change)


def _common(first: ReportFrame, second: ReportFrame) -> ReportFrame:
    """Return the first frame with every field unknown in which the second differs."""
    pairs = zip(first, second, _UNKNOWN, strict=True)
    fields: list[Any] = [a if a == b else unknown for a, b, unknown in pairs]
    return ReportFrame(*fields)._replace(text=first.text)


def _relabel(frame: ReportFrame, by: MergeBy) -> ReportFrame:
    if by == "module":
        path = frame.module or "unknown"
        return ReportFrame(
            f"[{path.rpartition('/')[2].strip('[]')}]", module=frame.module, build_id=frame.build_id
        )
    if by == "address" and frame.function and frame.offset is not None:
        return frame._replace(text=f"{frame.text} {frame.offset:#x}")
    return frame


_UNKNOWN = ReportFrame("")
_KEYS: dict[MergeBy, Callable[[ReportFrame], _FrameKey]] = {
    "function": lambda frame: (frame.text, frame.module),
    "module": lambda frame: (frame.module,),
    "address": lambda frame: (frame.text, frame.module, frame.offset),
}


# -- stacks


def filter_stacks(report: Report, matches: Callable[[ReportFrame], bool], *, keep: bool = True) -> Report:
    """Return the stacks that have a matching frame; with `keep` false, the stacks that have none."""
    chosen = {frame for frame in report.frames if matches(frame)}
    return rebuild(report, lambda frames: None if chosen.isdisjoint(frames) is keep else frames)


def focus(report: Report, matches: Callable[[ReportFrame], bool]) -> Report:
    """Return the stacks that have a matching frame, cut so that the outermost such frame is their root."""
    chosen = {frame for frame in report.frames if matches(frame)}

    def cut(frames: Sequence[ReportFrame]) -> Sequence[ReportFrame] | None:
        at = max((at for at, frame in enumerate(frames) if frame in chosen), default=None)
        return None if at is None else frames[: at + 1]

    return rebuild(report, cut)
