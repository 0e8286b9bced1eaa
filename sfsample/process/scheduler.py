"""What the scheduler's counters say about a thread.

Law: pure; where the counters are not those of schedstat (time run, time waited, number of times run), nothing
is concluded from them.

Source: Linux Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
"""

from collections.abc import Callable
from typing import NamedTuple

from sfsample.core.snapshot import SchedStat, Scheduled, ThreadSnapshot, parse_schedstat

# A thread from which we took the processor by waking up became runnable at that very moment, this exactly.
_SAME_NS = 100_000


def ran_ns(counters: bytes | None) -> int:
    """Return the CPU time of a thread; 0 where the kernel does not keep it."""
    counted = parse_schedstat(counters)
    return counted.ran_ns if counted else 0


class WakeUp(NamedTuple):
    """When we woke up for a tick, on the clock of perf_counter_ns, and when we were given a processor.

    `run` is what process/last_run.py reads; None: not known.  `again` reads it once more: sfsample may have
    lost the CPU since.
    """

    at_ns: int
    run: bytes | None = None
    again: Callable[[], bytes | None] = lambda: None


def had_processor(scheduled: Scheduled | None, woken: WakeUp) -> bool:
    """Whether a stopped thread had a processor when it was asked to stop, or until we took it.

    When it has been put on a processor no more often since, it had one all the time.  If it has, it waited
    for one, or slept, and is not where it was.  It counts then only if it lost the processor to us, and has
    not run since.
    """
    counted = _counted(scheduled)
    if scheduled is None or counted is None:
        return True  # not known
    ran, waited, times = counted
    if not times:
        return True
    if times != 1 or scheduled.slept:
        return False
    if scheduled.lost is not None:
        return scheduled.lost
    runnable_since = scheduled.stopped_ns - ran - waited
    return abs(runnable_since - woken.at_ns) < _SAME_NS


def held_ns(stop: ThreadSnapshot) -> int:
    """Return for how long a thread stood at most, less its own wait for a processor on which to stop.

    What it had waited before it was asked to stop is in that wait, too; so no less than since it was seen to
    stand.  And no more than since it was seen not to: it may have waited for a lock in the kernel.
    """
    if stop.scheduled is None:
        return stop.stop_ns
    counted, (least_ns, most_ns) = _counted(stop.scheduled), stop.scheduled.kept_ns
    waited_ns = counted.waited_ns if counted else 0
    return max(min(stop.stop_ns - waited_ns, most_ns), least_ns)


def _counted(scheduled: Scheduled | None) -> SchedStat | None:
    """Return what was counted until a thread had stopped."""
    before = parse_schedstat(scheduled.before) if scheduled else None
    after = parse_schedstat(scheduled.after) if scheduled else None
    if before is None or after is None:
        return None
    return SchedStat(*(new - old for old, new in zip(before, after, strict=True)))
