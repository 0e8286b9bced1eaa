"""Parses times of day, as `history` takes them: `now`, `-2h`, `14:00`, `yesterday 14:00`, ISO 8601.

A time without an offset is local time; of two equal local times, when clocks are set back, it is the first.
Results are seconds since the epoch.  `now` is inf: it ends a range of time, and never begins one.
"""

import re
import time
from calendar import timegm
from math import inf

from sfsample.core.foreign import total, utc
from sfsample.core.quantities import BadValue, refusal, seconds

_CLOCK = re.compile(r"(?:(today|yesterday) ?)?(?:([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?)?", re.ASCII)
_WHAT = "a time (now, -2h, 14:00, 'yesterday 14:00', 2026-11-24T14:00+01:00)"
_BUILD_ID = re.compile("[0-9a-f]{6,64}", re.ASCII)


def when(text: str) -> float:
    """Parse a time."""
    if text == "now":
        return inf
    if text.startswith("-"):
        return time.time() - seconds(text[1:])
    if (moment := _moment(text)) is None:
        raise refusal(text, _WHAT)
    return moment


@total
def _moment(text: str) -> float:
    clock = _CLOCK.fullmatch(text)
    if clock and text:
        days = -86400 * (clock[1] == "yesterday")
        day = timegm(time.localtime(time.time())) + days  # UTC has days of one length
        hour, minute, second = (int(part or 0) for part in clock.groups()[1:])
        return _iso(f"{utc(day, '%Y-%m-%d')}T{hour:02}:{minute:02}:{second:02}")
    return _iso(text)


def _iso(text: str) -> float:
    from datetime import datetime  # most commands do not need it

    return max(0.0, datetime.fromisoformat(text).timestamp())


def since(text: str) -> float:
    """Parse the begin of a time that lasts until now: a length ("2h" is two hours ago), or a time."""
    try:
        return time.time() - seconds(text)
    except BadValue:
        return min(when(text), time.time())  # `now`, which is inf, becomes the present time


def when_or_build(text: str) -> float | str:
    """Parse a time, or the begin of a build-id, which stays a text."""
    try:
        return when(text)
    except BadValue:
        if _BUILD_ID.fullmatch(text):
            return text
        raise refusal(text, f"{_WHAT} or a build-id") from None


def build(text: str) -> str:
    """Parse the begin of a build-id; "" is any build-id."""
    if text and not _BUILD_ID.fullmatch(text):
        raise refusal(text, "6 to 64 digits of a build-id")
    return text
