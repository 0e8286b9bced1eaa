"""`-f pprof`: Google's profile.proto, gzipped, as `go tool pprof`, Pyroscope and Parca use it.

Field numbers come from proto/profile.proto in github.com/google/pprof; comments have the field names.  A
frame and the functions inlined into it are one Location, with one Line for each function, innermost first.
Threads are labels.  `system_name` has the mangled name, so that pprof does not shorten the demangled name.

Files of other programs can be read, too: the first sample type with the unit "count" becomes "samples".
"""

import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TypeVar

from sfsample.core.wait_kind import WaitClass
from sfsample.errors import BadInput, FormatError
from sfsample.formats.protobuf import fields, integer, integers, message, packed, signed, varint
from sfsample.report.budget import ReadingBudget
from sfsample.report.caption import label_texts, losses
from sfsample.report.formats.folded import frame_of
from sfsample.report.report import (
    CPU,
    OUTERMOST,
    SAMPLES,
    WALL,
    Numbers,
    Report,
    ReportBuilder,
    ReportStack,
    ReportThread,
    truncation_mark,
)
from sfsample.report.waits import wait_of
from sfsample.symbolize.named_frame import NamedFrame, address_text, clean_name

# weight -> type and unit
VALUE_TYPES = {SAMPLES: ("samples", "count"), WALL: ("wall", "nanoseconds"), CPU: ("cpu", "nanoseconds")}
_TIME_WEIGHTS = {VALUE_TYPES[weight]: weight for weight in (WALL, CPU)}
_T = TypeVar("_T")
_LocationKey = tuple[int, ...] | tuple[str]  # indexes of frames, or a mark of truncation
_HOST, _LABEL = "host: ", "label: "  # prefixes of comments with the machine, and with a label (key=value)
_WAIT_CLASSES = {*WaitClass}
_MAX_ADDRESS = (1 << 64) - 1
_NUMBER_COST, _BYTES_COST, _ROW_COST = 80, 250, 500  # see report/budget.py
_SAMPLE_COST, _REFERENCE_COST, _FRAME_COST = 700, 24, 1000
_Message = dict[int, list[int | memoryview]]  # field number -> its values


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - threads are labels
    """Return the file; equal reports make equal bytes."""
    return gzip.compress(b"".join(Encoder(report).profile()), 6, mtime=0)


class Encoder:
    """Encodes one report.  The id of a row is its position in the table, from 1 on."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._inlined = [frame.inlined for frame in report.frames]
        self._strings = Numbers({"": 0})
        self._mappings = Numbers[tuple[str, str | None]]()
        self._functions = Numbers[tuple[str, str, str]]()
        self._locations = Numbers[_LocationKey]()
        self._frames_by_module = defaultdict[tuple[str | None, str | None], list[NamedFrame]](list)
        for frame in report.frames:
            self._frames_by_module[frame.module, frame.build_id].append(frame)

    def profile(self) -> Iterator[bytes]:
        """Yield the fields of Profile."""
        report = self._report
        for weight in report.weights:
            yield message(1, *self._value_type(*VALUE_TYPES[weight]))  # sample_type
        for stack in report.stacks:
            yield message(2, *self._sample(stack))  # sample
        for number, key in enumerate(self._locations, 1):  # locations first: they add mappings and functions
            yield message(4, integer(1, number), *self._location(key, 2))  # location: id
        for number, (path, build_id) in enumerate(self._mappings, 1):
            yield message(3, *self._mapping(path, build_id, number))  # mapping
        for number, names in enumerate(self._functions, 1):
            yield message(5, integer(1, number), *self._function(names, 2))  # function: id
        yield integer(9, report.started_ns or 0)  # time_nanos
        yield integer(10, report.duration_ns or 0)  # duration_nanos
        if report.rate_hz:
            yield message(11, *self._value_type("cpu", "nanoseconds"))  # period_type
            yield integer(12, round(1e9 / report.rate_hz))  # period
        for text in self._comments():
            yield integer(13, self._strings[text])  # comment
        yield integer(14, self._strings[VALUE_TYPES[SAMPLES][0]])  # default_sample_type
        for text in self._strings:  # strings last: all fields above add strings
            yield message(6, text.encode("utf-8", "replace"))  # string_table

    def _comments(self) -> Iterator[str]:
        if self._report.host:
            yield _HOST + self._report.host
        yield from (_LABEL + text for text in label_texts(self._report))
        yield from losses(self._report)

    def _value_type(self, kind: str, unit: str) -> tuple[bytes, ...]:
        return integer(1, self._strings[kind]), integer(2, self._strings[unit])  # type, unit

    def _sample(self, stack: ReportStack) -> Iterator[bytes]:
        yield self._stack(stack)
        yield packed(2, stack.weights)  # value
        thread, wait = self._report.threads[stack.thread], wait_of(self._report, stack)
        for key, text in (("process", thread.process), ("thread", thread.name), ("wait", wait)):
            if text:
                yield message(3, integer(1, self._strings[key]), integer(2, self._strings[text]))  # key, str
        for key, number in (("pid", thread.pid), ("tid", thread.tid)):
            if number is not None:
                yield message(3, integer(1, self._strings[key]), integer(3, number))  # key, num

    def _stack(self, stack: ReportStack) -> bytes:
        """Return the ids of a stack's locations; a function and its inlined functions share a location."""
        keys, start = list[_LocationKey](), 0
        for end, at in enumerate(stack.frames, 1):
            if not self._inlined[at] or end == len(stack.frames):
                keys.append(stack.frames[start:end])
                start = end
        if mark := truncation_mark(stack):
            keys.append((mark,))
        return message(1, *(varint(self._locations[key] + 1) for key in keys))  # location_id

    def _location(self, key: _LocationKey, first: int) -> Iterator[bytes]:
        """Yield the fields of a location after its id; field numbers begin with `first`."""
        frames = [NamedFrame(at) if isinstance(at, str) else self._report.frames[at] for at in key]
        outer = frames[-1]
        if outer.module is not None:
            yield integer(first, self._mappings[outer.module, outer.build_id] + 1)  # mapping_id
        yield integer(first + 1, outer.address or 0)  # address
        for frame in frames:
            name = frame.plain_text
            function = self._functions[name, frame.raw or name, frame.file or ""] + 1
            yield message(first + 2, integer(1, function), integer(2, frame.line or 0))  # line

    def _function(self, names: tuple[str, str, str], first: int) -> Iterator[bytes]:
        """Yield name, system_name and filename; field numbers begin with `first`."""
        for field, text in enumerate(names, first):
            yield integer(field, self._strings[text])

    def _limit(self, path: str, build_id: str | None) -> int:
        addresses = (frame.address or 0 for frame in self._frames_by_module[path, build_id])
        return min(max(addresses) + 1, _MAX_ADDRESS)

    def _mapping(self, path: str, build_id: str | None, number: int) -> Iterator[bytes]:
        frames = self._frames_by_module[path, build_id]
        yield integer(1, number)  # id
        yield integer(3, self._limit(path, build_id))  # memory_limit; memory_start 0: addresses are vaddrs
        yield integer(5, self._strings[path])  # filename
        yield integer(6, self._strings[build_id or ""])  # build_id
        yield integer(7, 1)  # has_functions: pprof need not symbolize
        yield integer(8, any(frame.file for frame in frames))  # has_filenames
        yield integer(9, any(frame.line for frame in frames))  # has_line_numbers
        yield integer(10, any(frame.inlined for frame in frames))  # has_inline_frames


