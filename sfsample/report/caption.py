"""Describes a report in words, for all formats that can hold text; unknown facts are left out."""

from sfsample.core.local_time import local, zone
from sfsample.core.quantities import counted, listed, long_time
from sfsample.recording.stats import is_low
from sfsample.report.report import CPU, OUTERMOST, Report

_MAX_PIDS = 8  # process ids listed
_LONG_NS = 1000 * 10**9
_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))  # ns of each unit


def extent(report: Report) -> str:
    """Return a text with samples, times, rate, and the start of the recording."""
    parts = amounts(report)
    if report.started_ns:
        started_s = report.started_ns // 10**9
        parts.append(f"{local(started_s)} {zone(started_s)}")
    return ", ".join(parts)


def amounts(report: Report) -> list[str]:
    """Return the samples, the CPU time, the duration and the rate, each as a text."""
    parts = [counted(report.total())]
    if CPU in report.weights:
        sampled, used = report.total(CPU), report.stats.number("cpu_charged_ns")
        of_used = f" of {duration(used)}" if used > sampled else ""
        parts.append(f"{duration(sampled)}{of_used} of CPU time")
    if report.duration_ns:
        is_long = report.duration_ns >= _LONG_NS
        parts.append(duration(report.duration_ns) if is_long else f"{report.duration_ns / 1e9:.1f} s")
    if report.rate_hz:
        parts.append(f"{report.rate_hz:g} Hz")
    return parts


def process_ids(report: Report) -> str:
    """Return the ids of the processes: "pid 7", "pids 7, 8 and 2 more"; "": no id is known."""
    pids = sorted({thread.pid for thread in report.threads if thread.pid is not None})
    return f"pid{'s' * (len(pids) > 1)} {listed(pids, _MAX_PIDS)}" if pids else ""


def label_texts(report: Report) -> list[str]:
    """Return the labels, each as "key=value"."""
    return [f"{key}={value}" for key, value in (report.labels or {}).items()]


def duration(ns: int) -> str:
    """Return a duration with three digits and its unit: "1.25 ms"; a long duration: "1 h 5 min"."""
    if ns >= _LONG_NS:
        return long_time(ns / 1e9)
    size, unit = next((row for row in _TIME_UNITS if ns >= row[0]), _TIME_UNITS[-1])
    return f"{ns / size:.3g} {unit}"


def losses(report: Report) -> list[str]:
    """Return one sentence for each kind of loss, such as "5 of 495 ticks missed"."""
    stats, total, share = report.stats, report.total(), report.stats.coverage
    whole = sum(stack.weights[0] for stack in report.stacks if stack.stop_reason == OUTERMOST)
    lost = [loss.text for loss in stats.losses(total, whole, report.rate_hz) if loss.number]
    if report.timeline and report.timeline.dropped:
        lost.append(f"{report.timeline.dropped} samples are not on the timeline, which is full")
    shown_ns = total * 1e9 / report.rate_hz if report.rate_hz else 0.0
    if share is not None and is_low(share, stats.number("cpu_charged_ns"), shown_ns):
        worth = f"samples stand for {100 * share:.0f} % of the CPU time: shares may be wrong"
        return [worth, *stats.texts("missing"), *lost]
    return [*stats.texts("missing"), *lost]
