"""`-f pprof`: Google's profile.proto, gzipped, as `go tool pprof`, Pyroscope and Parca read it.

The field numbers are those of proto/profile.proto in github.com/google/pprof; a comment gives the name of
each.  A frame and the functions inlined into it are one Location with one Line each, innermost first.
Threads are labels.  The mangled name goes to `system_name`, so that pprof does not shorten the demangled one.
"""

import gzip
from collections.abc import Iterator

from sfsample.formats.protobuf import integer, message, packed
from sfsample.report.caption import losses
from sfsample.report.report import (
    CPU,
    SAMPLES,
    WALL,
    Report,
    ReportFrame,
    ReportStack,
    ReportThread,
    truncation_mark,
)

# weight -> type and unit
_VALUE_TYPES = {SAMPLES: ("samples", "count"), WALL: ("wall", "nanoseconds"), CPU: ("cpu", "nanoseconds")}


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - threads are labels
    """Return the file; equal reports make equal bytes."""
    return gzip.compress(encode(report), 6, mtime=0)


def encode(report: Report) -> bytes:
    """Return the Profile message."""
    return b"".join(_Encoder(report).profile())


class _Encoder:
    """Encodes one report; each table gives a row its id, and ids begin at 1."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._strings: dict[str, int] = {"": 0}
        self._mappings: dict[tuple[str, str | None], int] = {}
        self._functions: dict[tuple[str, str, str], int] = {}
        self._locations: dict[tuple[ReportFrame, ...], int] = {}

    def profile(self) -> Iterator[bytes]:
        """Yield the fields of Profile."""
        report = self._report
        for weight in report.weights:
            yield message(1, *self._value_type(*_VALUE_TYPES[weight]))  # sample_type
        for stack in report.stacks:
            yield message(2, *self._sample(stack))  # sample
        for frames, number in self._locations.items():  # before functions and mappings, because it fills both
            yield message(4, *self._location(frames, number))  # location
        for (path, build_id), number in self._mappings.items():
            yield message(3, *self._mapping(path, build_id, number))  # mapping
        for names, number in self._functions.items():
            name, raw, file = (self._string(text) for text in names)
            # function
            yield message(5, integer(1, number), integer(2, name), integer(3, raw), integer(4, file))
        yield integer(9, report.started_ns or 0)  # time_nanos
        yield integer(10, report.duration_ns or 0)  # duration_nanos
        if report.rate_hz:
            yield message(11, *self._value_type("cpu", "nanoseconds"))  # period_type
            yield integer(12, round(1e9 / report.rate_hz))  # period
        for text in losses(report):
            yield integer(13, self._string(text))  # comment
        yield integer(14, self._string(_VALUE_TYPES[SAMPLES][0]))  # default_sample_type
        for text in self._strings:  # last, because everything above fills it
            yield message(6, text.encode("utf-8", "replace"))  # string_table

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _value_type(self, kind: str, unit: str) -> tuple[bytes, ...]:
        return integer(1, self._string(kind)), integer(2, self._string(unit))  # type, unit

    def _sample(self, stack: ReportStack) -> Iterator[bytes]:
        locations = list(_locations([self._report.frames[at] for at in stack.frames]))
        mark = truncation_mark(stack)
        if mark:
            locations.append((ReportFrame(mark),))
        ids = [self._locations.setdefault(frames, len(self._locations) + 1) for frames in locations]
        yield packed(1, ids)  # location_id
        yield packed(2, stack.weights)  # value
        yield from self._labels(self._report.threads[stack.thread])

    def _labels(self, thread: ReportThread) -> Iterator[bytes]:
        for key, text in (("process", thread.process), ("thread", thread.name)):
            yield message(3, integer(1, self._string(key)), integer(2, self._string(text)))  # key, str
        for key, number in (("pid", thread.pid), ("tid", thread.tid)):
            if number is not None:
                yield message(3, integer(1, self._string(key)), integer(3, number))  # key, num

    def _location(self, frames: tuple[ReportFrame, ...], number: int) -> Iterator[bytes]:
        outer = frames[-1]
        yield integer(1, number)  # id
        if outer.module is not None:
            key = (outer.module, outer.build_id)
            yield integer(2, self._mappings.setdefault(key, len(self._mappings) + 1))  # mapping_id
        yield integer(3, outer.offset or 0)  # address
        for frame in frames:
            name = frame.text.removesuffix("_[i]") if frame.inlined else frame.text
            names = (name, frame.raw or name, frame.file or "")
            function = self._functions.setdefault(names, len(self._functions) + 1)
            yield message(4, integer(1, function), integer(2, frame.line or 0))  # line: function_id, line

    def _mapping(self, path: str, build_id: str | None, number: int) -> Iterator[bytes]:
        frames = [
            frame for frame in self._report.frames if (frame.module, frame.build_id) == (path, build_id)
        ]
        yield integer(1, number)  # id
        # memory_limit; memory_start is 0: addresses are vaddrs
        yield integer(3, max(frame.offset or 0 for frame in frames) + 1)
        yield integer(5, self._string(path))  # filename
        yield integer(6, self._string(build_id or ""))  # build_id
        yield integer(7, 1)  # has_functions: pprof need not symbolize
        yield integer(8, any(frame.file for frame in frames))  # has_filenames
        yield integer(9, any(frame.line for frame in frames))  # has_line_numbers
        yield integer(10, any(frame.inlined for frame in frames))  # has_inline_frames


def _locations(frames: list[ReportFrame]) -> Iterator[tuple[ReportFrame, ...]]:
    """Yield the frames of each location: the functions inlined there, then the function that has them."""
    start = 0
    for at, frame in enumerate(frames):
        if not frame.inlined or at + 1 == len(frames):
            yield tuple(frames[start : at + 1])
            start = at + 1
