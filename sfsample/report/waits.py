"""What the stacks of a report wait for: the class of each stack, and the classes as first frames.

The frame of a wait has kind "w", and its class in `raw`.  The class of a stack is that of its outermost wait:
waits further inside belong to the thread that holds the lock (`--blame`).
"""

from collections.abc import Sequence

from sfsample.report.merge import rebuild
from sfsample.report.report import Report, ReportStack
from sfsample.symbolize.named_frame import NamedFrame

_RUNNING = NamedFrame("[no wait]", "[no wait]")


def wait_class(frames: Sequence[NamedFrame]) -> str | None:
    """Return the class of the wait of a stack, innermost frame first; None: no wait is known."""
    return next((frame.raw for frame in reversed(frames) if frame.kind == "w"), None)


def wait_of(report: Report, stack: ReportStack) -> str | None:
    """Return the class of the wait of a stack of a report."""
    return wait_class([report.frames[at] for at in stack.frames])


def by_wait(report: Report) -> Report:
    """Return the report with the class of the wait as the first frame of each stack (`--by wait`)."""

    def with_class(frames: Sequence[NamedFrame]) -> list[NamedFrame]:
        name = wait_class(frames)
        return [*frames, NamedFrame(f"[{name}]", f"[{name}]") if name else _RUNNING]

    return rebuild(report, with_class)
