"""Compares two reports: which functions changed, and which differences are only noise.

docs/diff.md explains the arithmetic.  Counts are compared, never percentages: if k of n samples hit a
function, the error of k is about its square root.  The verdicts allow for the number of functions that are
compared.  If ordinary times are known, a change must also be larger than the differences between ordinary
times (report/noise.py).
Each report becomes a `Side` first, which takes far less memory.

Invariant: verdicts and intervals are wrong as seldom as stated (tests/report/test_difference.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import erfc, exp, sqrt
from typing import NamedTuple

from sfsample.report.noise import LEAST_PAIRS, half_width, log_ratio, p_value, spread
from sfsample.report.report import Numbers, Report
from sfsample.symbolize.named_frame import NamedFrame

_Z = 1.96  # standard deviations: 95 % of a normal distribution
_FALSE_DISCOVERY_RATE = 0.05  # share of the verdicts "grew" and "shrank" that may be wrong
GREW, SHRANK, NOISE = "grew", "shrank", "noise"
UNKNOWN = "unknown"  # more than chance explains, but there are too few ordinary times to judge it
_MAX_LOG = 700.0  # largest logarithm of a float
_LEAST_COUNTED = 0.9  # share of the ticks of a duration: if fewer were counted, some part has no count


class Side(NamedTuple):
    """One of the two compared reports: its facts (None: unknown) and its samples by function.

    `ticks` is the number of samples of a thread that always runs; 0 if it is unknown.
    """

    name: str  # input as the user gave it
    files: int
    samples: int
    ticks: float
    duration_ns: int | None
    rate_hz: float | None
    host: str | None
    started_ns: int | None
    mode: str | None
    processes: tuple[str, ...]
    by_self: Counter[str]
    by_total: Counter[str]


class Change(NamedTuple):
    """One function: samples before and after, and the 95 % interval of the ratio of its shares."""

    name: str
    before: int
    after: int
    share_before: float  # share of one CPU's time or of all samples: 0 to 1, more for several threads
    share_after: float
    low: float
    high: float  # inf: the function may be new
    verdict: str
    ordinary: float | None = None  # the ratio by which two ordinary times differ (root mean square), if known

    @property
    def change(self) -> float:
        """The difference of the shares."""
        return self.share_after - self.share_before


class Ordinary(NamedTuple):
    """Pairs of ordinary times, as long and as far apart as the two compared times; `what` names them."""

    pairs: tuple[tuple[Side, Side], ...]
    what: str
    warnings: tuple[str, ...] = ()  # why the answer says less than it seems to

    @property
    def enough(self) -> bool:
        """Whether there are enough pairs for verdicts."""
        return len(self.pairs) >= LEAST_PAIRS


class Difference(NamedTuple):
    """All functions, by self samples and by total samples (with callees); the largest change first.

    `per_time`: shares are of one CPU's time; otherwise (a duration or rate is unknown) of all samples.
    """

    sides: tuple[Side, Side]
    relative: bool  # shares of all samples were asked for
    per_time: bool
    exposures: tuple[float, float]  # before and after: the number of samples that a share of 1 would be
    overall: Change
    by_self: tuple[Change, ...]
    by_total: tuple[Change, ...]
    ordinary: Ordinary | None = None  # None: the inputs are files


def compare_sides(
    before: Side, after: Side, *, relative: bool = False, ordinary: Ordinary | None = None
) -> Difference:
    """Return the changes; `relative`: in shares of all samples even if both rates are known."""
    per_time = bool(before.ticks and after.ticks) and not relative
    pairs = [(before, after), *(ordinary.pairs if ordinary else ())]
    exposures, *others_exposures = [
        (one.ticks, other.ticks) if per_time else (float(one.samples), float(other.samples))
        for one, other in pairs
    ]

    def changes(counts: Callable[[Side], Mapping[str, int]]) -> tuple[Change, ...]:
        counted, *others = [(counts(first), counts(second)) for first, second in pairs]

        def usual(name: str) -> list[float]:
            return [log_ratio(first.get(name, 0), second.get(name, 0), each)
                    for (first, second), each in zip(others, others_exposures, strict=True)]  # fmt: skip

        return _changes(*counted, exposures, usual if ordinary else None)

    [overall] = changes(lambda side: {"all": side.samples})
    by_self, by_total = changes(lambda side: side.by_self), changes(lambda side: side.by_total)
    return Difference((before, after), relative, per_time, exposures, overall, by_self, by_total, ordinary)


def count(report: Report, name: str = "", files: int = 1) -> Side:
    """Count the samples of a report by function; `files` is the number of files that it was read from."""
    mode = report.stats.text("mode")
    processes = tuple(dict.fromkeys(thread.process for thread in report.threads))
    return Side(
        name, files, report.total(), _ticks(report), report.duration_ns, report.rate_hz, report.host,
        report.started_ns, mode if mode in ("cpu", "wall") else None, processes, *_counts(report),
    )  # fmt: skip


def _ticks(report: Report) -> float:
    """Return the number of ticks that were taken, 0 if it is unknown.

    The duration times the rate is only an estimate of the ticks that were due.  The statistics have their
    exact number.  That number is too small if some of the merged reports have no statistics.
    """
    number, due = report.stats.number, (report.duration_ns or 0) / 1e9 * (report.rate_hz or 0)
    if due and (ticks := number("ticks")) > _LEAST_COUNTED * due:
        due = float(ticks)
    return max(0.0, due - number("late_ticks") - number("spared_ticks"))


def comparison_name(frame: NamedFrame) -> str:
    """Return the name by which a frame is compared.

    A frame without a function is compared by its module, because addresses differ between builds.
    """
    if frame.function is None and frame.module is not None:
        return f"[{frame.module.rpartition('/')[2].strip('[]')}]"
    return frame.text


def _counts(report: Report) -> tuple[Counter[str], Counter[str]]:
    """Return self samples and total samples (recursion counts once), by function."""
    numbers = Numbers[str]()
    functions = [numbers[comparison_name(frame)] for frame in report.frames]
    by_self, by_total = [0] * len(numbers), [0] * len(numbers)
    for stack in report.stacks:
        row, weight = [functions[at] for at in stack.frames], stack.weights[0]
        for function in {*row}:
            by_total[function] += weight
        if row:
            by_self[row[0]] += weight
    own, total = (Counter(dict(zip(numbers, counts, strict=True))) for counts in (by_self, by_total))
    return +own, +total  # without zeros


def _changes(
    before: Mapping[str, int],
    after: Mapping[str, int],
    exposures: tuple[float, float],
    usual: Callable[[str], list[float]] | None,
) -> tuple[Change, ...]:
    """Return the changes of all functions, the largest first.

    `usual` gives the ordinary differences of one function; None: the inputs are files.
    Equal changes stay in the order of the frames: the innermost first.
    """
    names = [*dict.fromkeys((*after, *before))]
    changes = [_change(name, (before.get(name, 0), after.get(name, 0)), exposures) for name in names]
    chances = [_p_value(change.before, change.after, exposures) for change in changes]
    if usual is not None:
        for at, change in enumerate(changes):
            differences = usual(change.name)
            if len(differences) >= LEAST_PAIRS:
                difference = log_ratio(change.before, change.after, exposures)
                chances[at] = max(chances[at], p_value(difference, differences))
                changes[at] = _widen(change, difference, differences)
            else:
                changes[at] = change._replace(verdict=UNKNOWN)
    judged = [change if is_real else change._replace(verdict=NOISE)
              for change, is_real in zip(changes, _significant(chances), strict=True)]  # fmt: skip
    return tuple(sorted(judged, key=lambda c: (c.verdict == NOISE, -abs(c.change))))


def _change(name: str, pair: tuple[int, int], exposures: tuple[float, float]) -> Change:
    """Return the change of a function with the verdict of its sign alone."""
    shares = [count / exposure if exposure else 0.0 for count, exposure in zip(pair, exposures, strict=True)]
    verdict = GREW if shares[1] > shares[0] else SHRANK
    return Change(name, *pair, shares[0], shares[1], *ratio_interval(*pair, exposures), verdict)


def _widen(change: Change, difference: float, ordinary: list[float]) -> Change:
    """Return a change with the interval of ordinary differences if that is the wider one."""
    width = half_width(ordinary)
    low = min(change.low, _power(difference - width))
    high = max(change.high, _power(difference + width))
    return change._replace(low=low, high=high, ordinary=_power(spread(ordinary)))


def _power(exponent: float) -> float:
    return exp(min(exponent, _MAX_LOG))


def _p_value(before: float, after: float, exposures: tuple[float, float]) -> float:
    """Return the probability of a difference at least this large if nothing has changed.

    Given the sum, `after` is binomial; this is the normal approximation with continuity correction.
    """
    count = before + after
    part = exposures[1] / sum(exposures) if any(exposures) else 0.5  # expected share of samples in `after`
    deviation = sqrt(count * part * (1 - part))
    if not deviation:
        return 1.0
    return erfc(max(0.0, abs(after - count * part) - 0.5) / deviation / sqrt(2))


def sees_growth(ratio: float, share: float, exposure: float, functions: int) -> bool:
    """Return True if the growth of one function by `ratio` would be significant among all functions."""
    chance = _p_value(share * exposure, ratio * share * exposure, (exposure, exposure))
    return chance <= _FALSE_DISCOVERY_RATE / max(1, functions)


def _significant(p_values: list[float]) -> list[bool]:
    """Return a flag for each p-value: the difference is significant (Benjamini and Hochberg 1995)."""
    ranked = sorted(range(len(p_values)), key=p_values.__getitem__)
    rate, count = _FALSE_DISCOVERY_RATE, len(p_values)
    kept = [rank for rank, at in enumerate(ranked, 1) if p_values[at] <= rate * rank / count]
    accepted = set(ranked[: max(kept, default=0)])
    return [at in accepted for at in range(count)]


def ratio_interval(before: int, after: int, exposures: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % interval of share after / share before, from Wilson's interval of a proportion."""
    count = before + after
    if not count or not all(exposures):
        return 0.0, float("inf")
    low, high = _wilson(after, count)
    low_before, high_before = _wilson(before, count)  # 1 - high would lose its digits
    odds = exposures[0] / exposures[1]
    return low / high_before * odds, high / low_before * odds if low_before else float("inf")


def _wilson(hits: int, count: int) -> tuple[float, float]:
    part, square = hits / count, _Z * _Z
    center = part + square / (2 * count)
    half_width = _Z * sqrt(part * (1 - part) / count + square / (4 * count * count))
    scale = 1 + square / count
    return max(0.0, (center - half_width) / scale), min(1.0, (center + half_width) / scale)
