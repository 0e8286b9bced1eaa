"""Parses the values of flags: turns a text from the command line into a checked value.

A refusal contains an example of a right value.

Times become seconds since the epoch.  A time without an offset is local time.  If local clocks show a time
twice (the end of summer time), the first moment counts.  `now` is inf: the end of a range, never its begin.
"""

import os
import re
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, TypeVar

from sfsample.core.foreign import natural, total
from sfsample.core.quantities import NUMBER, BadValue, any_size, refusal, seconds, within
from sfsample.core.walk_limits import DEFAULT_ORDER

if TYPE_CHECKING:
    from sfsample.watching.push.backend import Backend
    from sfsample.watching.triggers import Condition

_Number = TypeVar("_Number", int, float)
_MIN_RATE_HZ, _MAX_RATE_HZ = 1e-9, 10_000  # `seconds` accepts at most 1e9 s, so 1e-9 Hz is the lowest rate
_LEAST = 5e-324  # smallest number above 0
_CLOCK = re.compile(r"(?:(today|yesterday) ?)?(?:([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?)?", re.ASCII)
_WHEN = "a time (now, -2h, 14:00, 'yesterday 14:00', 2026-11-24T14:00+01:00)"
_BUILD_ID = re.compile("[0-9a-f]{6,64}", re.ASCII)


def age(text: str) -> float:
    """Parse an age with a unit ("7d").  Without a unit, seconds would delete nearly all slices."""
    if text[-1:].isdecimal():
        raise refusal(text, "an age with its unit (12h, 7d, 4w)")
    return seconds(text)


def positive(text: str, *, what: str = "a number from 1 to 2147483647") -> int:
    """Parse a positive integer below 2**31."""
    if not (value := natural(text, 1 << 31)):
        raise refusal(text, what)
    return value


def _within(parse: Callable[[str], _Number], low: float, high: float, what: str) -> Callable[[str], _Number]:
    """Return a parser that refuses a value below `low` or above `high`."""

    def parse_within(text: str) -> _Number:
        value = parse(text)
        within(value, low, high, text, what)
        return value

    return parse_within


def _number(text: str) -> float:
    return float(text) if NUMBER.fullmatch(text) else 0.0


def _percent(text: str) -> float:
    return _number(text.removesuffix("%")) / 100


size = _within(any_size, 1 << 10, 1 << 30, "a size between 1K and 1G")  # bytes of a stack
dump_samples = _within(positive, 1, 1000, "a number of samples up to 1000")
rate = _within(_number, _MIN_RATE_HZ, _MAX_RATE_HZ, f"a rate above 0, up to {_MAX_RATE_HZ} per second")
percent = _within(_percent, _LEAST, 1, "a percentage above 0, up to 100 (1, 0.5)")  # fraction of 1
growth = _within(_percent, _LEAST, 10_000, "a percentage above 0, up to 1000000 (1, 0.5)")


def interval(text: str) -> float:
    """Parse the time between two samples; return samples per second."""
    time_s = seconds(text)
    if time_s * _MAX_RATE_HZ < 1 - 1e-9:
        raise refusal(text, f"a time of at least {1e6 / _MAX_RATE_HZ:g}us")
    return min(1 / time_s, float(_MAX_RATE_HZ))


def pids(text: str) -> list[int]:
    """Parse process ids, separated by commas."""
    return [positive(part, what="a process id (from 1 on)") for part in text.split(",")]


def name(text: str) -> str:
    """Parse the name of a process, a unit, a container, ...  The name may be unknown."""
    if not text.strip():
        raise refusal(text, "a name")
    return text


def name_as_kept(text: str) -> str:
    """Return a name as sfsample prints and keeps it: with U+FFFD for a byte that is not UTF-8."""
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
        raise BadValue(str(failure)) from None
    return key, value


def condition(text: str) -> "Condition":
    """Parse a condition of --trigger."""
    from sfsample.watching.triggers import condition as parse  # imported only for --trigger

    return parse(text)


def listen(text: str) -> str | tuple[str, int]:
    """Parse an address to listen on; return the path of "unix:PATH", or an IP address and a port."""
    from sfsample.watching.options import is_loopback  # imported only for --listen

    kind, _, path = text.partition(":")
    if kind == "unix" and path:
        return path
    where = re.fullmatch(r"(?:\[(.+)\]|([^:]+)):(\d{1,5})", text, re.ASCII)
    host = "127.0.0.1" if where and where[2] == "localhost" else where and (where[1] or where[2])
    if where and host and int(where[3]) < 1 << 16 and total(is_loopback)(host) is not None:
        return host, int(where[3])
    raise refusal(text, "an address and a port, or a path (127.0.0.1:6060, [::1]:6060, unix:/run/x.sock)")


def push(text: str) -> "Backend":
    """Parse a backend of --push: KIND=URL."""
    from sfsample.watching.push.backend import parse_backend

    return parse_backend(text)


def steppers(text: str) -> tuple[str, ...]:
    """Parse a list of steppers, separated by commas."""
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(DEFAULT_ORDER) or len(set(chosen)) != len(chosen):
        raise refusal(text, f"a list out of {','.join(DEFAULT_ORDER)}")
    return chosen


def when(text: str) -> float:
    """Parse a time: `now`, `-2h`, `14:00`, `yesterday 14:00`, ISO 8601."""
    if text == "now":
        return inf
    if text.startswith("-"):
        return time.time() - seconds(text[1:])
    if (moment := _moment(text)) is None:
        raise refusal(text, _WHEN)
    return moment


@total
def _moment(text: str) -> float:
    from datetime import date, timedelta  # most commands name no time

    from sfsample.core.local_time import read_local

    if text and (clock := _CLOCK.fullmatch(text)):
        day = date.today() - timedelta(clock[1] == "yesterday")  # noqa: DTZ011 - local time
        hour, minute, second = (int(part or 0) for part in clock.groups()[1:])
        text = f"{day}T{hour:02}:{minute:02}:{second:02}"
    return max(0.0, read_local(text))


def since(text: str) -> float:
    """Parse the begin of a range that ends now: a length of time ("2h" is two hours ago), or a time."""
    try:
        return time.time() - seconds(text)
    except BadValue:
        return min(when(text), time.time())  # `now`, which is inf, becomes the present time


def when_or_build(text: str) -> float | str:
    """Parse a time, or the first digits of a build-id; return seconds, or the digits as a text."""
    try:
        return when(text)
    except BadValue:
        if _BUILD_ID.fullmatch(text):
            return text
        raise refusal(text, f"{_WHEN} or a build-id") from None


def build_id(text: str) -> str:
    """Parse the first digits of a build-id; "" is any build-id."""
    if text and not _BUILD_ID.fullmatch(text):
        raise refusal(text, "6 to 64 digits of a build-id")
    return text