def read(data: bytes, budget: ReadingBudget) -> Report:
    """Return the report.  Raises BadInput."""
    budget.place = "pprof field"
    try:
        return _ProfileReader(memoryview(data), budget).report()
    except FormatError as damage:
        raise BadInput(f"no profile: neither JSON nor text, nor whole pprof ({damage})") from None


class _ProfileReader:
    def __init__(self, data: memoryview, budget: ReadingBudget) -> None:
        self._budget = budget
        self._profile = self._parse(data)
        self._strings = list[str]()
        for text in map(_bytes, self._profile.get(6, ())):  # string_table
            budget.charge(len(text))
            self._strings.append(clean_name(bytes(text).decode("utf-8", "replace")))
        if not self._strings:
            raise BadInput("pprof without a string table")
        self._strings[0] = ""
        self._builder = ReportBuilder()
        self._mappings = self._table(3)  # mapping
        self._functions = self._table(5)  # function
        self._locations = self._table(4)  # location
        self._location = cache(self._read_location)

    def report(self) -> Report:
        columns = self._columns()
        self._builder.weights = tuple(columns)
        for sample in self._messages(2):  # sample
            self._add(sample, list(columns.values()))
        labels = (text.partition("=") for text in self._comments(_LABEL))
        period = signed(_integer(self._profile, 12))  # period
        period_is_time = any(self._text(row, 2) == "nanoseconds" for row in self._messages(11))  # period_type
        return self._builder.finish()._replace(
            started_ns=_integer(self._profile, 9) or None,  # time_nanos
            duration_ns=_integer(self._profile, 10) or None,  # duration_nanos
            rate_hz=1e9 / period if period > 0 and period_is_time else None,
            host=next(self._comments(_HOST), None),
            labels={key: value for key, is_label, value in labels if is_label} or None,
        )

    def _comments(self, prefix: str) -> Iterator[str]:
        comments = map(self._string_at, self._numbers(self._profile.get(13, ())))  # comment
        return (text.removeprefix(prefix) for text in comments if text.startswith(prefix))

    def _columns(self) -> dict[str, int]:
        """Return the index of each weight in the values of a sample; samples first."""
        types = [(self._text(row, 1), self._text(row, 2)) for row in self._messages(1)]  # sample_type
        counts = [at for at, (_, unit) in enumerate(types) if unit == "count"]
        if not counts:
            shown = ", ".join("/".join(pair) for pair in types) or "none"
            raise BadInput(f"pprof without a sample type in counts: it has {shown}")
        others = {_TIME_WEIGHTS[pair]: at for at, pair in enumerate(types) if pair in _TIME_WEIGHTS}
        return {SAMPLES: counts[0]} | others

    def _add(self, sample: _Message, columns: Sequence[int]) -> None:
        values = [signed(number) for number in self._numbers(sample.get(2, ()))]  # value
        if len(values) <= max(columns) or min(values) < 0:
            raise BadInput(f"pprof sample with the values {values[:8]}")
        locations = list(map(self._location, self._numbers(sample.get(1, ()))))  # location_id
        self._budget.charge(_SAMPLE_COST + sum(len(frames) for frames, _ in locations) * _REFERENCE_COST)
        reason = next((mark for _, mark in locations if mark), OUTERMOST)
        row = chain.from_iterable(frames for frames, _ in locations)
        self._builder.add_row(self._thread(sample), row, reason, tuple(values[at] for at in columns))

    def _thread(self, sample: _Message) -> ReportThread:
        texts: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for label in map(self._parse, map(_bytes, sample.get(3, ()))):  # label: key, str, num
            key = self._text(label, 1)
            texts[key], numbers[key] = self._text(label, 2), signed(_integer(label, 3))
            self._budget.charge(len(texts[key]))
        process = texts.get("process") or texts.get("thread") or "all"
        pid, tid = (number if (number := numbers.get(key, -1)) >= 0 else None for key in ("pid", "tid"))
        return ReportThread(process, texts.get("thread") or process, pid, tid)

    def _read_location(self, number: int) -> tuple[tuple[int, ...], str]:
        """Return the indexes of the frames, innermost first; for a mark of truncation, only the reason."""
        location = _required(self._locations.get(number), "a location")
        mapping = self._mappings.get(_integer(location, 2), {})  # mapping_id
        path, build_id = self._text(mapping, 5) or None, self._text(mapping, 6) or None  # filename, build_id
        address = _integer(location, 3)
        place = NamedFrame(address_text(path, address), module=path, build_id=build_id, address=address)
        lines = [self._parse(_bytes(line)) for line in location.get(4, ())]  # line
        inner = [self._frame(line, place, inlined=True) for line in lines[:-1]]
        frames = [*inner, self._frame(lines[-1], place, inlined=False) if lines else place]
        only = frames[0].text if len(lines) == 1 else ""
        if only.startswith("[truncated: ") and only.endswith("]"):
            return (), only[12:-1]
        return tuple(map(self._builder.number, frames)), ""

    def _frame(self, line: _Message, place: NamedFrame, *, inlined: bool) -> NamedFrame:
        function = _required(self._functions.get(_integer(line, 1)), "a function")  # function_id
        name, raw = self._text(function, 2) or "?", self._text(function, 3) or None  # name, system_name
        file = self._text(function, 4) or None  # filename
        texts = (name, raw, place.module, place.build_id, file)
        self._budget.charge(_FRAME_COST + sum(len(text) for text in texts if text))
        frame = frame_of(f"{name}_[i]" if inlined else name)
        is_wait = name.startswith("[") and raw in _WAIT_CLASSES
        return frame._replace(
            kind="w" if is_wait else frame.kind,
            raw=raw if frame.function else None,
            module=place.module or frame.module,
            build_id=place.build_id,
            address=place.address,
            file=file,
            line=max(0, signed(_integer(line, 2))) or None,  # line
        )

    def _text(self, row: _Message, field: int) -> str:
        return self._string_at(_integer(row, field))

    def _string_at(self, at: int) -> str:
        if at >= len(self._strings):
            raise BadInput(f"pprof string {at} of {len(self._strings)}")
        return self._strings[at]

    def _messages(self, field: int) -> Iterable[_Message]:
        return (self._parse(_bytes(value)) for value in self._profile.get(field, ()))

    def _table(self, field: int) -> dict[int, _Message]:
        """Return the messages of a field by their id, which is field 1 of each message."""
        rows = {_integer(row, 1): row for row in self._messages(field)}
        self._budget.charge(len(rows) * _ROW_COST)
        return rows

    def _parse(self, data: memoryview) -> _Message:
        found: _Message = {}
        for field, value in fields(data):
            self._budget.number = field
            self._budget.charge(_NUMBER_COST if isinstance(value, int) else _BYTES_COST)
            found.setdefault(field, []).append(value)
        return found

    def _numbers(self, values: Sequence[int | memoryview]) -> list[int]:
        packed = sum(len(value) for value in values if not isinstance(value, int))
        self._budget.charge(packed * _REFERENCE_COST)  # a packed number takes at least one byte
        return [number for value in values for number in integers(value)]


def _required(found: _T | None, what: str) -> _T:
    if found is None:
        raise BadInput(f"pprof refers to {what} that is missing")
    return found


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise BadInput(f"pprof with the number {value} where a message belongs")
    return value


def _integer(row: _Message, field: int) -> int:
    last = row.get(field, (0,))[-1]
    if not isinstance(last, int):
        raise BadInput(f"pprof with a message where the number of field {field} belongs")
    return last
