"""Compares two reports: which functions changed, and which differences are only noise (docs/diff.md).

Counts are compared, not percentages, because the error of a count is known (about its square root).  The
total CPU time is measured, so it is compared with ordinary times only (report/noise.py).

Invariant: verdicts and intervals are not wrong more often than stated (tests/report/test_difference.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import erfc, exp, inf, sqrt
from typing import NamedTuple

from sfsample.report.noise import LEAST_PAIRS, half_width, largest, log_ratio, p_value, spread
from sfsample.report.report import CPU, SAMPLES, Numbers, Report
from sfsample.symbolize.named_frame import NamedFrame

_Z = 1.96  # standard deviations: 95 % of a normal distribution
_FALSE_DISCOVERY_RATE = 0.05  # share of the verdicts "grew" and "shrank" that may be wrong
GREW, SHRANK, NOISE = "grew", "shrank", "noise"
UNKNOWN = "unknown"  # the difference is not by chance, but there are too few ordinary times for a verdict
_MAX_LOG = 700.0  # largest logarithm of a float
_CLOCK_ERROR_NS = 100_000_000  # error of a measured CPU time: ten ticks of the kernel's clock
_LEAST_COUNTED = 0.9  # counted ticks / expected ticks; a count with a smaller ratio is not used


class Side(NamedTuple):
    """One of the two compared reports: its facts (None: unknown) and its samples by function.

    If CPU time is compared, the CPU time is converted to samples of a thread that always runs.
    """

    name: str  # input, as the user typed it
    files: int
    samples: int
    ticks: float  # samples of a thread that always runs; 0: unknown
    duration_ns: int | None
    rate_hz: float | None
    host: str | None
    started_ns: int | None
    mode: str | None
    processes: tuple[str, ...]
    by_self: Counter[str]
    by_total: Counter[str]
    cpu_ns: int | None = None  # CPU time of all threads
    cpu_samples: float | None = None  # CPU time of all threads, as samples; None: samples are compared
    coverage: float | None = None  # share of the CPU time that samples represent; None: unknown
    cpu_error: float = 0.0  # error of `cpu_ns`, as a share of one CPU; 0: `cpu_ns` was not measured

    @property
    def amount(self) -> float:
        """The number of samples, or the CPU time as samples."""
        return self.samples if self.cpu_samples is None else self.cpu_samples


class Change(NamedTuple):
    """One function: samples before and after, and the 95 % interval of the ratio of its shares."""

    name: str
    before: float  # samples; a fraction if CPU time is compared
    after: float
    share_before: float  # share of one CPU's time or of all samples: 0 to 1, more for several threads
    share_after: float
    low: float
    high: float  # inf: the function may be new
    verdict: str
    ordinary: float | None = None  # usual ratio of its shares in ordinary pairs (RMS of logs); None: unknown
    ordinary_most: float | None = None  # largest ratio between two ordinary times

    @property
    def change(self) -> float:
        """The difference of the shares."""
        return self.share_after - self.share_before


class Ordinary(NamedTuple):
    """Pairs of ordinary times, as long and as far apart as the compared times; `what` describes the pairs."""

    pairs: tuple[tuple[Side, Side], ...]
    what: str
    warnings: tuple[str, ...] = ()  # reasons to doubt the answer
    can_be_shorter: bool = True  # True: the compared times have several slices

    @property
    def enough(self) -> bool:
        """True if there are enough pairs for verdicts."""
        return len(self.pairs) >= LEAST_PAIRS


class Difference(NamedTuple):
    """All functions, by self samples and by total samples (with callees); the largest change first."""

    sides: tuple[Side, Side]
    relative: bool  # True: the user asked for shares of all samples
    per_time: bool  # True: shares of one CPU's time; False: of all samples
    exposures: tuple[float, float]  # samples of a function whose share is 1: before, after
    overall: Change
    by_self: tuple[Change, ...]
    by_total: tuple[Change, ...]
    ordinary: Ordinary | None = None  # None: the inputs are files

    @property
    def by_cpu(self) -> bool:
        """True if CPU time is compared instead of samples, because sleeping threads have samples, too."""
        return any(side.cpu_samples is not None for side in self.sides)


def compare_sides(
    before: Side, after: Side, *, relative: bool = False, ordinary: Ordinary | None = None
) -> Difference:
    """Return the changes; `relative`: as shares of all samples, even if both rates are known."""
    per_time = bool(before.ticks and after.ticks) and not relative
    pairs = [(before, after), *(ordinary.pairs if ordinary else ())]
    exposures, *others_exposures = [
        (one.ticks, other.ticks) if per_time else (float(one.amount), float(other.amount))
        for one, other in pairs
    ]

    def changes(
        counts: Callable[[Side], Mapping[str, float]], errors: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[Change, ...]:
        counted, *others = [(counts(first), counts(second)) for first, second in pairs]

        def usual(name: str) -> list[float]:
            return [log_ratio(first.get(name, 0), second.get(name, 0), each)
                    for (first, second), each in zip(others, others_exposures, strict=True)]  # fmt: skip

        return _changes(*counted, exposures, usual if ordinary else None, errors)

    errors = (before.cpu_error, after.cpu_error) if ordinary and per_time else (0.0, 0.0)
    [overall] = changes(lambda side: {"all": side.amount}, errors)
    by_self, by_total = changes(lambda side: side.by_self), changes(lambda side: side.by_total)
    return Difference((before, after), relative, per_time, exposures, overall, by_self, by_total, ordinary)


def count(report: Report, name: str = "", files: int = 1, *, mode: str = "cpu") -> Side:
    """Count the samples of a report by function; `files`: number of files that the report comes from.

    With `mode` "cpu", CPU time is counted instead of samples if the report has sleeping threads.
    """
    stats, ticks, weight, cpu_samples, cpu_error = report.stats, _ticks(report), SAMPLES, None, 0.0
    sampled_ns, recorded = report.total(CPU), stats.text("mode")
    cpu_ns = stats.number("cpu_charged_ns") or sampled_ns
    is_known = CPU in report.weights or stats.has_cpu_time  # if no thread ran, the report has no CPU column
    if (mode, recorded) == ("cpu", "wall") and is_known and ticks and report.duration_ns:
        weight, cpu_samples = CPU, cpu_ns * ticks / report.duration_ns
        cpu_error = _CLOCK_ERROR_NS / report.duration_ns if stats.has_cpu_time else 0.0
    own, total = by_function(report, weight)
    if cpu_samples is not None:  # samples stand for a part of the CPU time: scale counts to all CPU time
        for counts in (own, total):
            for function in counts:
                counts[function] *= cpu_samples / sampled_ns  # type: ignore[assignment]  # fractions are fine
    processes = tuple(dict.fromkeys(thread.process for thread in report.threads))
    return Side(
        name, files, report.total(), ticks, report.duration_ns, report.rate_hz, report.host,
        report.started_ns, recorded if recorded in ("cpu", "wall") else None, processes, own, total,
        cpu_ns or None, cpu_samples, stats.coverage, cpu_error,
    )  # fmt: skip


def _ticks(report: Report) -> float:
    """Return the number of ticks that took samples: due ticks less late and spared ticks; 0: unknown."""
    number, due = report.stats.number, (report.duration_ns or 0) / 1e9 * (report.rate_hz or 0)
    if due and (ticks := number("ticks")) > _LEAST_COUNTED * due:  # fewer: a merged report had no statistics
        due = float(ticks)
    return max(0.0, due - number("late_ticks") - number("spared_ticks"))


def comparison_name(frame: NamedFrame) -> str:
    """Return the function of a frame, or its module: not its address, which differs between builds."""
    if frame.function is None and frame.module is not None:
        return f"[{frame.module.rpartition('/')[2].strip('[]')}]"
    return frame.text


def by_function(report: Report, weight: str) -> tuple[Counter[str], Counter[str]]:
    """Return a weight by function: self, and total with callees (recursion counts once)."""
    numbers = Numbers[str]()
    functions = [numbers[comparison_name(frame)] for frame in report.frames]
    by_self, by_total = [0] * len(numbers), [0] * len(numbers)
    for stack, number in zip(report.stacks, report.column(weight), strict=True):
        row = [functions[at] for at in stack.frames]
        for function in {*row}:
            by_total[function] += number
        if row:
            by_self[row[0]] += number
    own, total = (Counter(dict(zip(numbers, counts, strict=True))) for counts in (by_self, by_total))
    return +own, +total  # without zeros


def _changes(
    before: Mapping[str, float], after: Mapping[str, float], exposures: tuple[float, float],
    usual: Callable[[str], list[float]] | None, errors: tuple[float, float],
) -> tuple[Change, ...]:  # fmt: skip
    """Return the changes of all functions, the largest first.

    `usual` returns the ordinary differences of a function; None: the inputs are files.  `errors`: errors of
    the two measured CPU times; 0: samples are counted.  Equal changes have the order of the frames.
    """
    names = [*dict.fromkeys((*after, *before))]
    changes = [_change(name, (before.get(name, 0), after.get(name, 0)), exposures) for name in names]
    chances = [_p_value(change.before, change.after, exposures) for change in changes]
    if all(errors):
        changes = [_measured(change, *errors) for change in changes]
        chances = [float(change.low <= 1 <= change.high) for change in changes]
    if usual is not None:
        for at, change in enumerate(changes):
            differences = usual(change.name)
            if len(differences) >= LEAST_PAIRS:
                difference = log_ratio(change.before, change.after, exposures)
                chances[at] = p_value(difference, differences, chances[at])
                changes[at] = _widen(change, difference, differences)
            else:
                changes[at] = change._replace(verdict=UNKNOWN)
    judged = [change if is_real else change._replace(verdict=NOISE)
              for change, is_real in zip(changes, _significant(chances), strict=True)]  # fmt: skip
    return tuple(sorted(judged, key=lambda c: (c.verdict == NOISE, -abs(c.change))))


def _change(name: str, pair: tuple[float, float], exposures: tuple[float, float]) -> Change:
    """Return the change of a function; the verdict is only its sign, not yet its significance."""
    shares = [count / exposure if exposure else 0.0 for count, exposure in zip(pair, exposures, strict=True)]
    verdict = GREW if shares[1] > shares[0] else SHRANK
    return Change(name, *pair, shares[0], shares[1], *ratio_interval(*pair, exposures), verdict)


def _measured(change: Change, error_before: float, error_after: float) -> Change:
    """Return the change of a measured CPU time; its interval covers the errors of both shares."""
    least, most = change.share_before - error_before, change.share_before + error_before
    low = max(0.0, change.share_after - error_after) / most
    return change._replace(low=low, high=(change.share_after + error_after) / least if least > 0 else inf)


def _widen(change: Change, difference: float, ordinary: list[float]) -> Change:
    """Return a change whose interval also covers the ordinary differences."""
    width = half_width(ordinary)
    low = min(change.low, _power(difference - width))
    high = max(change.high, _power(difference + width))
    usual, most = _power(spread(ordinary)), _power(largest(ordinary))
    return change._replace(low=low, high=high, ordinary=usual, ordinary_most=most)


def _power(exponent: float) -> float:
    return exp(min(exponent, _MAX_LOG))


def _p_value(before: float, after: float, exposures: tuple[float, float]) -> float:
    """Return the probability of the difference if nothing changed (normal approximation of a binomial)."""
    count = before + after
    part = exposures[1] / sum(exposures) if any(exposures) else 0.5  # expected share of samples in `after`
    deviation = sqrt(count * part * (1 - part))
    if not deviation:
        return 1.0
    return erfc(max(0.0, abs(after - count * part) - 0.5) / deviation / sqrt(2))


def _significant(p_values: list[float]) -> list[bool]:
    """Return True for each p-value of a significant difference (Benjamini and Hochberg 1995)."""
    ranked = sorted(range(len(p_values)), key=p_values.__getitem__)
    rate, count = _FALSE_DISCOVERY_RATE, len(p_values)
    kept = [rank for rank, at in enumerate(ranked, 1) if p_values[at] <= rate * rank / count]
    accepted = set(ranked[: max(kept, default=0)])
    return [at in accepted for at in range(count)]


def ratio_interval(before: float, after: float, exposures: tuple[float, float]) -> tuple[float, float]:
    """Return the 95 % interval of share after / share before, from Wilson's interval of a proportion."""
    count = before + after
    if not count or not all(exposures):
        return 0.0, float("inf")
    low, high = _wilson(after, count)
    low_before, high_before = _wilson(before, count)  # more exact than 1 - high and 1 - low
    odds = exposures[0] / exposures[1]
    return low / high_before * odds, high / low_before * odds if before and low_before else float("inf")


def _wilson(hits: float, count: float) -> tuple[float, float]:
    part, square = hits / count, _Z * _Z
    center = part + square / (2 * count)
    half_width = _Z * sqrt(part * (1 - part) / count + square / (4 * count * count))
    scale = 1 + square / count
    return max(0.0, (center - half_width) / scale), min(1.0, (center + half_width) / scale)
