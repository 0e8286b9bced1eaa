"""`-f speedscope`: for https://www.speedscope.app and its offline copy.

The file follows speedscope's file-format-schema.json, with one profile for each thread and weight.  Samples
are in order of time if the report has a timeline, otherwise in order of weight.  Stacks are root first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sfsample.report.caption import extent, losses
from sfsample.report.json_text import json_text
from sfsample.report.merge import merge_by
from sfsample.report.report import CPU, SAMPLES, WALL, Numbers, Report, truncation_mark

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {  # weight -> its name, and speedscope's unit
    SAMPLES: ("samples", "none"),
    WALL: ("elapsed time", "nanoseconds"),
    CPU: ("CPU time", "nanoseconds"),
}


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - each thread is a profile
    """Return the file."""
    report = merge_by(report, "function")
    marks = Numbers[str]()  # marks follow the frames in the table of frames
    stacks = [
        [*([len(report.frames) + marks[mark]] if (mark := truncation_mark(stack)) else []),
         *reversed(stack.frames)]
        for stack in report.stacks
    ]  # fmt: skip
    facts = ({"name": frame.text, "file": frame.file or frame.module, "line": frame.line}
             for frame in report.frames)  # fmt: skip
    frames = [{key: fact for key, fact in each.items() if fact is not None} for each in facts]
    frames += [{"name": mark} for mark in marks]
    document = {
        "$schema": _SCHEMA,
        "exporter": "sfsample",
        "name": "; ".join([f"{report.process_names()}: {extent(report)}", *losses(report)]),
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": list(_profiles(report, stacks)),
    }
    return json_text(document).encode()


def _profiles(report: Report, stacks: list[list[int]]) -> Iterator[dict[str, Any]]:
    order, columns = _samples(report)
    rows: list[list[int]] = [[] for _ in report.threads]
    for row, at in enumerate(order):
        rows[report.stacks[at].thread].append(row)
    for weight, (name, unit) in _UNITS.items():
        if weight not in report.weights:
            continue
        column = columns[weight]
        for thread, chosen in zip(report.threads, rows, strict=True):
            yield {
                "type": "sampled",
                "name": f"{thread.label} ({name})",
                "unit": unit,
                "startValue": 0,
                "endValue": sum(column[row] for row in chosen),
                "samples": [stacks[order[row]] for row in chosen],
                "weights": [column[row] for row in chosen],
            }


def _samples(report: Report) -> tuple[Sequence[int], dict[str, Sequence[int]]]:
    """Return the stack of each sample, and a column for each weight; without times, a stack is one sample."""
    timeline = report.timeline
    if timeline is not None and not timeline.dropped:
        return timeline.stack, {SAMPLES: timeline.samples, WALL: timeline.wall_ns, CPU: timeline.cpu_ns}
    order = sorted(range(len(report.stacks)), key=lambda at: -report.stacks[at].weights[0])
    columns = {weight: report.column(weight) for weight in report.weights}
    return order, {weight: [column[at] for at in order] for weight, column in columns.items()}
