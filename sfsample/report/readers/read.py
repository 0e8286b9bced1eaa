"""Any file that holds a profile -> a report.

Law: the contents decide which reader it is, never the name.  Every failure names the file, the place in it
and what to do; hostile contents cost memory in proportion to the file and never a traceback.
"""

import re
import zlib

from sfsample.errors import BadInput, SfsampleError
from sfsample.report.report import Report

_JSON = re.compile(rb"\s*\{\s*[\"}]")
_PICTURE = re.compile(rb"\s*<(!doctype html>|svg xmlns)", re.IGNORECASE)
_GIVE = "give a profile in one of these formats: json (sfsample -o out.json), folded, pprof"
_LARGEST = 2 << 30  # bytes after decompression


def read_report(path: str) -> Report:
    """Return the report in a file; `-` is stdin.  Raises SfsampleError."""
    try:
        return parse(_load(path))
    except BadInput as failure:
        raise SfsampleError(f"cannot read: {path}: {failure}", _GIVE) from None


def parse(data: bytes) -> Report:
    """Return the report in the bytes of a file."""
    if data[:2] == b"\x1f\x8b":
        data = _decompress(data)
    if _PICTURE.match(data):
        raise BadInput("a picture: it can be made from a profile, but no profile from it")
    if _JSON.match(data):
        from sfsample.report.readers.profile_json import read
    elif _is_text(data[:4096]):
        from sfsample.report.readers.folded import read
    else:
        from sfsample.report.readers.pprof import read
    return read(data)


def _load(path: str) -> bytes:
    import sys

    if path == "-" and sys.stdin is None:  # closed by who started us
        raise SfsampleError("cannot read: standard input: it is closed", _GIVE)
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path or repr('')}: {failure.strerror}", _GIVE) from None


def _decompress(data: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(data, _LARGEST)
    except zlib.error as failure:
        raise BadInput(f"damaged gzip: {failure}") from None
    if not stream.eof:
        raise BadInput("gzip ends too early" if not stream.unconsumed_tail else "larger than 2 GiB")
    return plain


def _is_text(head: bytes) -> bool:
    return not any(byte < 32 and byte not in b"\t\r\n" for byte in head)
