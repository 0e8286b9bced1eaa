"""Reads `sfsample.profile/1` back.

Law: what is read is checked: types, indexes, columns of one length.  Texts are cleaned anew, because a file
can hold anything.
"""

import json

from sfsample.errors import BadInput
from sfsample.report.builder import ReportBuilder
from sfsample.report.readers.shape import Shape
from sfsample.report.report import SAMPLES, WEIGHTS, Report, ReportFrame, ReportTimeline, Thread
from sfsample.symbolize.frame_text import clean_name

SCHEMA = "sfsample.profile/1"


def read(data: bytes) -> Report:
    """Return the report.  Raises BadInput."""
    try:
        root = Shape(json.loads(data))
    except (ValueError, RecursionError) as failure:  # also: not UTF-8, numbers of a million digits
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
    return builder.finish(
        started_ns=_optional_count(root.field("started_ns")),
        duration_ns=_optional_count(root.field("duration_ns")),
        rate_hz=root.field("rate_hz").number() if root.field("rate_hz").known() else None,
        timeline=_timeline(root.field("timeline"), indexes) if root.field("timeline").known() else None,
        stats=_stats(root.field("stats")),
    )


def _weights(shape: Shape) -> tuple[str, ...]:
    names = tuple(item.text() for item in shape.items())
    if names[:1] != (SAMPLES,) or len(set(names)) != len(names) or not set(names) <= set(WEIGHTS):
        raise shape.wrong(f"a list out of {', '.join(WEIGHTS)} that begins with {SAMPLES}")
    return names


def _thread(shape: Shape) -> Thread:
    process, name = (clean_name(shape.field(key).text()) for key in ("process", "name"))
    pid, tid = (_optional_count(shape.field(key)) for key in ("pid", "tid"))
    return Thread(process, name, pid, tid)


def _module(shape: Shape) -> tuple[str, str | None]:
    return clean_name(shape.field("path").text()), _optional_text(shape.field("build_id"))


def _frame(shape: Shape, modules: list[tuple[str, str | None]]) -> ReportFrame:
    module, offset = shape.field("module"), shape.field("offset")
    path, build_id = modules[module.count(len(modules))] if module.known() else (None, None)
    return ReportFrame(
        clean_name(shape.field("text").text()),
        _optional_text(shape.field("function")),
        _optional_text(shape.field("raw")),
        path,
        build_id,
        offset.address() if offset.known() else None,
        _optional_text(shape.field("file")),
        _optional_count(shape.field("line")),
        shape.field("inlined").flag(),
        clean_name(shape.field("kind").text()) if shape.field("kind").value else "",
        clean_name(shape.field("found").text()) if shape.field("found").value else "",
    )


def _timeline(shape: Shape, indexes: list[int]) -> ReportTimeline:
    columns = {name: shape.field(name).counts() for name in ReportTimeline._fields[:-1]}
    if len({len(column) for column in columns.values()}) != 1:
        raise shape.wrong("columns of one length")
    columns["stack"] = [indexes[at] for at in shape.field("stack").counts(len(indexes))]
    return ReportTimeline(**columns, dropped=_optional_count(shape.field("dropped")) or 0)


def _stats(shape: Shape) -> dict[str, object] | None:
    if shape.known() and not isinstance(shape.value, dict):
        raise shape.wrong("an object")
    return shape.value  # type: ignore[no-any-return]


def _optional_text(shape: Shape) -> str | None:
    return clean_name(shape.text()) if shape.known() else None


def _optional_count(shape: Shape) -> int | None:
    return shape.count() if shape.known() else None
