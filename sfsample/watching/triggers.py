"""Decides when a trigger of `watch` fires: when a `--trigger CONDITION` is met, or at SIGUSR1.

The conditions are checked every five seconds.  If checks cost more than half a percent of the time, they are
made less often.  After a trigger, no condition fires until `--cooldown` is over.
"""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from sfsample.core.foreign import utc
from sfsample.core.quantities import any_size, large_size, refusal, seconds
from sfsample.watching.program import Say

LOOK_S = 5.0
_MAX_SHARE = 0.005  # share of the time that looks may cost
_UNKNOWN_LOOKS = 3  # looks without a value until a message
_CONDITION = re.compile(r"([a-z.]+)>(.+)")
_EXAMPLES = "cpu>80, rss>2G, threads>500, psi.cpu>20, delay>10%, stuck>30s"


class Condition(NamedTuple):
    """A condition of --trigger: a metric is above a limit."""

    text: str  # what the user typed
    metric: str  # see process/load.py
    limit: float  # unit of the metric


class Fired(NamedTuple):
    """A trigger that has fired."""

    name: str  # the condition, or SIGUSR1
    value: str  # value of the metric, with its unit
    at_s: float  # seconds since 1970

    def __str__(self) -> str:
        value = f" ({self.value})" if self.value else ""
        return f"trigger {self.name}{value} at {utc(self.at_s, '%H:%M:%SZ')}"


def condition(text: str) -> Condition:
    """Parse the value of --trigger."""
    match = _CONDITION.fullmatch(text.replace(" ", ""))
    if match and match[1] in _METRICS:
        parse, _ = _METRICS[match[1]]
        with suppress(ValueError):
            return Condition(match[0], match[1], parse(match[2]))
    raise refusal(text, f"a condition ({_EXAMPLES}; in quotes, because of >)")


def _percent(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?%?", text, re.ASCII):
        raise ValueError(text)
    return float(text.removesuffix("%"))


_shown_percent = "{:.0f} %".format
_Metric = tuple[Callable[[str], float], Callable[[float], str]]  # functions: parse a limit, show a value
_METRICS: dict[str, _Metric] = {
    "cpu": (_percent, _shown_percent),
    "rss": (large_size, lambda value: f"{value / (1 << 20):.0f} MiB"),
    "threads": (any_size, "{:.0f}".format),
    "psi.cpu": (_percent, _shown_percent),
    "delay": (_percent, _shown_percent),
    "stuck": (seconds, "{:.0f} s".format),
}


class Triggers:
    """Checks the conditions; `read` returns the values of the metrics of `pids`."""

    def __init__(self, conditions: Sequence[Condition], cooldown_s: float,
                 read: Callable[[Sequence[int]], dict[str, float]], say: Say) -> None:  # fmt: skip
        self._conditions, self._cooldown_s, self._read, self._say = conditions, cooldown_s, read, say
        self.pids: Sequence[int] = ()
        self._due_s = self._rest_until_s = 0.0
        self._fired: Fired | None = None
        self._unknown = {condition.metric for condition in conditions}  # metrics without any value so far
        self._looks = 0

    def fire(self) -> None:
        """Fire at once (SIGUSR1), even in the cool-down."""
        self._fired = Fired("SIGUSR1", "", time.time())

    def is_due(self) -> bool:
        """Check the conditions if the time has come; return True if a trigger waits for its answer."""
        now_s = time.monotonic()
        if self._conditions and self.pids and now_s >= self._due_s:
            self._due_s = now_s + LOOK_S
            values = self._read(self.pids)
            self._due_s = max(self._due_s, now_s + (time.monotonic() - now_s) / _MAX_SHARE)
            self._see(values, now_s)
        return self._fired is not None

    def take(self) -> Fired | None:
        """Return the trigger that has fired, if any; the caller answers it, then calls `answered`."""
        return self._fired if self.is_due() else None

    def answered(self) -> None:
        """Begin the cool-down; drop triggers that fired during the answer."""
        self._fired = None
        self._rest_until_s = time.monotonic() + self._cooldown_s

    def _see(self, values: dict[str, float], now_s: float) -> None:
        self._unknown -= values.keys()
        self._looks += 1
        if self._looks == _UNKNOWN_LOOKS and self._unknown:
            self._say(f"no value for --trigger: {', '.join(sorted(self._unknown))}",
                      "the kernel does not measure this, or does not show it in a container")  # fmt: skip
        for condition in self._conditions:
            value = values.get(condition.metric, 0.0)
            if value > condition.limit and self._fired is None and now_s >= self._rest_until_s:
                _, shown = _METRICS[condition.metric]
                self._fired = Fired(condition.text, shown(value), time.time())
