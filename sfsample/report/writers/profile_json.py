"""`-f json`: the whole report as `sfsample.profile/1` (docs/profile-json.md).

The document leaves nothing out and derives nothing.  Addresses are hexadecimal strings, `_ns` numbers are
integers and unknown values are null, as in every JSON of sfsample.

Invariant: report/readers/profile_json.py reads the same report back (tests/report/test_report.py).
"""

from typing import Any

from sfsample.report.json_text import json_text
from sfsample.report.report import Report, ReportFrame, ReportStack, ReportTimeline

SCHEMA = "sfsample.profile/1"


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - the file always has the threads
    """Return the file."""
    return json_text(document(report)).encode()


def document(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    modules: dict[tuple[str, str | None], int] = {}
    frames = [_frame(frame, modules) for frame in report.frames]
    return {
        "schema": SCHEMA,
        "started_ns": report.started_ns,
        "duration_ns": report.duration_ns,
        "rate_hz": report.rate_hz,
        "weights": list(report.weights),
        "threads": [thread._asdict() for thread in report.threads],
        "modules": [{"path": path, "build_id": build_id} for path, build_id in modules],
        "frames": frames,
        "stacks": [_stack(stack, report.weights) for stack in report.stacks],
        "timeline": None if report.timeline is None else _timeline(report.timeline),
        "stats": report.stats,
    }


def _frame(frame: ReportFrame, modules: dict[tuple[str, str | None], int]) -> dict[str, Any]:
    fields: dict[str, Any] = frame._asdict()
    path, build_id = fields.pop("module"), fields.pop("build_id")
    fields["module"] = None if path is None else modules.setdefault((path, build_id), len(modules))
    fields["offset"] = None if frame.offset is None else hex(frame.offset)
    return fields


def _stack(stack: ReportStack, weights: tuple[str, ...]) -> dict[str, Any]:
    return {
        "thread": stack.thread,
        "frames": list(stack.frames),
        "stop_reason": stack.stop_reason,
        **dict(zip(weights, stack.weights, strict=True)),
    }


def _timeline(timeline: ReportTimeline) -> dict[str, Any]:
    *columns, dropped = timeline
    return dict(zip(timeline._fields, [*map(list, columns), dropped], strict=True))
