"""Reads pprof (profile.proto), written by sfsample or by another program.

The field numbers are those of proto/profile.proto in github.com/google/pprof.  Each Line of a Location is a
frame; all but the last Line are inlined.  The first sample type counted in "count" gives the weight
"samples".  Every index is checked.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from sfsample.errors import BadInput, FormatError
from sfsample.formats.protobuf import fields, integers, signed
from sfsample.report.builder import ReportBuilder
from sfsample.report.readers.folded import frame_of
from sfsample.report.report import CPU, OUTERMOST, SAMPLES, WALL, Report, ReportFrame, ReportThread
from sfsample.symbolize.named_frame import address_text, clean_name

_WEIGHTS_BY_TYPE = {("cpu", "nanoseconds"): CPU, ("wall", "nanoseconds"): WALL}
_T = TypeVar("_T")
_Message = dict[int, list[int | memoryview]]  # field number -> its values


def read(data: bytes) -> Report:
    """Return the report.  Raises BadInput."""
    try:
        return _ProfileReader(_message(memoryview(data))).report()
    except FormatError as damage:
        raise BadInput(f"neither JSON nor text, and damaged as pprof: {damage}") from None


class _Location(NamedTuple):
    """The frames at a location, innermost first; `stop_reason` where it is a mark of truncation, else ""."""

    frames: tuple[ReportFrame, ...]
    stop_reason: str


class _ProfileReader:
    """Reads one Profile message."""

    def __init__(self, profile: _Message) -> None:
        self._profile = profile
        self._strings = [
            clean_name(bytes(_bytes(text)).decode("utf-8", "replace"))
            for text in profile.get(6, ())  # string_table
        ]
        if not self._strings:
            raise BadInput("pprof without a string table")
        self._strings[0] = ""
        self._mappings = self._table(3)  # mapping
        self._functions = self._table(5)  # function
        self._locations = {number: self._location(row) for number, row in self._table(4).items()}  # location

    def report(self) -> Report:
        columns = self._columns()
        builder = ReportBuilder(tuple(columns))
        for sample in self._messages(2):  # sample
            self._add(builder, sample, tuple(columns.values()))
        period = _integer(self._profile, 12)  # period
        return builder.finish()._replace(
            started_ns=_integer(self._profile, 9) or None,  # time_nanos
            duration_ns=_integer(self._profile, 10) or None,  # duration_nanos
            rate_hz=1e9 / period if period and self._period_is_time() else None,
        )

    def _columns(self) -> dict[str, int]:
        """Return the index of each weight in the values of a sample; samples first."""
        sample_types = self._messages(1)  # sample_type
        types = [(self._text(row, 1), self._text(row, 2)) for row in sample_types]  # type, unit
        counts = [at for at, (_, unit) in enumerate(types) if unit == "count"]
        if not counts:
            shown = ", ".join("/".join(pair) for pair in types) or "none"
            raise BadInput(f"pprof without a sample type in counts: it has {shown}")
        others = {_WEIGHTS_BY_TYPE[pair]: at for at, pair in enumerate(types) if pair in _WEIGHTS_BY_TYPE}
        return {SAMPLES: counts[0]} | others

    def _period_is_time(self) -> bool:
        return any(self._text(row, 2) == "nanoseconds" for row in self._messages(11))  # period_type: unit

    def _add(self, builder: ReportBuilder, sample: _Message, columns: tuple[int, ...]) -> None:
        values = [signed(number) for number in _numbers(sample.get(2, ()))]  # value
        if len(values) <= max(columns) or min(values) < 0:
            raise BadInput(f"pprof sample with the values {values[:8]}")
        locations = [
            _required(self._locations.get(number), "a location")
            for number in _numbers(sample.get(1, ()))  # location_id
        ]
        reason = next((loc.stop_reason for loc in locations if loc.stop_reason), OUTERMOST)
        frames = [frame for loc in locations if not loc.stop_reason for frame in loc.frames]
        builder.add(self._thread(sample), frames, reason, tuple(values[at] for at in columns))

    def _thread(self, sample: _Message) -> ReportThread:
        texts: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for label in map(_message, map(_bytes, sample.get(3, ()))):  # label: key, str, num
            key = self._text(label, 1)
            texts[key], numbers[key] = self._text(label, 2), _integer(label, 3)
        process = texts.get("process") or texts.get("thread") or "all"
        return ReportThread(process, texts.get("thread") or process, numbers.get("pid"), numbers.get("tid"))

    def _location(self, location: _Message) -> _Location:
        mapping = self._mappings.get(_integer(location, 2))  # mapping_id
        path = (self._text(mapping, 5) or None) if mapping else None  # filename
        build_id = (self._text(mapping, 6) or None) if mapping else None  # build_id
        address = _integer(location, 3)  # address
        lines = [_message(_bytes(line)) for line in location.get(4, ())]  # line
        if not lines:
            frame = ReportFrame(
                text=address_text(path, address), function=None, raw=None, module=path, build_id=build_id,
                offset=address,
            )  # fmt: skip
            return _Location((frame,), "")
        frames = tuple(
            self._frame(line, path, build_id, address, inlined=at < len(lines))
            for at, line in enumerate(lines, 1)
        )
        only = frames[0].text if len(frames) == 1 else ""
        is_mark = only.startswith("[truncated: ") and only.endswith("]")
        return _Location(frames, only[12:-1] if is_mark else "")

    def _frame(self, line: _Message, path: str | None, build_id: str | None, address: int,
               *, inlined: bool) -> ReportFrame:  # fmt: skip
        function = _required(self._functions.get(_integer(line, 1)), "a function")  # function_id
        name, raw = self._text(function, 2) or "?", self._text(function, 3) or None  # name, system_name
        frame = frame_of(f"{name}_[i]" if inlined else name)
        return frame._replace(
            raw=raw if frame.function else None,
            module=path or frame.module,
            build_id=build_id,
            offset=address,
            file=self._text(function, 4) or None,  # filename
            line=_integer(line, 2) or None,  # line
        )

    def _text(self, message: _Message, field: int) -> str:
        at = _integer(message, field)
        if at >= len(self._strings):
            raise BadInput(f"pprof string {at} of {len(self._strings)}")
        return self._strings[at]

    def _messages(self, field: int) -> Iterable[_Message]:
        return (_message(_bytes(value)) for value in self._profile.get(field, ()))

    def _table(self, field: int) -> dict[int, _Message]:
        """Return the messages of a field by their id, which is field 1 in each of them."""
        return {_integer(row, 1): row for row in self._messages(field)}


def _required(found: _T | None, what: str) -> _T:
    if found is None:
        raise BadInput(f"pprof refers to {what} that is not there")
    return found


def _message(data: memoryview) -> _Message:
    message: _Message = {}
    for field, value in fields(data):
        message.setdefault(field, []).append(value)
    return message


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise BadInput(f"pprof with the number {value} where a message belongs")
    return value


def _integer(message: _Message, field: int) -> int:
    last = message.get(field, (0,))[-1]
    if not isinstance(last, int):
        raise BadInput(f"pprof with a message where the number of field {field} belongs")
    return last


def _numbers(values: Iterable[int | memoryview]) -> list[int]:
    return [number for value in values for number in integers(value)]
