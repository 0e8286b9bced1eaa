"""Decides if a recording is a result."""

from collections.abc import Sequence

from sfsample.core.snapshot import Capture
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.recording.stats import Stats

_MAX_SHOWN_PROBLEMS = 5


def check_result(stats: Stats, pids: Sequence[int]) -> None:
    """Raise if the recording is no result; without samples it is one if no thread ran, or after Ctrl-C."""
    check_begun(stats, pids)
    if stats.samples or stats.ended_by == "signal":
        return
    targets = ", ".join(map(str, pids))
    if stats.captures[Capture.FAILED]:
        problems = [text for text, _ in stats.problems.most_common(_MAX_SHOWN_PROBLEMS)]
        raise SfsampleError(f"nothing could be collected: every capture of {targets} failed", *problems)
    if stats.ticks == stats.late_ticks:
        raise SfsampleError(f"nothing could be collected: every tick for {targets} was missed",
                            "the machine is overloaded; try a lower --rate")  # fmt: skip


def check_begun(stats: Stats, pids: Sequence[int]) -> None:
    """Raise NoSuchProcess if every process ended before the first sample."""
    if stats.ended_by == "target" and stats.ticks <= 1 and not stats.samples:
        targets = ", ".join(map(str, pids))
        raise NoSuchProcess(pids[0], f"process has ended before the first sample: {targets}")
