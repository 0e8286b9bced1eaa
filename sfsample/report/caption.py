"""The caption of a report in a few words: its extent, and what the recording lost.

Every format that has a place for such text shows it.  It comes from the report alone; what is unknown is left
out.
"""

from sfsample.core.foreign import utc
from sfsample.report.report import CPU, OUTERMOST, Report

_MIN_COVERAGE = 0.9  # of the CPU time; less is a loss
_MAX_PIDS = 8  # of a recording, that are listed
_TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))  # in nanoseconds


def extent(report: Report) -> str:
    """Return how much was recorded, at which rate, and when."""
    parts = amounts(report)
    if report.started_ns:
        parts.append(utc(report.started_ns // 10**9, "%Y-%m-%d %H:%M:%S UTC"))
    return ", ".join(parts)


def amounts(report: Report) -> list[str]:
    """Return how much was recorded, and at which rate."""
    parts = [sample_count(report.total())]
    if CPU in report.weights:
        sampled, used = report.total(CPU), _used_cpu_ns(report)
        of_used = f" of {duration(used)}" if used > sampled else ""
        parts.append(f"{duration(sampled)}{of_used} of CPU time")
    if report.duration_ns:
        parts.append(f"{report.duration_ns / 1e9:.1f} s")
    if report.rate_hz:
        parts.append(f"{report.rate_hz:g} Hz")
    return parts


def process_ids(report: Report) -> str:
    """Return the ids of the processes, "" where they are unknown: "pid 7", "pids 7, 8 and 2 more"."""
    pids = sorted({thread.pid for thread in report.threads if thread.pid is not None})
    more = f" and {len(pids) - _MAX_PIDS} more" if len(pids) > _MAX_PIDS else ""
    return f"pid{'s' * (len(pids) > 1)} {', '.join(map(str, pids[:_MAX_PIDS]))}{more}" if pids else ""


def _used_cpu_ns(report: Report) -> int:
    """Return the CPU time that the threads used, sampled or not; 0: unknown."""
    used = (report.stats or {}).get("cpu_charged_ns")
    return max(used, 0) if isinstance(used, int) else 0


def coverage(report: Report) -> float | None:
    """Return the share of the CPU time that samples stand for, 0 to 1; None: unknown, or none was used."""
    sampled, used = (report.stats or {}).get("cpu_sampled_ns"), _used_cpu_ns(report)
    return min(1.0, max(0, sampled) / used) if used and isinstance(sampled, int) else None


def label_texts(report: Report) -> list[str]:
    """Return the labels, each as "key=value"."""
    return [f"{key}={value}" for key, value in (report.labels or {}).items()]


def _coverage_loss(report: Report) -> str:
    """Return a sentence if samples stand for much less than the CPU time that was used, or ''."""
    share = coverage(report)
    if share is None or share >= _MIN_COVERAGE:
        return ""
    return f"samples stand for {100 * share:.0f} % of the CPU time"


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
    texts = [f"{number} {what}" for number, what in counted if isinstance(number, int) and number]
    found = stats.get("missing")  # of a history: what the selection has not
    missing = map(str, found) if isinstance(found, list) else ()
    return [*missing, *filter(None, [_coverage_loss(report)]), *texts]
