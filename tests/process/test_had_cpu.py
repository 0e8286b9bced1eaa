"""Whether a thread has a CPU, by the scheduler's figures: invented figures, one answer each."""

import pytest

from sfsample.core.snapshot import LastRun, SchedulerEvidence
from sfsample.process.had_cpu import (
    BeforeStop,
    RunQueueBalance,
    RunState,
    WakeUp,
    balance_of,
    classify,
    shared_switch,
)

WOKE = 10_000_000
OWN_RUN = b"se.exec_start : 9.9\nse.avg.last_update_time : 9000\n"
ON_CPU, PREEMPTED, WAITING = RunState.ON_CPU, RunState.PREEMPTED_BY_US, RunState.WAITING
ASLEEP, UNKNOWN = RunState.ASLEEP, RunState.UNKNOWN


@pytest.mark.parametrize(
    ("before", "after", "stopped_ns", "interrupted", "state"),  # where the kernel gives schedstat alone
    [
        (b"100 0 5", b"150 0 5", WOKE + 80_000, True, ON_CPU),  # it never left the CPU
        (b"100 0 5", b"100 90000 6", WOKE + 90_000, False, PREEMPTED),  # it has waited since sfsample woke up
        (b"100 0 5", b"100 500000 6", WOKE + 90_000, False, WAITING),  # it had waited before
        (b"100 0 5", b"5100 1000 6", WOKE + 300_000, True, ASLEEP),  # it went to sleep, and the stop woke it
        (b"100 0 5", b"5100 90000 6", WOKE + 600_000, False, WAITING),  # or another thread woke it meanwhile
        (b"100 0 5", b"100 90000 7", WOKE + 90_000, False, WAITING),
        (None, b"100 90000 7", WOKE, False, UNKNOWN),
        (b"\t12\nnon", b"\t13\nnon", WOKE, False, UNKNOWN),
    ],
)
def test_state_of_a_stopped_thread_by_its_counters(before, after, stopped_ns, interrupted, state):
    evidence = SchedulerEvidence(before, after, stopped_ns, interrupted)
    assert classify(BeforeStop(), evidence, WakeUp(WOKE)) is state
    assert state.counts_as_cpu == (state in {ON_CPU, PREEMPTED, UNKNOWN})


@pytest.mark.parametrize(
    ("times", "interrupted", "preempted", "state"),
    [
        (1, False, True, PREEMPTED),  # it has waited since it lost the CPU to sfsample
        (0, True, False, ON_CPU),
        (1, False, False, WAITING),  # it has waited since the request
        (1, True, True, ASLEEP),  # it went to sleep, and the stop woke it
        (2, False, True, WAITING),  # it has run since
    ],
)
def test_preemption_known_before_the_stop_is_believed(times, interrupted, preempted, state):
    after = b"150 9000 %d" % (5 + times)
    evidence = SchedulerEvidence(b"100 0 5", after, WOKE + 900_000, interrupted, preempted)
    assert classify(BeforeStop(), evidence, WakeUp(WOKE)) is state


@pytest.mark.parametrize(
    ("before", "state"),
    [
        (BeforeStop(b"1 0 5", on_cpu=True), ON_CPU),
        (BeforeStop(b"1 0 5", asleep=True, on_cpu=False), ASLEEP),
        (BeforeStop(b"1 0 5", asleep=True), ASLEEP),
        (BeforeStop(b"1 0 5", on_cpu=False, last_run=LastRun(b"9.8", 9000)), WAITING),
        (BeforeStop(b"1 0 5", on_cpu=False, last_run=LastRun(b"9.9", 9000)), PREEMPTED),
        (BeforeStop(b"1 0 5", last_run=LastRun(b"9.9", 9000)), PREEMPTED),
        (BeforeStop(b"1 0 5", last_run=LastRun(b"9.8", 9000)), UNKNOWN),
        (BeforeStop(b"0 0 0", last_run=LastRun(b"0.0", 0)), WAITING),  # born, it has had no CPU yet
        (BeforeStop(b"1 0 5"), UNKNOWN),
    ],
)
def test_state_of_a_thread_before_it_is_stopped(before, state):
    assert classify(before, None, WakeUp(WOKE, OWN_RUN)) is state


@pytest.mark.parametrize(
    ("earlier", "run", "later", "balance"),
    [
        (b"99 0 5", LastRun(b"7.1", 9000, 4), b"100 0 5", 1),
        (b"100 0 5", LastRun(b"7.1", 9000, 5), b"100 0 5", 0),
        (b"100 0 5", LastRun(b"7.1", 9000, 5), b"100 0 6", None),  # it was given a CPU meanwhile
        (b"100 0 5", LastRun(b"7.1", 9000), b"100 0 5", None),  # unknown
        (b"100 0 5", None, b"100 0 5", None),
        (b"\t12\nnon", LastRun(b"7.1", 9000, 4), b"\t12\nnon", None),
        (None, LastRun(b"7.1", 9000, 4), None, None),
    ],
)
def test_balance_is_times_put_on_a_cpu_less_times_taken_off(earlier, run, later, balance):
    assert balance_of(earlier, run, later) == balance


def test_balance_that_was_learned_says_whether_a_thread_is_on_a_cpu():
    balance = RunQueueBalance()
    assert balance.on_cpu(0) is None, "nothing is known yet"
    balance.learn(0, on_cpu=False)
    assert (balance.on_cpu(0), balance.on_cpu(1)) == (False, True)
    assert balance.on_cpu(None) is None
    assert balance.on_cpu(-1) is False, "the balance falls now and then"
    assert balance.on_cpu(0) is True
    balance.learn(-1, on_cpu=True)
    assert (balance.on_cpu(-1), balance.on_cpu(-2)) == (True, False)


def test_balance_that_never_says_on_cpu_is_doubted_after_eight_times():
    balance = RunQueueBalance()
    balance.learn(0, on_cpu=False)
    assert [balance.on_cpu(0) for _ in range(9)] == [False] * 8 + [None]


@pytest.mark.parametrize(
    ("run", "shared"),
    [
        (LastRun(b"7.1", 9000), True),  # it lost the CPU at the instant at which the other got one
        (LastRun(b"6.9", 9000), False),  # it was woken, or lost the CPU to a third thread
        (LastRun(b"7.1", 19000), False),  # it went to sleep, the other got its CPU, it was woken
    ],
)
def test_shared_switch_is_one_clock_reading_of_two_threads(run, shared):
    assert shared_switch(run, LastRun(b"7.1", 8000)) is shared


def test_thread_with_real_time_priority_has_no_load_average():
    assert shared_switch(LastRun(b"7.1", 9000), LastRun(b"7.1"))
    assert not shared_switch(LastRun(b"6.9", 9000), LastRun(b"7.1"))
