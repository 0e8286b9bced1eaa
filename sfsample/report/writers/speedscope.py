"""`-f speedscope`: for https://www.speedscope.app and its offline copy.

Law: the file format is speedscope's file-format-schema.json.  One profile per thread and per weight; in order
of time when the samples' times are known, otherwise in order of weight.  Root first.
"""

from collections.abc import Iterator
from typing import Any

from sfsample.report.json_text import json_text
from sfsample.report.merge import merge_by
from sfsample.report.report import CPU, SAMPLES, WALL, Report, ReportFrame, truncation

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {
    SAMPLES: ("samples", "none"),
    WALL: ("elapsed time", "nanoseconds"),
    CPU: ("CPU time", "nanoseconds"),
}


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - threads are profiles
    """Return the file."""
    report = merge_by(report, "function")
    marks: dict[str, int] = {}
    stacks = list(_stacks(report, marks))
    names = [*map(_frame, report.frames), *({"name": mark} for mark in marks)]
    document = {
        "$schema": _SCHEMA,
        "exporter": "sfsample",
        "name": _title(report),
        "activeProfileIndex": 0,
        "shared": {"frames": names},
        "profiles": list(_profiles(report, stacks)),
    }
    return json_text(document).encode()


def _title(report: Report) -> str:
    return ", ".join(dict.fromkeys(thread.process for thread in report.threads))


def _frame(frame: ReportFrame) -> dict[str, Any]:
    fields = {"name": frame.text, "file": frame.file or frame.module, "line": frame.line}
    return {key: value for key, value in fields.items() if value is not None}


def _stacks(report: Report, marks: dict[str, int]) -> Iterator[list[int]]:
    """Yield each stack's frame numbers, root first; marks of truncation are frames after all others."""
    for stack in report.stacks:
        mark = truncation(stack)
        head = [] if mark is None else [len(report.frames) + marks.setdefault(mark, len(marks))]
        yield [*head, *reversed(stack.frames)]


def _profiles(report: Report, stacks: list[list[int]]) -> Iterator[dict[str, Any]]:
    rows = _rows(report)
    for weight, (what, unit) in _UNITS.items():
        if weight not in report.weights:
            continue
        for number, thread in enumerate(report.threads):
            chosen = [(at, weights[weight]) for at, weights in rows if report.stacks[at].thread == number]
            name = thread.name if thread.tid is None else f"{thread.name}/{thread.tid}"
            yield {
                "type": "sampled",
                "name": f"{name} ({what})",
                "unit": unit,
                "startValue": 0,
                "endValue": sum(value for _, value in chosen),
                "samples": [stacks[at] for at, _ in chosen],
                "weights": [value for _, value in chosen],
            }


def _rows(report: Report) -> list[tuple[int, dict[str, int]]]:
    """Return (stack, its weights), one row per sample where times are known."""
    line = report.timeline
    if line is not None and not line.dropped:
        columns = zip(line.samples, line.wall_ns, line.cpu_ns, strict=True)
        return [(at, {SAMPLES: n, WALL: wall, CPU: cpu})
                for at, (n, wall, cpu) in zip(line.stack, columns, strict=True)]  # fmt: skip
    rows = [
        (at, dict(zip(report.weights, stack.weights, strict=True))) for at, stack in enumerate(report.stacks)
    ]
    return sorted(rows, key=lambda row: -row[1][SAMPLES])
