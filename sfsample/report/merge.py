"""Reports made of reports: several as one, frames made one, stacks chosen.

Law: pure; weights are added, never invented.  What the merged values do not agree on is unknown.  A timeline
survives only what keeps its stacks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, Literal

from sfsample.report.builder import ReportBuilder
from sfsample.report.report import Report, ReportFrame, ReportTimeline

By = Literal["function", "module", "address"]
_Key = tuple[object, ...]


def rebuild(
    report: Report, change: Callable[[Sequence[ReportFrame]], Iterable[ReportFrame] | None]
) -> Report:
    """Return the report with every stack's frames (innermost first) changed; None drops the stack."""
    builder = ReportBuilder(report.weights)
    indexes: list[int | None] = []
    for stack in report.stacks:
        frames = change([report.frames[at] for at in stack.frames])
        thread = report.threads[stack.thread]
        indexes.append(
            None if frames is None else builder.add(thread, frames, stack.stop_reason, stack.weights)
        )
    timeline = None if report.timeline is None else _follow(report.timeline, indexes)
    return builder.finish(
        started_ns=report.started_ns,
        duration_ns=report.duration_ns,
        rate_hz=report.rate_hz,
        timeline=timeline,
        stats=report.stats,
    )


def _follow(timeline: ReportTimeline, indexes: list[int | None]) -> ReportTimeline:
    """Return the timeline with the stacks' new indexes."""
    *columns, dropped = timeline
    kept = [new is not None for new in map(indexes.__getitem__, timeline.stack)]
    at_ns, stack, samples, wall_ns, cpu_ns = (list(compress(column, kept)) for column in columns)
    stack = [new for old in stack if (new := indexes[old]) is not None]
    return ReportTimeline(at_ns, stack, samples, wall_ns, cpu_ns, dropped)


def merge(reports: Sequence[Report]) -> Report:
    """Return one report of all; it has the weights that every one of them has.  Durations are added."""
    if len(reports) == 1:
        return reports[0]
    weights = tuple(name for name in reports[0].weights if all(name in report.weights for report in reports))
    builder = ReportBuilder(weights)
    for report in reports:
        columns = [report.weights.index(name) for name in weights]
        for stack in report.stacks:
            frames = [report.frames[at] for at in stack.frames]
            numbers = tuple(stack.weights[at] for at in columns)
            builder.add(report.threads[stack.thread], frames, stack.stop_reason, numbers)
    durations = [report.duration_ns for report in reports]
    rates = {report.rate_hz for report in reports}
    return builder.finish(
        started_ns=min((report.started_ns for report in reports if report.started_ns), default=None),
        duration_ns=None if None in durations else sum(filter(None, durations)),
        rate_hz=rates.pop() if len(rates) == 1 else None,
        stats=_add_up([report.stats for report in reports if report.stats]),
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _add_up(stats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the counts of several recordings, losses above all; what cannot be added is left out."""
    if not stats:
        return None
    merged: dict[str, Any] = {"problems": [text for one in stats for text in _list(one.get("problems"))]}
    for key in ("ticks", "late_ticks", "samples", "eintr_prone_stops"):
        merged[key] = sum(value for one in stats if isinstance(value := one.get(key), int))
    for key in ("captures", "stacks", "frames"):
        counts: Counter[str] = Counter()
        for one in stats:
            found = one.get(key)
            if isinstance(found, dict):
                counts.update({name: n for name, n in found.items() if isinstance(n, int)})
        merged[key] = dict(counts)
    return merged


# -- frames that are one


def merge_by(report: Report, by: By) -> Report:
    """Return the report with frames that share a function (or module, or address) made one."""
    key = _KEYS[by]
    merged: dict[_Key, ReportFrame] = {}
    for frame in report.frames:
        name = key(frame)
        merged[name] = _common(merged[name], frame) if name in merged else frame
    table = {frame: _relabel(merged[key(frame)], by) for frame in report.frames}
    return rebuild(report, lambda frames: _without_repeats([table[frame] for frame in frames], by))


def _common(one: ReportFrame, other: ReportFrame) -> ReportFrame:
    """Return what two frames agree on."""
    fields: list[Any] = [a if a == b else default for a, b, default in zip(one, other, _NOTHING, strict=True)]
    return ReportFrame(*fields)._replace(text=one.text)


def _relabel(frame: ReportFrame, by: By) -> ReportFrame:
    if by == "module":
        path = frame.module or "unknown"
        return ReportFrame(
            f"[{path.rpartition('/')[2].strip('[]')}]", module=frame.module, build_id=frame.build_id
        )
    if by == "address" and frame.function and frame.offset is not None:
        return frame._replace(text=f"{frame.text} {frame.offset:#x}")
    return frame


def _without_repeats(frames: list[ReportFrame], by: By) -> Iterable[ReportFrame]:
    """By module, a run of frames in one module is one step."""
    if by != "module":
        return frames
    return (frame for at, frame in enumerate(frames) if not at or frame != frames[at - 1])


_NOTHING = ReportFrame("")
_KEYS: dict[By, Callable[[ReportFrame], _Key]] = {
    "function": lambda frame: (frame.text, frame.module),
    "module": lambda frame: (frame.module,),
    "address": lambda frame: (frame.text, frame.module, frame.offset),
}


# -- stacks that count


def choose(report: Report, wanted: Callable[[ReportFrame], bool], *, keep: bool = True) -> Report:
    """Return the stacks that have a frame which is wanted; those that have none, when `keep` is false."""
    chosen = {frame for frame in report.frames if wanted(frame)}
    return rebuild(report, lambda frames: None if chosen.isdisjoint(frames) is keep else frames)


def focus(report: Report, on: Callable[[ReportFrame], bool]) -> Report:
    """Return the stacks through a frame that `on` accepts, from the outermost such frame inwards."""
    chosen = {frame for frame in report.frames if on(frame)}

    def cut(frames: Sequence[ReportFrame]) -> Sequence[ReportFrame] | None:
        at = max((at for at, frame in enumerate(frames) if frame in chosen), default=None)
        return None if at is None else frames[: at + 1]

    return rebuild(report, cut)
