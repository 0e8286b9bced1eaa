"""Reads pprof (profile.proto), ours and other programs'.

Law: the field numbers of proto/profile.proto in github.com/google/pprof.  Indexes are checked; a Line is a
frame, all but the last of a Location are inlined.  The first sample type that we know gives "samples".
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from sfsample.errors import BadInput, FormatError
from sfsample.formats.protobuf import fields, integers, signed
from sfsample.report.builder import ReportBuilder
from sfsample.report.readers.folded import frame_of
from sfsample.report.report import CPU, OUTERMOST, SAMPLES, WALL, Report, ReportFrame, Thread
from sfsample.symbolize.frame_text import clean_name, frame_name

_TYPES = {("cpu", "nanoseconds"): CPU, ("wall", "nanoseconds"): WALL}
_T = TypeVar("_T")
_Message = dict[int, list[int | memoryview]]


def read(data: bytes) -> Report:
    """Return the report.  Raises BadInput."""
    try:
        return _Reader(_message(memoryview(data))).report()
    except FormatError as damage:
        raise BadInput(f"neither JSON nor text, and damaged as pprof: {damage}") from None


class _Place(NamedTuple):
    frames: tuple[ReportFrame, ...]
    mark: str  # the stop reason, of the frame that says so


class _Reader:
    def __init__(self, profile: _Message) -> None:
        self._profile = profile
        self._strings = [
            clean_name(bytes(_bytes(text)).decode("utf-8", "replace")) for text in profile.get(6, ())
        ]
        if not self._strings:
            raise BadInput("pprof without a string table")
        self._strings[0] = ""
        self._mappings = self._table(3)
        self._functions = self._table(5)
        self._places = {number: self._place(one) for number, one in self._table(4).items()}

    def report(self) -> Report:
        columns = self._columns()
        builder = ReportBuilder(tuple(columns))
        for sample in self._messages(2):
            self._add(builder, sample, tuple(columns.values()))
        period = _integer(self._profile, 12)
        return builder.finish(
            started_ns=_integer(self._profile, 9) or None,
            duration_ns=_integer(self._profile, 10) or None,
            rate_hz=1e9 / period if period and self._period_is_time() else None,
        )

    def _columns(self) -> dict[str, int]:
        """Return where in a sample's values each weight is; samples first."""
        types = [(self._text(one, 1), self._text(one, 2)) for one in self._messages(1)]
        counts = [at for at, (_, unit) in enumerate(types) if unit == "count"]
        if not counts:
            shown = ", ".join("/".join(one) for one in types) or "none"
            raise BadInput(f"pprof without a sample type in counts: it has {shown}")
        others = {_TYPES[one]: at for at, one in enumerate(types) if one in _TYPES}
        return {SAMPLES: counts[0]} | others

    def _period_is_time(self) -> bool:
        return any(self._text(one, 2) == "nanoseconds" for one in self._messages(11))

    def _add(self, builder: ReportBuilder, sample: _Message, columns: tuple[int, ...]) -> None:
        values = [signed(number) for number in _numbers(sample.get(2, ()))]
        if len(values) <= max(columns) or min(values) < 0:
            raise BadInput(f"pprof sample with the values {values[:8]}")
        places = [_need(self._places.get(number), "a location") for number in _numbers(sample.get(1, ()))]
        reason = next((place.mark for place in places if place.mark), OUTERMOST)
        frames = [frame for place in places if not place.mark for frame in place.frames]
        builder.add(self._thread(sample), frames, reason, tuple(values[at] for at in columns))

    def _thread(self, sample: _Message) -> Thread:
        texts: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for label in map(_message, map(_bytes, sample.get(3, ()))):
            key = self._text(label, 1)
            texts[key], numbers[key] = self._text(label, 2), _integer(label, 3)
        process = texts.get("process") or texts.get("thread") or "all"
        return Thread(process, texts.get("thread") or process, numbers.get("pid"), numbers.get("tid"))

    def _place(self, location: _Message) -> _Place:
        mapping = self._mappings.get(_integer(location, 2))
        path = (self._text(mapping, 5) or None) if mapping else None
        build_id = (self._text(mapping, 6) or None) if mapping else None
        address = _integer(location, 3)
        lines = [_message(_bytes(line)) for line in location.get(4, ())]
        if not lines:
            return _Place(
                (ReportFrame(frame_name(None, path, address), None, None, path, build_id, address),), ""
            )
        frames = []
        for at, line in enumerate(lines):
            frames.append(self._frame(line, path, build_id, address, inlined=at + 1 < len(lines)))
        only = frames[0].text if len(frames) == 1 else ""
        marked = only.startswith("[truncated: ") and only.endswith("]")
        return _Place(tuple(frames), only[12:-1] if marked else "")

    def _frame(self, line: _Message, path: str | None, build_id: str | None, address: int,
               *, inlined: bool) -> ReportFrame:  # fmt: skip
        function = _need(self._functions.get(_integer(line, 1)), "a function")
        name, raw = self._text(function, 2) or "?", self._text(function, 3) or None
        said = frame_of(f"{name}_[i]" if inlined else name)
        return said._replace(
            raw=raw if said.function else None,
            module=path or said.module,
            build_id=build_id,
            offset=address,
            file=self._text(function, 4) or None,
            line=_integer(line, 2) or None,
        )

    def _text(self, message: _Message, field: int) -> str:
        at = _integer(message, field)
        if at >= len(self._strings):
            raise BadInput(f"pprof string {at} of {len(self._strings)}")
        return self._strings[at]

    def _messages(self, field: int) -> Iterable[_Message]:
        return (_message(_bytes(one)) for one in self._profile.get(field, ()))

    def _table(self, field: int) -> dict[int, _Message]:
        return {_integer(one, 1): one for one in self._messages(field)}


def _need(found: _T | None, what: str) -> _T:
    if found is None:
        raise BadInput(f"pprof refers to {what} that is not there")
    return found


def _message(data: memoryview) -> _Message:
    found: _Message = {}
    for field, value in fields(data):
        found.setdefault(field, []).append(value)
    return found


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
