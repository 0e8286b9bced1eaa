"""Threads that run are due at every tick; many quiet threads take turns."""

from random import Random

import pytest

from sfsample.recording.due_threads import SampledThread, spread_of
from sfsample.recording.sample import BEGINNING, TickTime
from tests.builders.threads import thread as new_thread

TICK_NS = 10_000_000


def table_of(count: int) -> list[SampledThread]:
    return [SampledThread(new_thread(tid), BEGINNING, 0) for tid in range(count)]


def due_at(table: list[SampledThread], tick: int) -> list[SampledThread]:
    return [thread for thread in table if thread.due <= tick]


def turns(
    table: list[SampledThread], ticks: int, *, ran_ns: int = 0, wall: bool = True, random=lambda: 0.999
) -> list[list[int]]:
    """Return the ids of the threads that are due at each tick; each runs for `ran_ns` between two turns."""
    due_tids = []
    spread = spread_of(len(table))
    for tick in range(1, ticks + 1):
        due = due_at(table, tick)
        due_tids.append([thread.tid for thread in due])
        for thread in due:
            thread.ran_ns += ran_ns
            if ran_ns:
                thread.note_run(TickTime(tick, tick * TICK_NS), wall=wall)
            thread.give_next_turn(tick, spread, random)
    return due_tids


def test_few_threads_are_due_at_every_tick():
    assert turns(table_of(15), 100) == [list(range(15))] * 100


def test_running_threads_are_due_at_every_tick():
    assert turns(table_of(1000), 20, ran_ns=TICK_NS // 10) == [list(range(1000))] * 20


def test_many_idle_threads_take_turns():
    """The ticks between two turns are at most a quarter of the quiet ticks, and at most 64."""
    seen = turns(table_of(1000), 400)
    last: dict[int, int] = {}
    for tick, tids in enumerate(seen, 1):
        for tid in tids:
            assert tick - last.get(tid, tick - 1) <= max(1, min(64, last.get(tid, 0) // 4))
            last[tid] = tick
    assert seen[:4] == [list(range(1000))] * 4
    assert min(last.values()) > 400 - 65  # each thread has had a turn lately


@pytest.mark.parametrize(("ran_ns", "wall", "is_quiet"), [
    (TICK_NS // 500, True, True), (TICK_NS // 500, False, False), (TICK_NS // 300, True, False),
])  # fmt: skip
def test_thread_that_hardly_ever_runs_is_quiet_in_wall_mode(ran_ns, wall, is_quiet):
    """It is so by what it has used since it is quiet, not only since its last turn."""
    table = table_of(64)
    assert (len(turns(table, 100, ran_ns=ran_ns, wall=wall)[50]) < 64) == is_quiet


def test_thread_that_becomes_busy_is_due_at_every_tick_again():
    table = table_of(64)
    turns(table, 100)
    tick, due = next((tick, due) for tick in range(101, 200) if (due := due_at(table, tick)))
    for thread in due:
        thread.ran_ns += TICK_NS
        thread.note_run(TickTime(tick, tick * TICK_NS), wall=True)
        thread.give_next_turn(tick, spread_of(64), lambda: 0.999)
    assert {*due} <= {*due_at(table, tick + 1)}


def test_random_turns_spread_threads_over_ticks():
    seen = turns(table_of(1000), 1000, random=Random(1).random)  # noqa: S311

    assert 25 < sum(map(len, seen[500:])) / 500 < 40


def test_deferred_turns_remain_when_threads_become_few():
    table = table_of(64)
    turns(table, 40)

    assert {thread.tid for tick in range(41, 60) for thread in due_at(table[:3], tick)} == {0, 1, 2}
