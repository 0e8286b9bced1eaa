"""Parses the values of flags: text from the command line to a checked value.

A value that makes no sense is refused here, with an example of what is accepted, so that no command sees one.
"""

import argparse
import os
import re
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from sfsample.errors import UsageError

if TYPE_CHECKING:
    from sfsample.cli.push.backend import Backend

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}  # bytes
_MIN_RATE_HZ, _MAX_RATE_HZ = 1e-9, 10_000  # of the longest time that `seconds` accepts
_MAX_DUMP_SAMPLES = 1000
FORMATS = ("folded", "json", "speedscope", "firefox", "pprof", "html", "svg")  # see report/formats
HISTORY_ACTIONS = ("list", "show", "export", "diff", "prune", "check", "push")
OPENED = ("html", "svg")  # formats that a browser shows
_SUFFIXES = {  # the first suffix of a format is the one that sfsample gives to a file
    ".folded": "folded", ".collapsed": "folded", ".txt": "folded",
    ".speedscope.json": "speedscope", ".speedscope": "speedscope", ".firefox.json": "firefox",
    ".json": "json", ".pb.gz": "pprof", ".pb": "pprof", ".pprof": "pprof",
    ".html": "html", ".htm": "html", ".svg": "svg",
}  # fmt: skip
READABLE = tuple(suffix for suffix, name in _SUFFIXES.items() if name in ("folded", "json", "pprof"))
_TEXT_SUFFIXES = {".txt": "text", ".json": "json", ".html": "html", ".htm": "html"}
STEPPERS = ("sframe", "eh_frame", "frame_pointer", "scan")
USUAL_STEPPERS = STEPPERS[:-1]  # a scan guesses, so the user must ask for it
_ID = re.compile(r"[0-9a-f]{3,64}", re.ASCII | re.IGNORECASE)
_UID = re.compile(r"[0-9a-f]{4,32}|[0-9a-f]{8}[-_][0-9a-f_-]{0,27}", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)  # what scripts print; no nan, no 1_0


def format_of(path: str, formats: Collection[str] = FORMATS) -> str:
    """Return the format that the suffix of a file name means; without a suffix, the first of `formats`."""
    name, kinds = os.path.basename(path).lower(), _SUFFIXES if "folded" in formats else _TEXT_SUFFIXES
    suffixes = {suffix: kind for suffix, kind in kinds.items() if kind in formats}
    longest = max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="")
    if not longest and os.path.splitext(name)[1]:
        raise UsageError(f"no such format: {path}", f"a suffix says which: {', '.join(suffixes)}; or -f does")
    return suffixes[longest] if longest else next(iter(formats))


def is_profile(name: str) -> bool:
    """Return whether the suffix of a file name, without .gz, means a format that sfsample reads."""
    name = name.lower().removesuffix(".gz")
    return max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default="") in READABLE


def suffix_of(format_name: str) -> str:
    """Return the suffix for files of a format."""
    return next(suffix for suffix, name in _SUFFIXES.items() if name == format_name)


def seconds(text: str) -> float:
    """Parse a time: "10", "500ms", "2m"."""
    number = _NUMBER.match(text)
    scale = _UNITS_S.get(text[number.end() :] or "s") if number else None
    value = float(number[0]) * scale if number and scale else 0.0
    if not 0 < value < 1e9:
        raise _refusal(text, "a time above 0 (10, 500ms, 2m, 7d)")
    return value


def age(text: str) -> float:
    """Parse an age with a unit: "7d".  A mere number would be seconds, and delete nearly all."""
    if text[-1:].isdecimal():
        raise _refusal(text, "an age with its unit (12h, 7d, 4w)")
    return seconds(text)


def positive(text: str, *, what: str = "a number from 1 to 2147483647") -> int:
    """Parse a positive integer below 2**31."""
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if not 0 < value < 1 << 31:
        raise _refusal(text, what)
    return value


def any_size(text: str) -> int:
    """Parse a size in bytes: "65536", "64K", "10G"."""
    scale = _SIZES.get(text[-1:].upper(), 1)
    number = text if scale == 1 else text[:-1]
    if not (number.isascii() and number.isdecimal() and len(number) < 16 and int(number)):
        raise _refusal(text, "a size (65536, 64K, 10G)")
    return int(number) * scale


def large_size(text: str) -> int:
    """Parse a size of memory or of what is kept.  A small one would be a unit that was forgotten."""
    number = any_size(text)
    if number < 1 << 20:
        raise _refusal(text, "a size of at least 1M (500M, 2G)")
    return number


