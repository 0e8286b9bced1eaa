"""What a report lost, in a few words: shown by every format that has a place for it.

Law: drawn from the report alone; empty when nothing was lost.
"""

from sfsample.report.report import OUTERMOST, Report


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
