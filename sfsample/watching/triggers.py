"""Decides when a trigger of `watch` fires (`--trigger`, SIGUSR1), and answers the trigger (docs/triggers.md).

A child process, `sfsample dump`, takes the dump, because a dump needs memory and time, and may fail.  Only
this user can read the dumps, because they contain command lines, addresses and paths.
"""

import re
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.foreign import utc
from sfsample.core.quantities import any_size, counted, large_size, refusal, seconds
from sfsample.errors import SfsampleError
from sfsample.recording.options import RecordOptions
from sfsample.watching.options import Keep, WatchOptions
from sfsample.watching.own_program import dump_words, own_program
from sfsample.watching.program import Program, Say, Sink
from sfsample.watching.slice_files import SliceFiles

LOOK_S = 5.0  # time between two looks, which are checks of all conditions
_MAX_SHARE = 0.005  # share of the time that looks may cost
_WAIT_S = 1.0  # longest time that a look waits until no thread is held
_DAY_LOOKS = 17280  # looks in a day
_HOUR_LOOKS = 720  # looks in an hour; every hour, percentiles of the last day are computed
_IN_A_ROW = 3  # looks above a percentile before a trigger fires; looks without a value before a message
_BEFORE_S = 120.0  # the slices of this time before a trigger are pinned
_CLOSER_S, _CLOSER_HZ = 30.0, 99.0  # length and rate of the slice after a trigger
_CLOSER_SHARE = 0.1  # share of a CPU for the samples of that slice; the default, 3 %, allows few ticks
_MAX_DUMPS = 100  # dumps of a target that are kept
_MAX_PROCESSES = 20  # processes in a dump
_PATIENCE_S = 60.0  # time after which the child is killed; the threads of the target then run on
_ENDED_WELL = (0, 5)  # exit codes of a complete dump, and of a dump without some threads
_CONDITION = re.compile(r"([a-z.]+)>(.+)")
_PERCENTILE = re.compile("p([5-9][0-9])", re.ASCII)
_EXAMPLES = "cpu>80, cpu>p99, rss>2G, threads>500, psi.cpu>20, delay>10%, stuck>30s"


