"""Parses words that others have written: a backend, a client, a file, a kernel, a clock.

Each function here gives a value or None, and no text makes it raise.  int() alone takes digits of any script
and "1_0", and raises at 5,000 digits; a date may have a year that no calendar has.

Invariant: every door gives a value or a refusal for each text of tests/builders/absurd.py
(tests/test_absurd_words.py).
"""

import time
from calendar import timegm
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Text = TypeVar("_Text")
_Value = TypeVar("_Value")


def total(parse: Callable[[_Text], _Value]) -> Callable[[_Text], _Value | None]:
    """Make a parser of a text return None for a text that is not what it should be."""

    @wraps(parse)
    def parse_or_none(text: _Text) -> _Value | None:
        try:
            return parse(text)
        except (ValueError, LookupError, TypeError, OverflowError, OSError, RecursionError):
            return None

    return parse_or_none


def natural(text: str | bytes, below: int = 1 << 63) -> int | None:
    """Return the number that ASCII digits state, if it is less than `below`."""
    number = int(text) if len(text) < 20 and text.isascii() and text.isdigit() else below
    return number if number < below else None


def utc(time_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time since the epoch as text; the seconds themselves if no calendar has it."""
    moment = total(time.gmtime)(time_s)
    return f"{time_s:g} s" if moment is None else time.strftime(form, moment)


@total
def http_date(text: str) -> float:
    """Return the time since the epoch that a date of HTTP states (RFC 9110, 5.6.7, IMF-fixdate)."""
    return timegm(time.strptime(text, "%a, %d %b %Y %H:%M:%S GMT"))
