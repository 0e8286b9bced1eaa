"""Who has a processor, and who lost it to us, without stopping anybody.

Law: a thread that has a processor was put on one once more than it was taken off; one that has none, as
often.  (Seldom, when a thread loses its processor just before it goes to sleep, the kernel counts only the
latter.  So the balance is learned, and what it says is checked now and then.)  One that lost its processor to
us, and has not been woken since, says that it ran last when we say that we were given it, on the scheduler's
own clock: that is exact.  None where the kernel does not tell (before 6.15 /proc/PID/task/TID/sched was left
out without CONFIG_SCHED_DEBUG).

Source: Linux kernel/sched/core.c, __schedule (nvcsw, nivcsw); kernel/sched/stats.h, sched_info_depart,
sched_info_arrive (pcount); kernel/sched/debug.c, proc_sched_show_task; kernel/sched/fair.c, put_prev_entity
and set_next_entity: `exec_start` and the average's `last_update_time` of both come from one reading of the
run queue's clocks; requeue_delayed_entity, enqueue_entity: the latter is renewed when a sleeper is woken.
"""

import os
from collections.abc import Iterable

from sfsample.core.snapshot import LastRun, parse_schedstat

_CHUNK = 4096
_CHECK = 8  # times in a row that a thread has no processor; then that is looked at by a stop
_STEP_NS = 2 * 1024  # averages are kept in steps of 1024 ns, which begin anywhere


def runs_of(counters: bytes | None) -> int | None:
    """Return how often a thread was put on a processor; None: not known."""
    counted = parse_schedstat(counters)
    return counted.times if counted else None


def balance_of(earlier: bytes | None, run: LastRun | None, later: bytes | None) -> int | None:
    """Return how much more often a thread was put on a processor than taken off; None: not known.

    When `run` was read, between its counters, which must agree.
    """
    times = runs_of(later)
    if run is None or run.left < 0 or times is None or times != runs_of(earlier):
        return None
    return times - run.left


class Balances:
    """What is known of the balances of threads."""

    def __init__(self) -> None:
        self._without: dict[int, int] = {}  # that of a thread that has no processor
        self._in_a_row: dict[int, int] = {}  # how often we said that it has none

    def has_processor(self, tid: int, balance: int | None) -> bool | None:
        """Whether a thread with this balance has a processor; None: it remains to be seen."""
        without = self._without.get(tid)
        if balance is None or without is None:
            return None
        if balance > without:
            self._in_a_row.pop(tid, None)
            return True
        said = self._in_a_row[tid] = self._in_a_row.get(tid, 0) + 1
        if said > _CHECK:
            del self._without[tid], self._in_a_row[tid]
            return None
        self._without[tid] = balance
        return False

    def learn(self, tid: int, balance: int | None, *, had: bool) -> None:
        """Note whether a thread with this balance had a processor."""
        if balance is not None:
            self._without[tid] = balance - had

    def keep_only(self, tids: Iterable[int]) -> None:
        """Forget other threads."""
        alive = set(tids)
        self._without = {tid: balance for tid, balance in self._without.items() if tid in alive}
        self._in_a_row = {tid: times for tid, times in self._in_a_row.items() if tid in alive}


def changed_places(one: LastRun, other: LastRun | None) -> bool:
    """Whether one thread took the processor from the other, and neither has been woken since.

    The other one may have gone to sleep, and left it to us.
    """
    return other is not None and one.at == other.at and abs(one.renewed_ns - other.renewed_ns) <= _STEP_NS


class OwnLastRun:
    """That of the calling thread, which must be the only one that asks."""

    def __init__(self) -> None:
        self._fd = -1

    def read(self) -> bytes | None:
        """Return what tells when this thread was given the processor that it has (`parse_last_run`)."""
        try:
            if self._fd < 0:
                self._fd = os.open("/proc/thread-self/sched", os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, _CHUNK, 0)
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
