"""Defines the names and suffixes of the formats; fast to import, as `sfsample --help` needs it."""

import os
from collections.abc import Collection

from sfsample.errors import UsageError

FORMATS = ("folded", "json", "speedscope", "firefox", "pprof", "html", "svg")  # see report/formats
OPENED = ("html", "svg")  # formats that a browser shows
_SUFFIXES = {  # sfsample gives a file the first suffix of its format
    ".folded": "folded", ".collapsed": "folded", ".txt": "folded",
    ".speedscope.json": "speedscope", ".speedscope": "speedscope", ".firefox.json": "firefox",
    ".json": "json", ".pb.gz": "pprof", ".pb": "pprof", ".pprof": "pprof",
    ".html": "html", ".htm": "html", ".svg": "svg",
}  # fmt: skip
READABLE = tuple(suffix for suffix, name in _SUFFIXES.items() if name in ("folded", "json", "pprof"))
_TEXT_SUFFIXES = {".txt": "text", ".json": "json", ".html": "html", ".htm": "html"}


def format_of(path: str, formats: Collection[str] = FORMATS) -> str:
    """Return the format for the suffix of a file name; without a suffix, the first of `formats`."""
    name, kinds = os.path.basename(path).lower(), _SUFFIXES if "folded" in formats else _TEXT_SUFFIXES
    suffixes = {suffix: kind for suffix, kind in kinds.items() if kind in formats}
    longest = max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="")
    if not longest and os.path.splitext(name)[1]:
        raise UsageError(f"no such format: {path}", f"known suffixes: {', '.join(suffixes)}; or use -f")
    return suffixes[longest] if longest else next(iter(formats))


def is_profile(name: str) -> bool:
    """Return True if sfsample reads files with this suffix; a suffix .gz is ignored."""
    name = name.lower().removesuffix(".gz")
    return max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default="") in READABLE


def suffix_of(format_name: str) -> str:
    """Return the suffix for files of a format."""
    return next(suffix for suffix, name in _SUFFIXES.items() if name == format_name)
