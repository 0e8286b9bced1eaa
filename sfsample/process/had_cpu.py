"""Decides from the scheduler's figures in /proc whether a thread had a CPU, without a stop.

Only the pure function `classify` answers the question "does this sample count as CPU time?".  It uses three
facts.

* A thread that was put on a CPU exactly as often as it was taken off has no CPU.  The difference of the two
  counts, the *balance*, is 1 higher while the thread runs.  If a thread loses its CPU just before it sleeps,
  the kernel counts the loss, but not the return to a CPU.  So balances drift: `RunQueueBalance` learns the
  balance of each thread, and checks this balance now and then.
* When sfsample wakes up for a tick, it may take the CPU from a target thread.  The scheduler then stamps both
  threads with one clock reading.  So sfsample knows which thread lost its CPU to sfsample (`shared_switch`).
* /proc/PID/task/TID/schedstat counts the times that a thread was put on a CPU.  If the count has not changed
  between the request to stop and the stop, the thread was on a CPU all the time.

Without /proc/PID/task/TID/sched (before Linux 6.15: CONFIG_SCHED_DEBUG) only the third fact is known.

Source: Linux Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat"; kernel/sched/core.c,
__schedule (nvcsw, nivcsw); kernel/sched/stats.h, sched_info_depart and sched_info_arrive (pcount);
kernel/sched/debug.c, proc_sched_show_task; kernel/sched/fair.c, put_prev_entity and set_next_entity
(`exec_start` and the average's `last_update_time` of both threads come from one reading of the run queue's
clocks), requeue_delayed_entity and enqueue_entity (`last_update_time` is renewed when a sleeper is woken).
"""

import os
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from sfsample.core.snapshot import LastRun, SchedulerEvidence, ThreadSnapshot
from sfsample.process.proc_text import SchedStat, parse_last_run, parse_schedstat

# When sfsample wakes up and takes the CPU from a thread, the thread begins to wait at the same moment.
_SAME_MOMENT_NS = 100_000
_CHUNK_BYTES = 4096
_MAX_OFF_CPU_IN_A_ROW = 8  # answers "off CPU" in a row; then a stop checks the learned balance
_SELDOM = 100  # divisor: a thread that runs for less than 1/100 of the time runs seldom
_STAMP_STEP_NS = 2 * 1024  # two steps (1024 ns each) of the time stamps of load averages


class RunState(Enum):
    """The state of a thread when sfsample asked it to stop: with or without a CPU."""

    ON_CPU = "on a CPU"
    PREEMPTED_BY_US = "lost its CPU to sfsample"
    WAITING = "waits for a CPU"
    ASLEEP = "asleep"
    UNKNOWN = "unknown"

    @property
    def counts_as_cpu(self) -> bool:
        """True if a sample counts as CPU time; UNKNOWN also counts, as some kernels have no figures."""
        return self not in (RunState.WAITING, RunState.ASLEEP)


class BeforeStop(NamedTuple):
    """The facts that /proc gave about a thread just before the request to stop.  None: unknown."""

    counters: bytes | None = None  # text of schedstat
    asleep: bool = False
    balance: int | None = None  # balance of the thread, from `counters`
    on_cpu: bool | None = None  # True: the balance says that the thread has a CPU
    last_run: LastRun | None = None  # time when the thread last started or stopped running
    preempted_by_us: bool | None = None  # True: the thread had lost its CPU to sfsample


class WakeUp(NamedTuple):
    """The time when sfsample woke up for a tick, and the time when the kernel gave sfsample a CPU.

    `read_again` reads `own_run` once more: sfsample may have lost the CPU and got it back since.
    """

    at_ns: int  # time of the wake-up (perf_counter_ns)
    own_run: bytes | None = None  # text of sfsample's own `sched` file (`OwnRun`); None: unknown
    read_again: Callable[[], bytes | None] = lambda: None


def classify(before: BeforeStop, after: SchedulerEvidence | None, wake_up: WakeUp) -> RunState:
    """Return the state of a thread when it was asked to stop; `after` is None until the thread has stopped.

    If a thread was put on a CPU once between the request and the stop, it had waited for a CPU, or slept.
    The stack may have changed since the tick, unless the thread lost its CPU to sfsample and did not run.
    """
    if after is None:
        return _before_stop(before, wake_up)
    spent = _spent(after)
    if spent is None:
        return RunState.UNKNOWN
    if not spent.times:
        return RunState.ON_CPU
    if after.interrupted_sleep:
        return RunState.ASLEEP
    if spent.times != 1:
        return RunState.WAITING
    if after.preempted_by_us is not None:
        return RunState.PREEMPTED_BY_US if after.preempted_by_us else RunState.WAITING
    runnable_since_ns = after.stopped_ns - spent.ran_ns - spent.waited_ns
    same_moment = abs(runnable_since_ns - wake_up.at_ns) < _SAME_MOMENT_NS
    return RunState.PREEMPTED_BY_US if same_moment else RunState.WAITING


