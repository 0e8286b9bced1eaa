"""Parses words that others have written: a backend, a client, a file, a kernel, a clock.

Each function here is total: it returns a value or None, and no text makes it raise.  int() alone takes digits
of any script and "1_0", and raises at 5,000 digits; a date may have a year that no calendar has.

Invariant: every door gives a value or a refusal for each text of tests/builders/absurd.py
(tests/test_absurd_words.py).
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_MAX_DIGITS = 19  # of 2**63
_HTTP_DATE = "%a, %d %b %Y %H:%M:%S GMT"  # RFC 9110, 5.6.7: the format that a sender must use
_Text = TypeVar("_Text")
_Value = TypeVar("_Value")


def natural(text: str | bytes, below: int = 1 << 63) -> int | None:
    """Return the number that a text of ASCII digits states, if it is less than `below`."""
    is_number = len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()
    return value if is_number and (value := int(text)) < below else None


def utc(time_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time since the epoch as text; the seconds themselves if no calendar has it."""
    try:
        return time.strftime(form, time.gmtime(time_s))
    except (ValueError, OverflowError, OSError):
        return f"{time_s:g} s"


def http_date(text: str) -> float | None:
    """Return the time since the epoch that a date of HTTP states."""
    from calendar import timegm

    try:
        return float(timegm(time.strptime(text, _HTTP_DATE)))
    except (ValueError, OverflowError):
        return None


def total(parse: Callable[[_Text], _Value]) -> Callable[[_Text], _Value | None]:
    """Make a parser of a text return None for a text that is not what it should be."""

    @wraps(parse)
    def parse_or_none(text: _Text) -> _Value | None:
        try:
            return parse(text)
        except (ValueError, LookupError, TypeError, OverflowError):
            return None

    return parse_or_none