class Condition(NamedTuple):
    """A condition of --trigger: a metric is above a limit, or above its percentile of the last day."""

    text: str  # the condition as the user typed it
    metric: str  # see process/load.py
    limit: float = 0.0  # unit of the metric
    percentile: int | None = None


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
        if match[1] == "cpu" and (percentile := _PERCENTILE.fullmatch(match[2])):
            return Condition(match[0], match[1], percentile=int(percentile[1]))
        with suppress(ValueError):
            return Condition(match[0], match[1], _METRICS[match[1]][0](match[2]))
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
    """Checks the conditions; `read` returns values by metric for `pids`."""

    def __init__(self, conditions: Sequence[Condition], cooldown_s: float,
                 read: Callable[[Sequence[int]], dict[str, float]], say: Say) -> None:  # fmt: skip
        self._conditions, self._cooldown_s, self._read, self._say = conditions, cooldown_s, read, say
        self.pids: Sequence[int] = ()
        self._due_s = self._rest_until_s = 0.0
        self._day: deque[float] = deque(maxlen=_DAY_LOOKS)  # values of cpu
        self._ordered: list[float] = []  # values of cpu, sorted once an hour
        self._above: Counter[Condition] = Counter()  # number of looks in a row above the percentile
        self._fired: Fired | None = None
        self._unknown = {condition.metric for condition in conditions}  # metrics without a value so far
        self._looks = 0

    def fire(self) -> None:
        """Fire at once (SIGUSR1), also during the cool-down."""
        self._fired = Fired("SIGUSR1", "", time.time())

    def is_due(self) -> bool:
        """Check the conditions if it is time; return True if a fired trigger has no answer yet."""
        now_s = time.monotonic()
        is_bad_moment = PENDING_STOPS.any and now_s < self._due_s + _WAIT_S
        if self._conditions and self.pids and now_s >= self._due_s and not is_bad_moment:
            self._due_s = now_s + LOOK_S
            values = self._read(self.pids)
            self._due_s = max(self._due_s, now_s + (time.monotonic() - now_s) / _MAX_SHARE)
            self._see(values, now_s)
        return self._fired is not None

    def take(self) -> Fired | None:
        """Return the trigger that has fired, or None.  The caller answers, then calls `answered`."""
        return self._fired if self.is_due() else None

    def answered(self) -> None:
        """Begin the cool-down; drop triggers that fired during the answer."""
        self._fired = None
        self._above.clear()
        self._rest_until_s = time.monotonic() + self._cooldown_s

    def _see(self, values: dict[str, float], now_s: float) -> None:
        self._unknown -= values.keys()
        self._looks += 1
        if self._looks == _IN_A_ROW and self._unknown:
            self._say(f"no value for --trigger: {', '.join(sorted(self._unknown))}",
                      "the kernel does not measure this, or does not show it in a container")  # fmt: skip
        for condition in self._conditions:
            if self._is_above(condition, values) and self._fired is None and now_s >= self._rest_until_s:
                shown = _METRICS[condition.metric][1](values[condition.metric])
                self._fired = Fired(condition.text, shown, time.time())
        if "cpu" in values:
            self._day.append(values["cpu"])
        if self._looks % _HOUR_LOOKS == 0:
            self._ordered = sorted(self._day)

    def _is_above(self, condition: Condition, values: dict[str, float]) -> bool:
        value = values.get(condition.metric, 0.0)
        if condition.percentile is None:
            return value > condition.limit
        if not self._ordered:
            return False
        is_high = value > self._ordered[len(self._ordered) * condition.percentile // 100]
        self._above[condition] = self._above[condition] + 1 if is_high else 0
        return self._above[condition] >= _IN_A_ROW


# function that records a slice of N seconds, and returns its ticks per second; None: the slice is lost
Record = Callable[[float, RecordOptions], float | None]


class Response:
    """Answers triggers; `files` names the dumps, and deletes old dumps."""

    def __init__(self, options: WatchOptions, files: SliceFiles, sinks: list[Sink], program: Program) -> None:
        self._options, self._files, self._sinks, self._program = options, files, sinks, program

    def answer(self, fired: Fired, find: Callable[[], list[int]], record: Record) -> None:
        """Pin, dump, record; print the result.  `find` returns the process ids, or raises SfsampleError."""
        options, pinned = self._options.record, self._pin(fired)
        try:
            dump = f"dump in {self._dump(find())}"
        except (SfsampleError, OSError) as failure:
            dump = f"no dump: {failure}"
        begin_s, hz = time.monotonic(), max(_CLOSER_HZ, options.rate)
        share = max(_CLOSER_SHARE, options.max_overhead or 0.0)
        labels = (*options.labels, ("trigger", fired.name))
        taken = record(_CLOSER_S, replace(options, rate=hz, labels=labels, max_overhead=share))
        length_s = time.monotonic() - begin_s
        self._pin(fired)
        if not self._options.quiet:
            closer = f"{length_s:.0f} s at {taken or 0:.0f} of {hz:g} Hz"
            closer = "no slice kept since" if taken is None else closer
            self._program.say(f"{fired}: {counted(pinned, 'slice')} pinned, {closer}, {dump}")

    def _dump(self, pids: Sequence[int]) -> str:
        path = self._files.free_path()
        words = dump_words(
            pids[:_MAX_PROCESSES], path, self._options.record, self._program.symbols.debug_dirs
        )
        try:
            done = subprocess.run(own_program(*words), umask=0o077, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_PATIENCE_S,
                                  check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SfsampleError(f"the dump took more than {_PATIENCE_S:.0f} s") from None
        if done.returncode not in _ENDED_WELL:
            said = done.stderr.decode("utf-8", "replace").partition("\n")[0]
            raise SfsampleError(said.removeprefix("sfsample: ") or "the child was killed")
        keep_for = self._options.keep.of_history().keep_for
        self._files.delete_old(path, Keep(keep=_MAX_DUMPS, keep_for=keep_for))
        return path

    def _pin(self, fired: Fired) -> int:
        """Pin the slices from two minutes before a trigger until now; return their number."""
        last_s, counts = _BEFORE_S + max(0.0, time.time() - fired.at_s), [0]
        for sink in self._sinks:
            try:
                counts.append(sink.pin(last_s))
            except (SfsampleError, OSError) as failure:
                self._program.say(f"not pinned: {failure}", *getattr(failure, "help", ()))
        return max(counts)
