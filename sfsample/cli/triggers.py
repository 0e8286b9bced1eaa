"""Decides when `watch` pins what it has, looks closer and takes a dump: `--trigger CONDITION`, SIGUSR1.

A condition is looked at every five seconds, or less often where a look costs more than half a percent of
that time.  Then it has a rest (`--cooldown`), in which values are still collected for percentiles.
"""

import argparse
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfsample.cli.trouble import say_at
from sfsample.cli.values import any_size, large_size, refusal, seconds
from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.foreign import utc

LOOK_S = 5.0
_MAX_SHARE = 0.005  # of the time, that looks may cost
_PATIENCE_S = 1.0  # for an instant at which no thread is held
_DAY_LOOKS = 17280  # looks of a day
_HOUR_LOOKS = 720  # of an hour; after each of them a percentile is that of the day before
_IN_A_ROW = 3  # looks above a percentile (one in a hundred is above the 99th), or without a value
_CONDITION = re.compile(r"([a-z.]+)>(p)?(.+)")
_EXAMPLES = "cpu>80, cpu>p99, rss>2G, threads>500, psi.cpu>20, delay>10%, stuck>30s"


class Condition(NamedTuple):
    """`text` as it was typed; the metric (process/load.py) and its limit, or a percentile of its day."""

    text: str
    metric: str
    limit: float = 0.0
    percentile: int | None = None


class Fired(NamedTuple):
    """A trigger, and when: what it is called, the value that was read, seconds since 1970."""

    name: str
    value: str
    at_s: float

    def __str__(self) -> str:
        value = f" ({self.value})" if self.value else ""
        return f"trigger {self.name}{value} at {utc(self.at_s, '%H:%M:%S')}"


def condition(text: str) -> Condition:
    """Parse the value of --trigger."""
    match = _CONDITION.fullmatch(text.replace(" ", ""))
    metric, is_percentile, number = match.groups() if match else ("", None, "")
    try:
        if is_percentile and metric == "cpu" and re.fullmatch("[5-9][0-9]", number, re.ASCII):
            return Condition(match[0], metric, percentile=int(number))  # type: ignore[index]
        if not is_percentile and metric in _METRICS:
            return Condition(match[0], metric, _METRICS[metric][0](number))  # type: ignore[index]
    except (argparse.ArgumentTypeError, ValueError):
        pass
    raise refusal(text, f"a condition ({_EXAMPLES}; in quotes, because of >)")


def _percent(text: str) -> float:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?%?", text, re.ASCII):
        raise ValueError(text)
    return float(text.removesuffix("%"))


_shown_percent = "{:.0f} %".format
_METRICS: dict[
    str, tuple[Callable[[str], float], Callable[[float], str]]
] = {  # parses a limit, shows a value
    "cpu": (_percent, _shown_percent),
    "rss": (large_size, lambda value: f"{value / (1 << 20):.0f} MiB"),
    "threads": (any_size, "{:.0f}".format),
    "psi.cpu": (_percent, _shown_percent),
    "delay": (_percent, _shown_percent),
    "stuck": (seconds, "{:.0f} s".format),
}


class Triggers:
    """Looks at the conditions; `read` gives the values of the metrics of `pids`."""

    def __init__(self, conditions: Sequence[Condition], cooldown_s: float,
                 read: Callable[[Sequence[int]], dict[str, float]]) -> None:  # fmt: skip
        self._conditions, self._cooldown_s, self._read = conditions, cooldown_s, read
        self.pids: Sequence[int] = ()
        self._due_s = self._rest_until_s = 0.0
        self._day: deque[float] = deque(maxlen=_DAY_LOOKS)  # values of cpu
        self._ordered: list[float] = []  # the same, each hour
        self._above: Counter[Condition] = Counter()  # looks in a row above its percentile
        self._fired: Fired | None = None
        self._unknown = {one.metric for one in conditions}  # metrics that never had a value
        self._looks = 0

    def fire(self) -> None:
        """Fire by hand (SIGUSR1), whatever the cool-down."""
        self._fired = Fired("SIGUSR1", "", time.time())

    def is_due(self) -> bool:
        """Whether a trigger has fired and was not answered; it looks, if the time has come."""
        now_s = time.monotonic()
        is_bad_moment = PENDING_STOPS.any and now_s < self._due_s + _PATIENCE_S
        if self._conditions and self.pids and now_s >= self._due_s and not is_bad_moment:
            self._due_s = now_s + LOOK_S
            values = self._read(self.pids)
            self._due_s = max(self._due_s, now_s + (time.monotonic() - now_s) / _MAX_SHARE)
            self._see(values, now_s)
        return self._fired is not None

    def take(self) -> Fired | None:
        """Return what has fired, once `is_due`; `answered` must follow."""
        return self._fired if self.is_due() else None

    def answered(self) -> None:
        """Begin the rest; what fired meanwhile is answered by the same."""
        self._fired = None
        self._above.clear()
        self._rest_until_s = time.monotonic() + self._cooldown_s

    def _see(self, values: dict[str, float], now_s: float) -> None:
        self._unknown -= values.keys()
        self._looks += 1
        if self._looks == _IN_A_ROW and self._unknown:
            say_at(f"no value for --trigger: {', '.join(sorted(self._unknown))}",
                   "the kernel does not measure it, or does not show it in this container")  # fmt: skip
        for one in self._conditions:
            if self._is_above(one, values) and self._fired is None and now_s >= self._rest_until_s:
                self._fired = Fired(one.text, _METRICS[one.metric][1](values[one.metric]), time.time())
        if "cpu" in values:
            self._day.append(values["cpu"])
        if self._looks % _HOUR_LOOKS == 0:
            self._ordered = sorted(self._day)

    def _is_above(self, one: Condition, values: dict[str, float]) -> bool:
        if (value := values.get(one.metric)) is None:
            return False
        if one.percentile is None:
            return value > one.limit
        if not self._ordered:
            return False
        is_high = value > self._ordered[len(self._ordered) * one.percentile // 100]
        self._above[one] = self._above[one] + 1 if is_high else 0
        return self._above[one] >= _IN_A_ROW
