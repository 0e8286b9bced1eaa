"""Who had a thread id when a copy was made."""

import os
import time

import pytest

from sfsample.process.perf_records import Born, Named
from sfsample.process.proc_text import Stat
from sfsample.recording.tid_history import TidHistory

LEADER, TID = 7, 8
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


def now_ns():
    """Return the beginning of a tick of the clock of start times, on the clock of records."""
    ahead = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()
    return (ahead // TICK_NS + 1_000_000) * TICK_NS - ahead + TICK_NS // 2


NOW = now_ns()
BEFORE, AFTER = NOW - 100 * TICK_NS, NOW + 100 * TICK_NS


def started(at_ns, name):
    ahead = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()
    empty = dict.fromkeys(Stat._fields, 0)
    return Stat(**{**empty, "name": name, "starttime": (at_ns + ahead) // TICK_NS})


@pytest.fixture
def proc():
    """What /proc would say, by id."""
    return {LEADER: started(BEFORE, "leader"), TID: started(BEFORE, "worker")}


@pytest.fixture
def holders(proc):
    return TidHistory(proc.get, lambda: "leader")


def test_who_has_had_it_all_the_time(holders, proc):
    thread = holders.thread(TID, NOW)
    assert (thread.name, thread.start_time) == ("worker", proc[TID].starttime)
    proc[TID] = proc[TID]._replace(name="other")
    assert holders.thread(TID, NOW).name == "worker"  # asked once
    holders.begin()
    assert holders.thread(TID, NOW) is thread
    assert thread.name == "other"


def test_who_had_it_before_it_was_given_again(holders, proc):
    proc[TID] = started(AFTER, "later")
    earlier = holders.thread(TID, NOW)
    assert (earlier.name, earlier.start_time) == ("leader", 0)
    holders.named(Named(NOW, LEADER, TID, "worker", program=False))
    holders.born(Born(AFTER, LEADER, TID, LEADER))
    later = holders.thread(TID, AFTER + 1)
    assert later is not earlier
    assert (later.name, later.start_time) == ("later", proc[TID].starttime)


@pytest.mark.parametrize("gone", [True, False])
def test_of_who_has_ended_the_kernel_has_told(holders, proc, gone):
    if gone:
        del proc[TID]
    else:
        proc[TID] = started(AFTER, "later")
    holders.born(Born(NOW, LEADER, TID, LEADER))
    assert holders.thread(TID, NOW + 1).name == "leader"  # a thread has the name of who created it
    holders.named(Named(NOW + 2, LEADER, TID, "one", program=False))
    holders.born(Born(NOW + 10 * TICK_NS, LEADER, TID, TID))
    holders.begin()
    thread = holders.thread(TID, NOW + 10 * TICK_NS + 1)
    assert (thread.name, thread.start_time) == ("one", started(NOW + 10 * TICK_NS, "").starttime)


def test_a_name_that_is_given_between_two_samples(holders):
    holders.born(Born(NOW, LEADER, TID, LEADER))
    thread = holders.thread(TID, NOW + 1)
    holders.named(Named(NOW + 2, LEADER, TID, "one", program=False))
    assert holders.thread(TID, NOW + 3) is thread
    assert thread.name == "one"


def test_the_clock_of_births_is_a_little_later_than_start_times(holders, proc):
    proc[TID] = started(NOW, "worker")
    holders.born(Born(NOW + TICK_NS, LEADER, TID, LEADER))
    assert holders.thread(TID, NOW + TICK_NS).name == "worker"
    holders.born(Born(NOW + 2 * TICK_NS, LEADER, TID, LEADER))
    assert holders.thread(TID, NOW + 2 * TICK_NS).name == "leader"


def test_a_birth_that_was_not_told(holders, proc):
    """Timers stood still meanwhile: who has the id now is asked when they run again."""
    proc[9], proc[10] = started(NOW, "nine"), started(NOW, "ten")
    for tid in (9, 10):
        holders.born(Born(NOW, LEADER, tid, LEADER))
    same, before = holders.thread(LEADER, NOW), holders.thread(TID, NOW)
    proc[TID] = started(NOW, "later")
    proc[9] = started(AFTER, "another")
    holders.untold()
    assert holders.known == 2
    holders.begin()
    del proc[TID], proc[9]
    after = holders.thread(TID, AFTER)
    assert after is not before
    assert after.name == "leader"  # it is not known what it was called
    assert holders.thread(9, AFTER).start_time == 0
    assert holders.thread(LEADER, AFTER) is same
    assert holders.thread(10, AFTER).name == "ten"


def test_nothing_is_kept_for_who_has_ended(holders):
    holders.thread(TID, NOW)
    holders.born(Born(NOW, LEADER, 9, LEADER))
    holders.named(Named(NOW, LEADER, 10, "ten", program=False))
    assert (holders.known, len(holders)) == (3, 1)
    holders.keep_only({LEADER})
    assert (holders.known, len(holders)) == (0, 0)
