"""The formats of profiles: each is a module with `write`, and with `read` if it can be read back.

A module is imported when it is used.  A recording is written in one of `FORMATS`; a file is read by its
contents, never by its name.  Every failure names the file, the place in it and what the user can do.  A
hostile file costs memory in proportion to its size.

Invariant: any bytes are a report or raise BadInput (tests/report/test_report.py).
"""

import re
import sys
import zlib
from importlib import import_module
from typing import NamedTuple

from sfsample.errors import BadInput, SfsampleError
from sfsample.report.report import Report

_JSON = re.compile(rb"\s*\{\s*[\"}]")
_PICTURE = re.compile(rb"\s*<(!doctype html>|svg xmlns)", re.IGNORECASE)
_HINT = "give a profile in one of these formats: json (sfsample -o out.json), folded, pprof"
_MAX_UNPACKED = 2 << 30  # bytes after decompression


class Format(NamedTuple):
    """The module of the writer, and whether the format can show when each sample was taken."""

    module: str
    timeline: bool = False

    def write(self, report: Report, *, threads: bool = False) -> bytes:
        """Return the bytes of the file.  `threads`: a stack has its thread as root, in formats with roots."""
        data: bytes = import_module(f"sfsample.report.formats.{self.module}").write(report, threads=threads)
        return data


FORMATS = {
    "folded": Format("folded"),
    "json": Format("profile_json", timeline=True),
    "speedscope": Format("speedscope", timeline=True),
    "firefox": Format("firefox", timeline=True),
    "pprof": Format("pprof"),
    "html": Format("html"),
    "svg": Format("svg"),
}


def read_report(path: str) -> Report:
    """Return the report in a file; `-` is standard input.  Raises SfsampleError."""
    try:
        return parse(_load(path))
    except BadInput as failure:
        raise SfsampleError(f"cannot read: {path}: {failure}", _HINT) from None


def parse(data: bytes) -> Report:
    """Return the report in the bytes of a file.  Raises BadInput."""
    if data[:2] == b"\x1f\x8b":
        data = _decompress(data)
    if _PICTURE.match(data):
        raise BadInput("a picture: it can be made from a profile, but no profile from it")
    if _JSON.match(data):
        from sfsample.report.formats.profile_json import read
    elif _is_text(data[:4096]):
        from sfsample.report.formats.folded import read
    else:
        from sfsample.report.formats.pprof import read
    return read(data)


def _load(path: str) -> bytes:
    if path == "-" and sys.stdin is None:  # the program that started sfsample had closed it
        raise SfsampleError("cannot read: standard input: it is closed", _HINT)
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path or repr('')}: {failure.strerror}", _HINT) from None


def _decompress(data: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(data, _MAX_UNPACKED)
    except zlib.error as failure:
        raise BadInput(f"damaged gzip: {failure}") from None
    if not stream.eof:
        raise BadInput("gzip ends too early" if not stream.unconsumed_tail else "larger than 2 GiB")
    return plain


def _is_text(head: bytes) -> bool:
    return not any(byte < 32 and byte not in b"\t\r\n" for byte in head)
