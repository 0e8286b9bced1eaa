"""The formats of profiles: each is a module with `write`, and with `read` if sfsample can read the format.

A module is imported when it is used.  The contents of a file, not its name, decide which module reads it.
An error names the file, the place in the file, and a next step.  A hostile file costs memory in proportion to
its size.

Invariant: any bytes give a report or raise BadInput (tests/report/test_report.py).
"""

import re
import sys
import zlib
from importlib import import_module
from typing import BinaryIO, NamedTuple

from sfsample.core.filesystem import open_regular
from sfsample.errors import BadInput, SfsampleError
from sfsample.report.budget import LEAST_SIZE, ReadingBudget
from sfsample.report.report import Report

_JSON = re.compile(rb"\s*\{\s*[\"}]")
_PICTURE = re.compile(rb"\s*<(!doctype html>|svg xmlns)", re.IGNORECASE)
_HINT = "give a profile in one of these formats: json (sfsample -o out.json), folded, pprof"
_MAX_INPUT_BYTES = 400 << 20  # a recording with full tables makes some 250 MB of JSON
_PIECE_BYTES = 1 << 20
_MAX_NUMBER = (1 << 63) - 1  # largest int64, the type of pprof's numbers


class Format(NamedTuple):
    """A format, and the needs of its writer."""

    module: str  # name of the module in this package
    timeline: bool = False  # True: the format can show when each sample was taken
    frame_bytes: int = 0  # memory for each frame of each stack, if the writer needs much
    spells_names: bool = False  # True: the writer writes a name for each frame of each stack

    def cost(self, report: Report) -> int:
        """Return roughly how many bytes of memory the frames of the stacks need during `write`."""
        letters = [self.frame_bytes + len(frame.text) * self.spells_names for frame in report.frames]
        return sum(sum(map(letters.__getitem__, stack.frames)) for stack in report.stacks)

    def write(self, report: Report, *, threads: bool = False) -> bytes:
        """Return the bytes of the file.  `threads`: the root of a stack is its thread (folded, html, svg)."""
        data: bytes = import_module(f"sfsample.report.formats.{self.module}").write(report, threads=threads)
        return data


FORMATS = {
    "folded": Format("folded", spells_names=True),
    "json": Format("profile_json", timeline=True),
    "speedscope": Format("speedscope", timeline=True),
    "firefox": Format("firefox", timeline=True, frame_bytes=110),
    "pprof": Format("pprof"),
    "html": Format("html"),
    "svg": Format("svg"),
}


def read_report(path: str) -> Report:
    """Return the report in a file; `-` is standard input.  Raises SfsampleError."""
    try:
        report = parse(_load(path))
    except BadInput as failure:
        raise SfsampleError(f"cannot read: {path}: {failure}", _HINT) from None
    if report == Report((), (), ()):
        raise SfsampleError(f"cannot read: {path}: no profile: the file is empty", _HINT)
    return report


def parse(data: bytes) -> Report:
    """Read a report from the bytes of a file.  Raises BadInput."""
    budget = ReadingBudget(len(data))
    if data[:2] == b"\x1f\x8b":
        data = _decompress(data)
    if _PICTURE.match(data):
        raise BadInput("a picture, from which no profile can be read")
    if _JSON.match(data):
        from sfsample.report.formats.profile_json import read
    elif all(byte >= 32 or byte in b"\t\r\n" for byte in data[:4096]):  # text
        from sfsample.report.formats.folded import read
    else:
        from sfsample.report.formats.pprof import read
    report = read(data, budget)
    check_numbers(report)
    return report


def check_numbers(report: Report) -> None:
    """Raise BadInput if a sum, a time or the rate is too large for some format."""
    numbers = [report.started_ns or 0, report.duration_ns or 0, *map(report.total, report.weights)]
    if report.timeline is not None:
        numbers += map(sum, (report.timeline.samples, report.timeline.wall_ns, report.timeline.cpu_ns))
    if max(numbers) > _MAX_NUMBER:
        raise BadInput(f"a sum or a time of {max(numbers)}: more than 2**63 - 1")
    if report.rate_hz is not None and not 1e-9 <= report.rate_hz <= 1e9:  # period: 1 to 2**63 ns
        raise BadInput(f"a rate of {report.rate_hz:g} per second: not in 1e-9 to 1e9")


def _load(path: str) -> bytes:
    if path == "-" and sys.stdin is None:  # the program that started sfsample has closed stdin
        raise SfsampleError("cannot read: standard input: it is closed", _HINT)
    try:
        if path == "-":
            return _read_all(sys.stdin.buffer)
        with open(open_regular(path, streams=True), "rb") as file:
            return _read_all(file)
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path or repr('')}: {failure.strerror}", _HINT) from None


def _read_all(file: BinaryIO) -> bytes:
    """Return the contents of a file.  Raises BadInput at the limit, because a pipe may have no end."""
    data = bytearray()
    while piece := file.read(_PIECE_BYTES):
        data += piece
        if len(data) > _MAX_INPUT_BYTES:
            raise BadInput(f"larger than {_MAX_INPUT_BYTES >> 20} MiB")
    return bytes(data)


def _decompress(data: bytes) -> bytes:
    limit = 2 * max(len(data), LEAST_SIZE)
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(data, limit)
    except zlib.error as failure:
        raise BadInput(f"damaged gzip: {failure}") from None
    if not stream.eof:
        too_large = f"gzip of more than {limit // 10**6} MB: unpack it with gunzip, if you trust it"
        raise BadInput(too_large if len(plain) == limit else "gzip ends too early")
    return plain
