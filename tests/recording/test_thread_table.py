"""Threads that run are due at every tick; many idle threads take turns."""

from random import Random

from sfsample.recording.sample import BEGINNING, TickTime
from sfsample.recording.thread_table import SampledThread, ThreadTable
from tests.builders.threads import thread as new_thread


def table_of(count: int, random=lambda: 0.999) -> ThreadTable:
    table = ThreadTable(random)
    for tid in range(count):
        table.add(SampledThread(new_thread(tid), BEGINNING, 0), 1)
    return table


def turns(table: ThreadTable, ticks: int, *, idle: bool = True) -> list[list[int]]:
    """Return the ids of the threads that are due at each tick; `idle`: no thread runs."""
    due_tids = []
    for tick in range(1, ticks + 1):
        due = table.due(tick)
        due_tids.append([thread.tid for thread in due])
        for thread in due:
            thread.idle_ticks = thread.idle_ticks + tick - thread.counted.number if idle else 0
            thread.counted = TickTime(tick, 0)
            table.give_next_turn([thread], tick)
    return due_tids


def test_few_threads_are_due_at_every_tick():
    assert turns(table_of(15), 100) == [list(range(15))] * 100


def test_running_threads_are_due_at_every_tick():
    assert turns(table_of(1000), 20, idle=False) == [list(range(1000))] * 20


def test_many_idle_threads_take_turns():
    """The ticks between two turns are at most a quarter of the idle ticks, and at most 64."""
    seen = turns(table_of(1000), 400)
    last: dict[int, int] = {}
    for tick, tids in enumerate(seen, 1):
        for tid in tids:
            assert tick - last.get(tid, tick - 1) <= max(1, min(64, last.get(tid, 0) // 4))
            last[tid] = tick
    assert seen[:4] == [list(range(1000))] * 4
    assert min(last.values()) > 400 - 65  # each thread has had a turn lately


def test_random_turns_spread_threads_over_ticks():
    seen = turns(table_of(1000, random=Random(1).random), 1000)  # noqa: S311

    assert 25 < sum(map(len, seen[500:])) / 500 < 40


def test_ended_threads_have_no_turn():
    table = table_of(3)
    table.drop(next(thread for thread in table if thread.tid == 1))

    assert turns(table, 2) == [[0, 2], [0, 2]]
    new, gone = table.compare([2, 7])
    assert (new, [thread.tid for thread in gone]) == ([7], [0])


def test_few_returns_all_threads_when_none_is_new():
    table = table_of(15)
    assert table.all_if_always_due(1) == [], "all are new"
    turns(table, 3)
    assert [thread.tid for thread in table.all_if_always_due(4)] == list(range(15))
    table.add(SampledThread(new_thread(15), BEGINNING, 0), 4)
    assert table.all_if_always_due(4) == table.all_if_always_due(5) == []


def test_deferred_turns_remain_when_threads_become_few():
    table = table_of(64)
    turns(table, 40)
    for thread in list(table)[3:]:
        table.drop(thread)
    busy_ticks = [tick for tick in range(41, 60) if not table.all_if_always_due(tick)]

    assert busy_ticks
    assert {thread.tid for tick in busy_ticks for thread in table.due(tick)} == {0, 1, 2}
