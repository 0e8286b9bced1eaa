"""Parses texts that come from outside: from a backend, a client, a file, the kernel, a clock.

int() is not enough: it accepts "1_0" and the digits of any script, and raises for 5,000 digits.  A time may
lie beyond the years of the calendar.

Invariant: no text makes a function raise; a refused text gives None (tests/test_absurd_words.py).
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Text = TypeVar("_Text")
_Value = TypeVar("_Value")


def total(parse: Callable[[_Text], _Value]) -> Callable[[_Text], _Value | None]:
    """Return `parse` as a function that returns None where `parse` would raise."""

    @wraps(parse)
    def parse_or_none(text: _Text) -> _Value | None:
        try:
            return parse(text)
        except (ValueError, LookupError, TypeError, OverflowError, OSError, RecursionError):
            return None

    return parse_or_none


def natural(text: str | bytes, below: int = 1 << 63) -> int | None:
    """Return the number in ASCII digits, if it is less than `below`; None for any other text."""
    number = int(text) if len(text) < 20 and text.isascii() and text.isdigit() else below
    return number if number < below else None


def utc(time_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time since the epoch in UTC; a time beyond the calendar is written in seconds."""
    moment = total(time.gmtime)(time_s)
    return f"{time_s:g} s" if moment is None else time.strftime(form, moment)
