"""Reads `sfsample.profile/1` (docs/profile-json.md).

The reader checks types, indexes and that columns have one length.  It cleans texts again, because a file can
hold anything.
"""

import json

from sfsample.errors import BadInput
from sfsample.report.builder import ReportBuilder
from sfsample.report.readers.json_value import JsonValue
from sfsample.report.report import SAMPLES, WEIGHTS, Report, ReportFrame, ReportThread, ReportTimeline
from sfsample.symbolize.frame_text import clean_name

SCHEMA = "sfsample.profile/1"


def read(data: bytes) -> Report:
    """Return the report.  Raises BadInput."""
    try:
        root = JsonValue(json.loads(data))
    except (
        ValueError,
        RecursionError,
    ) as failure:  # ValueError: also not UTF-8, or a number of a million digits
        raise BadInput(f"not JSON: {failure}") from None
    if root.field("schema").value != SCHEMA:
        raise BadInput(f"schema: not {SCHEMA}")
    weights = _weights(root.field("weights"))
    builder = ReportBuilder(weights)
    threads = [_thread(thread) for thread in root.field("threads").items()]
    modules = [_module(module) for module in root.field("modules").items()]
    frames = [_frame(frame, modules) for frame in root.field("frames").items()]
    indexes = []
    for stack in root.field("stacks").items():
        thread = threads[stack.field("thread").count(len(threads))]
        rows = [frames[at] for at in stack.field("frames").counts(len(frames))]
        numbers = tuple(stack.field(weight).count() for weight in weights)
        indexes.append(builder.add(thread, rows, clean_name(stack.field("stop_reason").text()), numbers))
    return builder.finish()._replace(
        started_ns=_optional_count(root.field("started_ns")),
        duration_ns=_optional_count(root.field("duration_ns")),
        rate_hz=root.field("rate_hz").number() if root.field("rate_hz").known() else None,
        timeline=_timeline(root.field("timeline"), indexes) if root.field("timeline").known() else None,
        stats=_stats(root.field("stats")),
    )


def _weights(value: JsonValue) -> tuple[str, ...]:
    names = tuple(item.text() for item in value.items())
    if names[:1] != (SAMPLES,) or len(set(names)) != len(names) or not set(names) <= set(WEIGHTS):
        raise value.error(f"a list out of {', '.join(WEIGHTS)} that begins with {SAMPLES}")
    return names


def _thread(value: JsonValue) -> ReportThread:
    process, name = (clean_name(value.field(key).text()) for key in ("process", "name"))
    pid, tid = (_optional_count(value.field(key)) for key in ("pid", "tid"))
    return ReportThread(process, name, pid, tid)


def _module(value: JsonValue) -> tuple[str, str | None]:
    return clean_name(value.field("path").text()), _optional_text(value.field("build_id"))


def _frame(value: JsonValue, modules: list[tuple[str, str | None]]) -> ReportFrame:
    module, offset = value.field("module"), value.field("offset")
    path, build_id = modules[module.count(len(modules))] if module.known() else (None, None)
    return ReportFrame(
        clean_name(value.field("text").text()),
        _optional_text(value.field("function")),
        _optional_text(value.field("raw")),
        path,
        build_id,
        offset.address() if offset.known() else None,
        _optional_text(value.field("file")),
        _optional_count(value.field("line")),
        value.field("inlined").flag(),
        clean_name(value.field("kind").text()) if value.field("kind").value else "",
        clean_name(value.field("found").text()) if value.field("found").value else "",
    )


def _timeline(value: JsonValue, indexes: list[int]) -> ReportTimeline:
    columns = {name: value.field(name).counts() for name in ReportTimeline._fields[:-1]}
    if len({len(column) for column in columns.values()}) != 1:
        raise value.error("columns of one length")
    columns["stack"] = [indexes[at] for at in value.field("stack").counts(len(indexes))]
    return ReportTimeline(**columns, dropped=_optional_count(value.field("dropped")) or 0)


def _stats(value: JsonValue) -> dict[str, object] | None:
    if value.known() and not isinstance(value.value, dict):
        raise value.error("an object")
    return value.value  # type: ignore[no-any-return]


def _optional_text(value: JsonValue) -> str | None:
    return clean_name(value.text()) if value.known() else None


def _optional_count(value: JsonValue) -> int | None:
    return value.count() if value.known() else None
