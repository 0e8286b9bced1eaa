"""Parses times and sizes as users write them ("500ms", "7d", "64K"), and writes them in the same form."""

import re
from collections.abc import Sequence
from math import inf

from sfsample.core.foreign import natural

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONG_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SPELLED_UNITS = ("d", "h", "m", "s", "ms", "us")
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}  # bytes
NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(?:e([+-]?\d+))?", re.ASCII)  # unlike float(), no "nan", no "1_0"


class BadValue(ValueError):  # noqa: N818 - the name says what happened
    """A text is not a valid value; the message says which values are valid."""


def refusal(text: str, what: str) -> BadValue:
    """Return the error "not WHAT: TEXT"; `what`: "a time above 0 (10, 500ms)"."""
    return BadValue(f"not {what}: {text[:100] or repr('')}")


def within(value: float, low: float, high: float, text: str, what: str) -> None:
    """Raise BadValue for a value below `low` or above `high`."""
    if not low <= value <= high:
        raise refusal(text, what)


def seconds(text: str) -> float:
    """Parse a time; return seconds: "10", "500ms", "2m"."""
    number = NUMBER.match(text)
    scale = _UNITS_S.get(text[number.end() :] or "s") if number else None
    value = float(number[0]) * scale if number and scale else 0.0
    if not 0 < value < 1e9:
        raise refusal(text, "a time above 0 (10, 500ms, 2m, 7d)")
    return value


def any_size(text: str) -> int:
    """Parse a size in bytes: "65536", "64K", "10G"."""
    scale = _SIZES.get(text[-1:].upper(), 1)
    if not (number := natural(text if scale == 1 else text[:-1], 1 << 50)):
        raise refusal(text, "a size (65536, 64K, 10G)")
    return number * scale


def large_size(text: str) -> int:
    """Parse a size of at least 1M: with a smaller number, the user has probably forgotten the unit."""
    size = any_size(text)
    within(size, 1 << 20, inf, text, "a size of at least 1M (500M, 2G)")
    return size


def spelled_seconds(value: float) -> str:
    """Write a time in the largest unit that gives a whole number: 120 s is "2m", 90 s is "90s"."""
    for unit in _SPELLED_UNITS:
        number = round(value / _UNITS_S[unit])
        if number and number * _UNITS_S[unit] == value and f"{number}{unit}" != "1m":
            return f"{number}{unit}"
    return f"{value!r}s"


def brief_time(ns: int) -> str:
    """Write a time below a few seconds: "61 µs", "12 ms"."""
    return f"{ns / 1000:.0f} µs" if ns < 10_000_000 else f"{ns / 1e6:.0f} ms"


def long_time(time_s: float) -> str:
    """Return a time in its two largest units: "1 h 5 min", "10 s"."""
    left_s, parts = round(time_s), []
    for size_s, unit in _LONG_UNITS:
        if left_s >= size_s:
            parts.append(f"{left_s // size_s} {unit}")
        left_s %= size_s
    return " ".join(parts[:2]) or "0 s"


def spelled_size(value: int) -> str:
    """Write a size in the largest unit that gives a whole number."""
    for unit, size in reversed(_SIZES.items()):
        if value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}"


def counted(number: int, noun: str = "sample") -> str:
    """Return a number with its noun: "1 sample", "2,000 processes"."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def listed(values: Sequence[object], most: int) -> str:
    """Return the first values as a text: "a, b and 2 more"."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more
