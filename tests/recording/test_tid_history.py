"""A copy belongs to the thread that had the id at that instant, as the records say."""

import os
import time

import pytest

from sfsample.process.perf_records import Born, Named
from sfsample.process.proc_text import Stat
from sfsample.recording.tid_history import TidHistory
from tests.builders.threads import thread

LEADER, TID = 7, 8
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


def now_ns():
    """Return the middle of a clock tick of start times, in ns of the clock of records."""
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
    """What /proc says, by thread id."""
    return {LEADER: started(BEFORE, "leader"), TID: started(BEFORE, "worker")}


@pytest.fixture
def history(proc):
    return TidHistory(lambda tid: thread(tid, stat=lambda: proc.get(tid)), lambda: "leader")


def test_proc_is_read_once_for_a_thread_without_a_birth_record(history, proc):
    thread = history.thread_of(TID)
    assert (thread.name, thread.start_time) == ("worker", proc[TID].starttime)
    proc[TID] = proc[TID]._replace(name="other")
    assert history.thread_of(TID) is thread
    assert thread.name == "worker"


def test_threads_with_one_id_in_turn_are_two(history, proc):
    earlier = history.thread_of(TID)
    proc[TID] = started(AFTER, "still later")  # what /proc says is of another thread
    history.note_birth(Born(NOW, LEADER, LEADER, TID, LEADER))
    history.note_name(Named(NOW, LEADER, TID, "later", program=False))
    later = history.thread_of(TID)
    assert later is not earlier
    assert (later.name, later.start_time) == ("later", started(NOW, "").starttime)


@pytest.mark.parametrize("gone", [True, False])
def test_records_name_a_thread_that_has_ended(history, proc, gone):
    if gone:
        del proc[TID]
    else:
        proc[TID] = started(AFTER, "later")
    history.note_birth(Born(NOW, LEADER, LEADER, TID, LEADER))
    assert history.thread_of(TID).name == "leader"  # a thread begins with its creator's name
    history.note_name(Named(NOW + 2, LEADER, TID, "renamed", program=False))
    history.note_birth(Born(NOW + 10 * TICK_NS, LEADER, LEADER, TID, TID))
    thread = history.thread_of(TID)
    assert (thread.name, thread.start_time) == ("renamed", started(NOW + 10 * TICK_NS, "").starttime)


def test_new_name_between_two_samples_is_noted(history):
    history.note_birth(Born(NOW, LEADER, LEADER, TID, LEADER))
    thread = history.thread_of(TID)
    history.note_name(Named(NOW + 2, LEADER, TID, "renamed", program=False))
    assert history.thread_of(TID) is thread
    assert thread.name == "renamed"


def test_ended_threads_are_dropped(history):
    history.thread_of(TID)
    history.note_birth(Born(NOW, LEADER, LEADER, 9, LEADER))
    history.note_name(Named(NOW, LEADER, 10, "ten", program=False))
    assert (len(history.tids), len(history._threads)) == (3, 1)
    history.keep_only({LEADER})
    assert (len(history.tids), len(history._threads)) == (0, 0)
