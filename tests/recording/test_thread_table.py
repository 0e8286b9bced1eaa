"""Whose turn it is."""

from random import Random

from sfsample.process.thread import Thread
from sfsample.recording.sample import BEGINNING, TickTime
from sfsample.recording.thread_table import SampledThread, ThreadTable


def roster(count: int, random=lambda: 0.999) -> ThreadTable:
    made = ThreadTable(random)
    for tid in range(count):
        made.add(SampledThread(Thread(tid), BEGINNING, 0), 1)
    return made


def turns(made: ThreadTable, ticks: int, *, idle: bool = True) -> list[list[int]]:
    """Look at whoever is due; an idle thread has not run since its last turn."""
    seen = []
    for tick in range(1, ticks + 1):
        due = made.due(tick)
        seen.append([thread.tid for thread in due])
        for thread in due:
            thread.idle_ticks = thread.idle_ticks + tick - thread.counted.number if idle else 0
            thread.counted = TickTime(tick, 0)
            made.give_next_turn([thread], tick)
    return seen


def test_few_threads_are_looked_at_at_every_tick():
    assert turns(roster(15), 100) == [list(range(15))] * 100


def test_threads_that_run_are_looked_at_at_every_tick():
    assert turns(roster(1000), 20, idle=False) == [list(range(1000))] * 20


def test_many_idle_threads_take_turns():
    """Never longer than a quarter of the time for which they have been idle, and with a limit."""
    seen = turns(roster(1000), 400)
    last: dict[int, int] = {}
    for tick, tids in enumerate(seen, 1):
        for tid in tids:
            assert tick - last.get(tid, tick - 1) <= max(1, min(64, last.get(tid, 0) // 4))
            last[tid] = tick
    assert seen[:4] == [list(range(1000))] * 4
    assert min(last.values()) > 400 - 65  # nobody is forgotten


def test_chance_spreads_the_looks():
    seen = turns(roster(1000, random=Random(1).random), 1000)  # noqa: S311

    assert 25 < sum(map(len, seen[500:])) / 500 < 40


def test_those_that_have_ended_have_no_turn():
    made = roster(3)
    made.drop(next(thread for thread in made if thread.tid == 1))

    assert turns(made, 2) == [[0, 2], [0, 2]]
    new, gone = made.compare([2, 7])
    assert (new, [thread.tid for thread in gone]) == ([7], [0])


def test_of_few_threads_none_of_which_is_new_all_are_known_at_once():
    made = roster(15)
    assert made.few(1) == [], "they are new"
    turns(made, 3)
    assert [thread.tid for thread in made.few(4)] == list(range(15))
    made.add(SampledThread(Thread(15), BEGINNING, 0), 4)
    assert made.few(4) == made.few(5) == []


def test_when_they_have_become_few_those_that_were_put_off_still_have_their_turns():
    made = roster(64)
    turns(made, 40)
    for thread in list(made)[3:]:
        made.drop(thread)
    put_off = [tick for tick in range(41, 60) if not made.few(tick)]

    assert put_off
    assert {thread.tid for tick in put_off for thread in made.due(tick)} == {0, 1, 2}