def _before_stop(before: BeforeStop, wake_up: WakeUp) -> RunState:
    if before.on_cpu:
        return RunState.ON_CPU
    if before.asleep:
        return RunState.ASLEEP
    if times_run(before.counters) == 0:  # a new thread, which has not had a CPU yet
        return RunState.WAITING
    run = before.last_run
    if run is not None and shared_switch(run, parse_last_run(wake_up.own_run)):
        return RunState.PREEMPTED_BY_US
    return RunState.WAITING if before.on_cpu is False else RunState.UNKNOWN


def shared_switch(one: LastRun, other: LastRun | None) -> bool:
    """Return True if one thread followed the other on a CPU, and neither thread was woken afterwards.

    The later thread took the CPU from the earlier thread, or the earlier thread fell asleep.
    """
    if other is None or one.at != other.at:
        return False
    if not other.renewed_ns:  # `other` has real-time priority: it has no load average, and waits for no CPU
        return True
    return abs(one.renewed_ns - other.renewed_ns) <= _STAMP_STEP_NS


# -- schedstat


def ran_ns(counters: bytes | None) -> int:
    """Return the CPU time of a thread in ns; 0 if the kernel does not count it."""
    stat = parse_schedstat(counters)
    return stat.ran_ns if stat else 0


def times_run(counters: bytes | None) -> int | None:
    """Return the number of times that a thread was put on a CPU; None: unknown."""
    stat = parse_schedstat(counters)
    return stat.times if stat else None


def held_ns(stop: ThreadSnapshot) -> int:
    """Return the time in ns for which a stop held a thread, without the thread's wait for a CPU.

    The wait that is subtracted may have begun before the request, which makes the difference too small.  A
    wait for a lock in the kernel is not subtracted, which makes the difference too large.  So the result has
    two limits: the time since sfsample saw the thread stopped, and since it last saw the thread run.
    """
    if stop.scheduler is None:
        return stop.stop_ns
    spent, (least_ns, most_ns) = _spent(stop.scheduler), stop.scheduler.held_ns
    waited_ns = spent.waited_ns if spent else 0
    return max(min(stop.stop_ns - waited_ns, most_ns), least_ns)


def _spent(evidence: SchedulerEvidence) -> SchedStat | None:
    """Return by how much the scheduler's counters grew between the request and the stop."""
    before, after = parse_schedstat(evidence.before), parse_schedstat(evidence.after)
    if before is None or after is None:
        return None
    return SchedStat(
        after.ran_ns - before.ran_ns, after.waited_ns - before.waited_ns, after.times - before.times
    )


# -- balances


def balance_of(earlier: bytes | None, run: LastRun | None, later: bytes | None) -> int | None:
    """Return the balance (times put on a CPU - times taken off) of a thread; None: unknown.

    sfsample read `run` between `earlier` and `later`.  If the thread got a CPU then, the balance is unknown.
    """
    times = times_run(later)
    if run is None or run.left < 0 or times is None or times != times_run(earlier):
        return None
    return times - run.left


class RunQueueBalance:
    """The learned balance of one thread while it is off a CPU."""

    __slots__ = ("_off_cpu", "_off_cpu_in_a_row")

    def __init__(self) -> None:
        self._off_cpu: int | None = None
        self._off_cpu_in_a_row = 0

    def on_cpu(self, balance: int | None) -> bool | None:
        """Return True if the thread has a CPU, by its present balance; None: only a stop can tell."""
        if balance is None or self._off_cpu is None:
            return None
        if balance > self._off_cpu:
            self._off_cpu_in_a_row = 0
            return True
        self._off_cpu_in_a_row += 1
        if self._off_cpu_in_a_row > _MAX_OFF_CPU_IN_A_ROW:
            self._off_cpu, self._off_cpu_in_a_row = None, 0
            return None
        self._off_cpu = balance
        return False

    def learn(self, balance: int | None, *, on_cpu: bool) -> None:
        """Learn from a balance at which the thread had a CPU (`on_cpu` True) or had none."""
        if balance is not None:
            self._off_cpu = balance - on_cpu


class OwnRun:
    """The time when the kernel gave the calling thread its CPU.  Only one thread may use an instance."""

    def __init__(self) -> None:
        self._fd = -1

    def read(self) -> bytes | None:
        """Return the text of /proc/thread-self/sched; None: there is no such file."""
        try:
            if self._fd < 0:
                self._fd = os.open("/proc/thread-self/sched", os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._fd, _CHUNK_BYTES, 0)
        except OSError:
            return None
        if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):  # policies without a load average
            return text.partition(b"se.avg.")[0]
        return text

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_seldom(ran_ns: int, of_ns: int) -> bool:
    """Return True if a thread runs seldom: for at most 1 percent of the time (`ran_ns` of `of_ns`)."""
    return ran_ns * _SELDOM <= of_ns
