"""What the scheduler's counters say about a thread.

Law: pure; where the counters are not those of schedstat (time run, time waited, number of times run), nothing
is concluded from them.

Source: Linux Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
"""

from sfsample.model import Scheduled

# A thread from which we took the processor by waking up became runnable at that very moment, this exactly.
_SAME_NS = 100_000


def ran_ns(counters: bytes | None) -> int:
    """Return the CPU time of a thread; 0 where the kernel does not keep it."""
    fields = (counters or b"").split()
    return int(fields[0]) if len(fields) == 3 else 0


def had_processor(scheduled: Scheduled | None, woke_ns: int) -> bool:
    """Whether a stopped thread had the processor when we came, or until we took it.

    When it has been put on a processor no more often since, it had one all the time.  If it has, it waited
    for one (the second counter), and we know since when: if that is when we woke up, and it did not sleep, it
    lost it to us.
    """
    if scheduled is None or scheduled.before is None or scheduled.after is None:
        return True
    before, after = scheduled.before.split(), scheduled.after.split()
    if len(before) != 3 or len(after) != 3:
        return True  # not known
    ran, waited, times = (int(b) - int(a) for a, b in zip(before, after, strict=True))
    if not times:
        return True
    runnable_since = scheduled.stopped_ns - ran - waited
    return times == 1 and abs(runnable_since - woke_ns) < _SAME_NS and not scheduled.slept
