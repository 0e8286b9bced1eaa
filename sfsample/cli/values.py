"""Parses the values of flags: text from the command line to a checked value.

A value that makes no sense is refused here, with an example of what is accepted, so that no command sees one.
"""

import argparse
import os
import re
from collections.abc import Callable, Collection
from math import inf
from typing import TYPE_CHECKING, TypeVar

from sfsample.core.foreign import natural, total
from sfsample.errors import UsageError

if TYPE_CHECKING:
    from sfsample.cli.push.backend import Backend

_Number = TypeVar("_Number", int, float)
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}  # bytes
_MIN_RATE_HZ, _MAX_RATE_HZ = 1e-9, 10_000  # of the longest time that `seconds` accepts
_LEAST = 5e-324  # of a percentage: above 0
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
        raise refusal(text, "a time above 0 (10, 500ms, 2m, 7d)")
    return value


def age(text: str) -> float:
    """Parse an age with a unit: "7d".  A mere number would be seconds, and delete nearly all."""
    if text[-1:].isdecimal():
        raise refusal(text, "an age with its unit (12h, 7d, 4w)")
    return seconds(text)


def positive(text: str, *, what: str = "a number from 1 to 2147483647") -> int:
    """Parse a positive integer below 2**31."""
    if not (value := natural(text, 1 << 31)):
        raise refusal(text, what)
    return value


def any_size(text: str) -> int:
    """Parse a size in bytes: "65536", "64K", "10G"."""
    scale = _SIZES.get(text[-1:].upper(), 1)
    if not (number := natural(text if scale == 1 else text[:-1], 1 << 50)):
        raise refusal(text, "a size (65536, 64K, 10G)")
    return number * scale


def _within(parse: Callable[[str], _Number], low: float, high: float, what: str) -> Callable[[str], _Number]:
    """Return a parser that refuses what is not from `low` to `high`."""

    def parse_within(text: str) -> _Number:
        value = parse(text)
        if not low <= value <= high:
            raise refusal(text, what)
        return value

    return parse_within


def _number(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else 0.0


def _percent(text: str) -> float:
    return _number(text.removesuffix("%")) / 100


# of memory, or of what is kept: a smaller one would be a unit that was forgotten
large_size = _within(any_size, 1 << 20, inf, "a size of at least 1M (500M, 2G)")
size = _within(any_size, 1 << 10, 1 << 30, "a size between 1K and 1G")  # of a stack
dump_samples = _within(positive, 1, 1000, "a number of samples up to 1000")
rate = _within(_number, _MIN_RATE_HZ, _MAX_RATE_HZ, f"a rate above 0, up to {_MAX_RATE_HZ} per second")
percent = _within(_percent, _LEAST, 1, "a percentage above 0, up to 100 (1, 0.5)")  # as a fraction of 1
growth = _within(_percent, _LEAST, 10_000, "a percentage above 0, up to 1000000 (1, 0.5)")


def interval(text: str) -> float:
    """Parse the time between two samples; return samples per second."""
    time = seconds(text)
    if time * _MAX_RATE_HZ < 1 - 1e-9:
        raise refusal(text, f"a time of at least {1e6 / _MAX_RATE_HZ:g}us")
    return 1 / time


def pids(text: str) -> list[int]:
    """Parse process ids, separated by commas."""
    return [positive(part, what="a process id (from 1 on)") for part in text.split(",")]


def _matching(pattern: str, what: str, spell: Callable[[str], str] = str) -> Callable[[str], str]:
    """Return a parser of texts that match a pattern as a whole; `spell` makes their spelling one."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise refusal(text, what)
        return spell(text)

    return parse


name = _matching(r"(?s).*\S.*", "a name")
unit = _matching(r"[^/]*[^/\s][^/]*", "a systemd unit (nginx, nginx.service)")
cgroup = _matching(r"(?s)/.*", "a path of a control group (/system.slice/nginx.service)")
container = _matching("(?ai)[0-9a-f]{3,64}", "the id of a container, or its first digits (4f1d8b7c2a90)",
                      str.lower)  # fmt: skip
pod = _matching("(?ai)[0-9a-f]{4,32}|[0-9a-f]{8}[-_][0-9a-f_-]{0,27}",
                "the uid of a pod (kubectl get pod NAME -o jsonpath={.metadata.uid})",
                lambda uid: uid.lower().replace("_", "-"))  # fmt: skip


def name_as_kept(text: str) -> str:
    """Return a name as it is printed and kept: a byte that is not UTF-8 is U+FFFD there."""
    return os.fsencode(text).decode(errors="replace")


def label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE."""
    from sfsample.recording.options import check_label

    key, equals, value = text.partition("=")
    if not equals:
        raise refusal(text, "KEY=VALUE (service.name=shop)")
    try:
        check_label(key, value)
    except ValueError as failure:
        raise argparse.ArgumentTypeError(str(failure)) from None
    return key, value


def condition(text: str) -> object:
    """Parse a condition of --trigger."""
    from sfsample.cli.triggers import condition as parse  # most commands watch for none

    return parse(text)


def listen(text: str) -> str | tuple[str, int]:
    """Parse where to listen: the path of "unix:PATH", or address and port."""
    kind, _, path = text.partition(":")
    if kind == "unix" and path:
        return path
    where = re.fullmatch(r"(?:\[(.+)\]|([^:]+)):(\d{1,5})", text, re.ASCII)
    host = "127.0.0.1" if where and where[2] == "localhost" else where and (where[1] or where[2])
    if where and host and int(where[3]) < 1 << 16 and total(is_loopback)(host) is not None:
        return host, int(where[3])
    raise refusal(text, "an address and a port, or a path (127.0.0.1:6060, [::1]:6060, unix:/run/x.sock)")


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
        raise refusal(text, f"a list out of {','.join(STEPPERS)}")
    return chosen


def refusal(text: str, what: str) -> argparse.ArgumentTypeError:
    """Return the error for a value that is not what it should be."""
    return argparse.ArgumentTypeError(f"not {what}: {text[:100] or repr('')}")
