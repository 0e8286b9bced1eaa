"""What a report is of, and what it lost, in a few words: shown by every format that has a place for it.

Law: drawn from the report alone; what is not known is not mentioned.
"""

from time import gmtime, strftime

from sfsample.report.report import CPU, OUTERMOST, Report

_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


def title(report: Report) -> str:
    """Return the names of the processes."""
    return ", ".join(dict.fromkeys(thread.process for thread in report.threads)) or "nothing"


def about(report: Report) -> str:
    """Return how much was recorded, and when."""
    parts = [samples(report.total())]
    if CPU in report.weights:
        parts.append(f"{span(report.total(CPU))} of CPU time")
    if report.duration_ns:
        parts.append(f"{report.duration_ns / 1e9:.1f} s")
    if report.rate_hz:
        parts.append(f"{report.rate_hz:g} Hz")
    if report.started_ns:
        parts.append(strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(report.started_ns // 10**9)))
    return ", ".join(parts)


def samples(count: int) -> str:
    """Return a number of samples in words."""
    return f"{count:,} sample{'' if count == 1 else 's'}"


def span(ns: int) -> str:
    """Return a length of time with three digits."""
    size, unit = next((one for one in _UNITS if ns >= one[0]), _UNITS[-1])
    return f"{ns / size:.3g} {unit}"


def losses(report: Report) -> list[str]:
    """Return lines such as "5 of 495 ticks missed"."""
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