def size(text: str) -> int:
    """Parse the size of a stack."""
    number = any_size(text)
    if not 1 << 10 <= number <= 1 << 30:
        raise _refusal(text, "a size between 1K and 1G")
    return number


def dump_samples(text: str) -> int:
    """Parse the number of samples of a dump."""
    number = positive(text)
    if number > _MAX_DUMP_SAMPLES:
        raise _refusal(text, f"a number of samples up to {_MAX_DUMP_SAMPLES}")
    return number


def rate(text: str) -> float:
    """Parse a rate in samples per second."""
    number = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not _MIN_RATE_HZ <= number <= _MAX_RATE_HZ:
        raise _refusal(text, f"a rate above 0, up to {_MAX_RATE_HZ} per second")
    return number


def interval(text: str) -> float:
    """Parse the time between two samples; return samples per second."""
    time = seconds(text)
    if time * _MAX_RATE_HZ < 1 - 1e-9:
        raise _refusal(text, f"a time of at least {1e6 / _MAX_RATE_HZ:g}us")
    return 1 / time


def percent(text: str, most: int = 100) -> float:
    """Parse a percentage, with or without "%"; return it as a fraction of 1."""
    number = text.removesuffix("%")
    value = float(number) if _NUMBER.fullmatch(number) else 0.0
    if not 0 < value <= most:
        raise _refusal(text, f"a percentage above 0, up to {most} (1, 0.5)")
    return value / 100


def growth(text: str) -> float:
    """Parse by how many percent something grows; return it as a fraction of 1."""
    return percent(text, 1_000_000)


def pids(text: str) -> list[int]:
    """Parse process ids, separated by commas."""
    return [positive(part, what="a process id (from 1 on)") for part in text.split(",")]


def name(text: str) -> str:
    """Parse the name of a process."""
    if not text.strip():
        raise _refusal(text, "a name")
    return text


def label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE."""
    from sfsample.recording.options import check_label

    key, equals, value = text.partition("=")
    if not equals:
        raise _refusal(text, "KEY=VALUE (service.name=shop)")
    try:
        check_label(key, value)
    except ValueError as failure:
        raise argparse.ArgumentTypeError(str(failure)) from None
    return key, value


def condition(text: str) -> object:
    """Parse a condition of --trigger."""
    from sfsample.cli.triggers import condition as parse  # most commands watch for none

    return parse(text)


def unit(text: str) -> str:
    """Parse the name of a systemd unit."""
    if not text.strip() or "/" in text:
        raise _refusal(text, "a systemd unit (nginx, nginx.service)")
    return text


def cgroup(text: str) -> str:
    """Parse the path of a control group."""
    if not text.startswith("/"):
        raise _refusal(text, "a path of a control group (/system.slice/nginx.service)")
    return text


def container(text: str) -> str:
    """Parse the id of a container, or the first digits of it."""
    if not _ID.fullmatch(text):
        raise _refusal(text, "the id of a container, or its first digits (4f1d8b7c2a90)")
    return text.lower()


def pod(text: str) -> str:
    """Parse the uid of a pod, with hyphens or, as in control groups, "_"; return it with hyphens."""
    if not _UID.fullmatch(text):
        raise _refusal(text, "the uid of a pod (kubectl get pod NAME -o jsonpath={.metadata.uid})")
    return text.lower().replace("_", "-")


def listen(text: str) -> str | tuple[str, int]:
    """Parse where to listen: the path of "unix:PATH", or address and port."""
    kind, _, path = text.partition(":")
    if kind == "unix" and path:
        return path
    where = re.fullmatch(r"(?:\[(.+)\]|([^:]+)):(\d{1,5})", text, re.ASCII)
    host = "127.0.0.1" if where and where[2] == "localhost" else where and (where[1] or where[2])
    if where and host and int(where[3]) < 1 << 16:
        with suppress(ValueError):
            is_loopback(host)
            return host, int(where[3])
    raise _refusal(text, "an address and a port, or a path (127.0.0.1:6060, [::1]:6060, unix:/run/x.sock)")


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches an address.  Raises ValueError where it is no address."""
    from ipaddress import ip_address  # most commands listen nowhere

    return ip_address(address).is_loopback


def push(text: str) -> "Backend":
    """Parse where to push: KIND=URL."""
    from sfsample.cli.push.backend import parse_backend

    return parse_backend(text)


def steppers(text: str) -> tuple[str, ...]:
    """Parse a list of steppers, separated by commas."""
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(STEPPERS) or len(set(chosen)) != len(chosen):
        raise _refusal(text, f"a list out of {','.join(STEPPERS)}")
    return chosen


def _refusal(text: str, what: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"not {what}: {text[:100] or repr('')}")
