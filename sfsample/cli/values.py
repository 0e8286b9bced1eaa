"""Parses the values of flags: a text from the command line becomes a checked value.

A wrong value is refused here, with an example of an accepted one, so that no command sees it.
"""

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sfsample.core.foreign import natural, total
from sfsample.core.quantities import NUMBER, BadValue, any_size, refusal, seconds, within
from sfsample.core.walk_limits import STEPPERS

if TYPE_CHECKING:
    from sfsample.watching.push.backend import Backend
    from sfsample.watching.triggers import Condition

_Number = TypeVar("_Number", int, float)
_MIN_RATE_HZ, _MAX_RATE_HZ = 1e-9, 10_000  # the least rate samples once in the longest time of `seconds`
_LEAST = 5e-324  # least percentage above 0


def age(text: str) -> float:
    """Parse an age with a unit: "7d".  A number without unit would be seconds, and delete nearly all."""
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
    time = seconds(text)
    if time * _MAX_RATE_HZ < 1 - 1e-9:
        raise refusal(text, f"a time of at least {1e6 / _MAX_RATE_HZ:g}us")
    return min(1 / time, float(_MAX_RATE_HZ))


def pids(text: str) -> list[int]:
    """Parse process ids, separated by commas."""
    return [positive(part, what="a process id (from 1 on)") for part in text.split(",")]


def _matching(pattern: str, what: str, spell: Callable[[str], str] = str) -> Callable[[str], str]:
    """Return a parser of texts that match a pattern as a whole; `spell` makes equal values equal texts."""

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
    from sfsample.watching.triggers import condition as parse  # most commands watch for none

    return parse(text)


def listen(text: str) -> str | tuple[str, int]:
    """Parse the address to listen on: the path of "unix:PATH", or an IP address and a port."""
    from sfsample.watching.options import is_loopback  # most commands listen nowhere

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
    if not set(chosen) <= set(STEPPERS) or len(set(chosen)) != len(chosen):
        raise refusal(text, f"a list out of {','.join(STEPPERS)}")
    return chosen
