"""`-f json`: the whole report as `sfsample.profile/1` (docs/profile-json.md).

`coverage` is computed from `stats`; the report has all other values.

Invariant: `read` returns the report that was written, and raises only BadInput, whatever the file contains
(tests/report/test_report.py).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from sfsample.errors import BadInput
from sfsample.report.budget import ReadingBudget
from sfsample.report.json_text import json_text
from sfsample.report.report import (
    SAMPLES,
    TARGET_FIELDS,
    WEIGHTS,
    Numbers,
    Report,
    ReportBuilder,
    ReportThread,
    ReportTimeline,
)
from sfsample.report.stats import ReportStats
from sfsample.report.waits import wait_of
from sfsample.symbolize.named_frame import NamedFrame, clean_name

_Module = tuple[str, str | None]  # path and build-id
_SCHEMA = "sfsample.profile/1"
_T = TypeVar("_T")
_FIELDS = ("text", "function", "raw", "file", "line", "inlined", "kind", "found")  # copied to JSON
_MAX_DEPTH = 50  # levels of `stats`; sfsample itself writes 4
_ADDRESS = re.compile("(0x)?[0-9a-fA-F]{1,16}")
_MAX_COUNT = (1 << 63) - 1  # pprof cannot hold more
_COSTS = {b",": 36, b"[": 64, b"{": 360, b'"': 30}  # bytes of memory for the value after a character
_WIDE_COST = 8  # bytes of memory for each byte of a text, because one letter can make all letters wide


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - the file always has the threads
    """Return the file."""
    return json_text(document(report)).encode()


def document(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    timeline = report.timeline
    return {
        "schema": _SCHEMA,
        "started_ns": report.started_ns,
        "duration_ns": report.duration_ns,
        "rate_hz": report.rate_hz,
        "host": report.host,
        "weights": list(report.weights),
        "threads": [thread._asdict() for thread in report.threads],
        **frames_json(report.frames),
        "stacks": [{"thread": stack.thread, "frames": list(stack.frames), "stop_reason": stack.stop_reason,
                    "wait": wait_of(report, stack), **dict(zip(report.weights, stack.weights, strict=True))}
                   for stack in report.stacks],
        "timeline": timeline and {
            name: list(getattr(timeline, name)) for name in timeline._fields[:-1]
        } | {"dropped": timeline.dropped},
        "labels": report.labels or {},
        "target": None if report.target is None else dict.fromkeys(TARGET_FIELDS) | report.target,
        "coverage": None if (share := report.stats.coverage) is None else round(share, 4),
        "stats": dict(report.stats.document) or None,
    }  # fmt: skip


def frames_json(frames: Iterable[NamedFrame]) -> dict[str, Any]:
    """Return the tables "modules" and "frames"; a frame has the index of its module."""
    modules = Numbers[_Module]()
    rows = [
        {name: getattr(frame, name) for name in _FIELDS}
        | {"offset": None if frame.address is None else hex(frame.address)}
        | {"module": None if frame.module is None else modules[frame.module, frame.build_id]}
        for frame in frames
    ]
    return {"modules": [{"path": path, "build_id": build_id} for path, build_id in modules], "frames": rows}


class JsonValue:
    """A value, and its place in the document."""

    def __init__(self, value: Any, place: str = "") -> None:  # noqa: ANN401 - any JSON
        self.value = value
        self.place = place

    def error(self, expected: str) -> BadInput:
        """Return the error with the place, and with the kind of value that was expected there."""
        return BadInput(f"{self.place or 'the document'}: not {expected}")

    def field(self, name: str) -> "JsonValue":
        """Return a member of an object; null if it is missing."""
        return JsonValue(self.members().get(name), f"{self.place}.{name}".lstrip("."))

    def members(self) -> dict[str, Any]:
        """Return an object."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return self.value

    def plain_object(self) -> dict[str, Any]:
        """Return an object in which no number is too large for other JSON parsers."""
        if not _is_plain(self.members()):
            raise self.error(f"an object with numbers up to 2**63, and at most {_MAX_DEPTH} levels")
        return self.members()

    def items(self) -> Iterator["JsonValue"]:
        """Yield the members of a list."""
        if not isinstance(self.value, list):
            raise self.error("a list")
        for at, value in enumerate(self.value):
            yield JsonValue(value, f"{self.place}[{at}]")

    def optional(self, read: Callable[["JsonValue"], _T]) -> _T | None:
        """Return the result of `read`, or None if the value is null."""
        return None if self.value is None else read(self)

    def text(self) -> str:
        """Return a string without control characters."""
        if not isinstance(self.value, str):
            raise self.error("a text")
        return clean_name(self.value)

    def texts(self) -> dict[str, str]:
        """Return an object of strings without control characters."""
        return {clean_name(key): self.field(key).text() for key in self.members()}

    def flag(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value

    def number(self) -> float:
        """Return a finite number."""
        if type(self.value) not in (int, float) or not abs(self.value) < 1e300:
            raise self.error("a number")
        return float(self.value)

    def count(self, below: int = _MAX_COUNT + 1) -> int:
        """Return a natural number less than `below`."""
        if type(self.value) is not int or not 0 <= self.value < below:
            raise self.error("a natural number" if below > _MAX_COUNT else f"a number under {below}")
        return self.value

    def counts(self, below: int = _MAX_COUNT + 1) -> list[int]:
        """Return a list of natural numbers less than `below`; fast, even if the list is long."""
        values = self.value
        if isinstance(values, list) and all(type(value) is int and 0 <= value < below for value in values):
            return values
        return [item.count(below) for item in self.items()]

    def address(self) -> int:
        """Return the 64-bit number in a hexadecimal string."""
        if not _ADDRESS.fullmatch(self.text()):
            raise self.error('an address ("0x1f")')
        return int(self.value, 16)


def read_json(data: bytes | str) -> JsonValue:
    """Return any JSON document.  Raises BadInput."""
    try:
        return JsonValue(json.loads(data))
    except (ValueError, RecursionError) as failure:  # a plain ValueError comes from int()
        why = "a number that is too long" if type(failure) is ValueError else failure
        raise BadInput(f"not JSON, or cut off: {why}") from None


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return depth < _MAX_DEPTH and all(_is_plain(member, depth + 1) for member in members)
    return not isinstance(value, int | float) or abs(value) <= _MAX_COUNT  # False for NaN, too


def read(data: bytes, budget: ReadingBudget) -> Report:
    """Return the report.  Raises BadInput."""
    budget.number = len(data)
    budget.charge(sum(data.count(mark) * cost for mark, cost in _COSTS.items()))
    budget.charge(0 if data.isascii() else len(data) * _WIDE_COST)
    root = read_json(data)
    if root.field("schema").value != _SCHEMA:
        raise BadInput(f"schema: not {_SCHEMA}")
    weights = _weights(root.field("weights"))
    builder = ReportBuilder(weights)
    threads = [_thread(thread) for thread in root.field("threads").items()]
    frames = read_frames(root, budget)
    number = cache(lambda at: builder.number(frames[at]))
    indexes = []
    for stack in root.field("stacks").items():
        thread = threads[stack.field("thread").count(len(threads))]
        row = map(number, stack.field("frames").counts(len(frames)))
        numbers = tuple(stack.field(weight).count() for weight in weights)
        indexes.append(builder.add_row(thread, row, stack.field("stop_reason").text(), numbers))
    return builder.finish()._replace(
        started_ns=root.field("started_ns").optional(JsonValue.count),
        duration_ns=root.field("duration_ns").optional(JsonValue.count),
        rate_hz=root.field("rate_hz").optional(JsonValue.number),
        timeline=root.field("timeline").optional(lambda value: _timeline(value, indexes)),
        host=root.field("host").optional(JsonValue.text),
        labels=root.field("labels").optional(JsonValue.texts) or None,
        target=root.field("target").optional(_target),
        stats=ReportStats(root.field("stats").optional(JsonValue.plain_object) or {}),
    )


def _weights(value: JsonValue) -> tuple[str, ...]:
    names = tuple(item.text() for item in value.items())
    if names[:1] != (SAMPLES,) or len(set(names)) != len(names) or not set(names) <= set(WEIGHTS):
        raise value.error(f"a list out of {', '.join(WEIGHTS)} that begins with {SAMPLES}")
    return names


def _thread(value: JsonValue) -> ReportThread:
    process, name = (value.field(key).text() for key in ("process", "name"))
    pid, tid = (value.field(key).optional(JsonValue.count) for key in ("pid", "tid"))
    return ReportThread(process, name, pid, tid)


def _target(value: JsonValue) -> dict[str, Any] | None:
    *texts, started = TARGET_FIELDS
    known: dict[str, Any] = {name: value.field(name).optional(JsonValue.text) for name in texts}
    known[started] = value.field(started).optional(JsonValue.number)
    return {name: known[name] for name in TARGET_FIELDS if known[name] is not None} or None


def read_frames(root: JsonValue, budget: ReadingBudget) -> list[NamedFrame]:
    """Return the frames of an object with the tables that `frames_json` returns."""
    modules = [(module.field("path").text(), module.field("build_id").optional(JsonValue.text))
               for module in root.field("modules").items()]  # fmt: skip
    return [_read_frame(frame, modules, budget) for frame in root.field("frames").items()]


def _read_frame(value: JsonValue, modules: list[_Module], budget: ReadingBudget) -> NamedFrame:
    module = value.field("module").optional(lambda index: modules[index.count(len(modules))])
    path, build_id = module or (None, None)
    budget.charge(len(path or ""))
    return NamedFrame(
        text=value.field("text").text(), function=value.field("function").optional(JsonValue.text),
        raw=value.field("raw").optional(JsonValue.text), module=path, build_id=build_id,
        address=value.field("offset").optional(JsonValue.address),
        file=value.field("file").optional(JsonValue.text),
        line=value.field("line").optional(JsonValue.count), inlined=value.field("inlined").flag(),
        kind=value.field("kind").text() if value.field("kind").value else "",
        found=value.field("found").text() if value.field("found").value else "",
    )  # fmt: skip


def _timeline(value: JsonValue, indexes: list[int]) -> ReportTimeline:
    columns = {name: value.field(name).counts() for name in ReportTimeline._fields[:-1]}
    if len({len(column) for column in columns.values()}) != 1:
        raise value.error("columns of one length")
    columns["stack"] = [indexes[at] for at in value.field("stack").counts(len(indexes))]
    return ReportTimeline(**columns, dropped=value.field("dropped").optional(JsonValue.count) or 0)
