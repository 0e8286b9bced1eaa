"""The caption of a report in a few words: its extent, and what the recording lost.

Every format that has a place for such text shows it.  It comes from the report alone; what is unknown is left
out.
"""

from time import gmtime, strftime

from sfsample.report.report import CPU, OUTERMOST, Report

_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))  # in nanoseconds


def extent(report: Report) -> str:
    """Return how much was recorded, at which rate, and when."""
    parts = [sample_count(report.total())]
    if CPU in report.weights:
        parts.append(f"{duration(report.total(CPU))} of CPU time")
    if report.duration_ns:
        parts.append(f"{report.duration_ns / 1e9:.1f} s")
    if report.rate_hz:
        parts.append(f"{report.rate_hz:g} Hz")
    if report.started_ns:
        parts.append(strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(report.started_ns // 10**9)))
    return ", ".join(parts)


def sample_count(count: int) -> str:
    """Return a number of samples with its noun: "1 sample", "2,000 samples"."""
    return f"{count:,} sample{'' if count == 1 else 's'}"


def duration(ns: int) -> str:
    """Return a duration with three digits and its unit: "1.25 ms"."""
    size, unit = next((row for row in _TIME_UNITS if ns >= row[0]), _TIME_UNITS[-1])
    return f"{ns / size:.3g} {unit}"


def losses(report: Report) -> list[str]:
    """Return one sentence for each kind of loss, such as "5 of 495 ticks missed"."""
    stats = report.stats or {}
    captures = stats.get("captures")
    failed = captures.get("failed") if isinstance(captures, dict) else 0
    total = report.total()
    truncated = sum(stack.weights[0] for stack in report.stacks if stack.stop_reason != OUTERMOST)
    counted = (
        (truncated, f"of {total} samples have a truncated stack"),
        (stats.get("late_ticks"), f"of {stats.get('ticks')} ticks missed"),
        (failed, "captures failed"),
        (report.timeline and report.timeline.dropped, "samples have no place on the timeline: it is full"),
    )
    return [f"{number} {what}" for number, what in counted if isinstance(number, int) and number]
