"""Makes reports out of reports: merges reports, merges frames, selects stacks.

Weights are added.  A fact (host, rate) that differs becomes unknown.  A sum of reports has no timeline.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, groupby
from typing import Any, Literal, TypeVar

from sfsample.report.budget import ReadingBudget
from sfsample.report.report import WEIGHTS, Report, ReportBuilder, ReportStack, ReportTimeline
from sfsample.report.stats import sum_stats
from sfsample.symbolize.named_frame import NamedFrame

MergeBy = Literal["function", "module", "address"]
_FrameKey = tuple[object, ...]
_V = TypeVar("_V")
_FRAME_COST, _STACK_COST, _REFERENCE_COST = 500, 300, 8  # see report/budget.py


def rebuild(report: Report, change: Callable[[Sequence[NamedFrame]], Iterable[NamedFrame] | None]) -> Report:
    """Return the report with `change` applied to each stack's frames, innermost first; None drops a stack."""
    return rebuild_stacks(report, lambda stack: change([report.frames[at] for at in stack.frames]))


def rebuild_stacks(report: Report, frames_of: Callable[[ReportStack], Iterable[NamedFrame] | None]) -> Report:
    """Return the report with the frames from `frames_of`, innermost first; None drops a stack."""
    builder = ReportBuilder(report.weights)
    new: dict[int, int] = {}  # index of a stack -> its new index
    for at, stack in enumerate(report.stacks):
        if (frames := frames_of(stack)) is not None:
            new[at] = builder.add(report.threads[stack.thread], frames, stack.stop_reason, stack.weights)
    timeline = report.timeline
    if timeline is not None:
        *columns, dropped = timeline
        kept = [at in new for at in timeline.stack]
        at_ns, stacks, samples, wall_ns, cpu_ns = (list(compress(column, kept)) for column in columns)
        timeline = ReportTimeline(at_ns, [new[at] for at in stacks], samples, wall_ns, cpu_ns, dropped)
    made = builder.finish()
    return report._replace(threads=made.threads, frames=made.frames, stacks=made.stacks, timeline=timeline)


def merge(reports: Iterable[Report], budget: ReadingBudget | None = None) -> Report:
    """Return the sum of reports; free a report before the next is read.  Raises BadInput beyond `budget`."""
    rest = iter(reports)
    first, second = next(rest), next(rest, None)
    if second is None:
        return first
    builder, facts, todo = ReportBuilder(WEIGHTS), [], chain([first, second], rest)
    del first, second
    for number, report in enumerate(todo, 1):
        cost = _add(builder, report)
        if budget is not None:
            budget.place, budget.number = "file", number
            budget.charge(cost)
        facts.append(report._replace(threads=(), frames=(), stacks=(), timeline=None))
        del report
    return _select_weights(builder.finish(), facts)._replace(
        started_ns=min((report.started_ns for report in facts if report.started_ns), default=None),
        duration_ns=sum_known(report.duration_ns for report in facts),
        rate_hz=common(report.rate_hz for report in facts),
        host=common(report.host for report in facts),
        labels=common_values([report.labels for report in facts]),
        target=common_values([report.target for report in facts]),
        stats=sum_stats(report.stats for report in facts),
    )


def common(values: Iterable[_V]) -> _V | None:
    """Return the common value; None if the values differ."""
    distinct = {*values}
    return distinct.pop() if len(distinct) == 1 else None


def sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the values is None."""
    numbers = [*values]
    return None if None in numbers else sum(filter(None, numbers))


def common_values(given: Sequence[dict[str, _V] | None]) -> dict[str, _V] | None:
    """Return the items that are the same in all dictionaries; None if there is no such item."""
    first, *others = [each or {} for each in given] or [{}]
    return {k: v for k, v in first.items() if all(each.get(k) == v for each in others)} or None


def _add(builder: ReportBuilder, report: Report) -> int:
    """Add all stacks; return the cost of new rows.  Weights that the report does not have are 0."""
    frame_count, stack_count = builder.sizes
    number = [builder.number(frame) for frame in report.frames]
    new = [frame for frame, at in zip(report.frames, number, strict=True) if at >= frame_count]
    cost = sum(_FRAME_COST + 2 * len(frame.text) for frame in new)
    columns = [report.column(name) for name in WEIGHTS]
    for stack, *weights in zip(report.stacks, *columns, strict=True):
        frames = [number[at] for at in stack.frames]
        at = builder.add_row(report.threads[stack.thread], frames, stack.stop_reason, tuple(weights))
        if at == stack_count:
            stack_count += 1
            cost += _STACK_COST + len(frames) * _REFERENCE_COST
    return cost


def _select_weights(report: Report, facts: list[Report]) -> Report:
    """Return the report with only the weights that all inputs have."""
    kept = [at for at, name in enumerate(WEIGHTS) if all(name in fact.weights for fact in facts)]
    if len(kept) == len(WEIGHTS):
        return report
    stacks = [stack._replace(weights=tuple(stack.weights[at] for at in kept)) for stack in report.stacks]
    return report._replace(stacks=tuple(stacks), weights=tuple(WEIGHTS[at] for at in kept))


def merge_by(report: Report, by: MergeBy) -> Report:
    """Merge frames with the same function, address or module; by module, also join adjacent equal frames."""
    key = _KEYS[by]
    merged: dict[_FrameKey, NamedFrame] = {}
    for frame in report.frames:
        name = key(frame)
        merged[name] = _common(merged[name], frame) if name in merged else frame
    table = {frame: _relabel(merged[key(frame)], by) for frame in report.frames}

    def change(frames: Sequence[NamedFrame]) -> list[NamedFrame]:
        changed = [table[frame] for frame in frames]
        return [frame for frame, _ in groupby(changed)] if by == "module" else changed

    return rebuild(report, change)


def _common(first: NamedFrame, second: NamedFrame) -> NamedFrame:
    """Return the first frame; fields that differ in the second frame become unknown."""
    pairs = zip(first, second, _UNKNOWN, strict=True)
    fields: list[Any] = [a if a == b else unknown for a, b, unknown in pairs]
    return NamedFrame(*fields)._replace(text=first.text)


def _relabel(frame: NamedFrame, by: MergeBy) -> NamedFrame:
    if by == "module":
        path = frame.module or "unknown"
        return NamedFrame(
            f"[{path.rpartition('/')[2].strip('[]')}]", module=frame.module, build_id=frame.build_id
        )
    if by == "address" and frame.function and frame.address is not None:
        return frame._replace(text=f"{frame.text} {frame.address:#x}")
    return frame


_UNKNOWN = NamedFrame("")
_KEYS: dict[MergeBy, Callable[[NamedFrame], _FrameKey]] = {
    "function": lambda frame: (frame.text, frame.module),
    "module": lambda frame: (frame.module,),
    "address": lambda frame: (frame.text, frame.module, frame.address),
}


def filter_stacks(report: Report, matches: Callable[[NamedFrame], bool], *, keep: bool = True) -> Report:
    """Return the report with only the stacks that have a matching frame; `keep` False: the rest."""
    chosen = {frame for frame in report.frames if matches(frame)}
    return rebuild(report, lambda frames: None if chosen.isdisjoint(frames) is keep else frames)


def focus(report: Report, matches: Callable[[NamedFrame], bool]) -> Report:
    """Return only the stacks that have a matching frame; the outermost matching frame becomes the root."""
    chosen = {frame for frame in report.frames if matches(frame)}

    def cut(frames: Sequence[NamedFrame]) -> Sequence[NamedFrame] | None:
        at = max((at for at, frame in enumerate(frames) if frame in chosen), default=None)
        return None if at is None else frames[: at + 1]

    return rebuild(report, cut)
