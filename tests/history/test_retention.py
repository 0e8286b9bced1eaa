"""Tiers: merging keeps the sums, pinned slices go last, and a kill between two steps loses nothing."""

import os
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.history import retention
from sfsample.history.facts import Selection
from sfsample.history.files import HistoryFile
from sfsample.history.paths import file_names, remove
from sfsample.history.store import History
from tests.builders.histories import DAY_S, MIDNIGHT_S, by_service, minute, report

DAY_OVER_S = MIDNIGHT_S + DAY_S + 120
FIRST_MERGE_S, SECOND_MERGE_S = MIDNIGHT_S + 3 * DAY_S, MIDNIGHT_S + 15 * DAY_S
END_S = MIDNIGHT_S + 91 * DAY_S
numbers = st.integers(0, 2**40)
rows = st.lists(st.tuples(st.sampled_from(["a", "a;b", "a;c;d", "e"]), numbers, numbers, numbers), max_size=4)
slices = st.lists(
    st.tuples(st.integers(0, 1439), st.sampled_from("xy"), rows, st.sampled_from(["b1", "b2", None])),
    min_size=1,
    max_size=12,
)


def tiers_of(history: History) -> Counter[str]:
    return Counter(facts.tier for facts in history.slices())


@settings(max_examples=20)
@given(slices)
def test_merging_keeps_the_sums_of_each_stack_of_each_service(tmp_path_factory, added):
    history = History(str(tmp_path_factory.mktemp("history")))
    for at, service, stacks, build_id in added:
        closed = minute(at, service=service, build_id=build_id)
        history.add(closed._replace(report=report(*stacks)._replace(target=closed.report.target)))
    before, facts = by_service(history), history.slices()
    for now_s in (DAY_OVER_S, FIRST_MERGE_S, SECOND_MERGE_S):
        history.tidy(now_s)
        assert by_service(history) == before
        for name in ("samples", "duration_ns", "cpu_charged_ns", "cpu_sampled_ns", "ticks", "late_ticks"):
            assert sum(getattr(each, name) for each in history.slices()) == sum(
                getattr(each, name) for each in facts
            )
    assert list(history.findings()) == []
    assert history.problems == {}
    history.close()


def test_slices_become_ten_minutes_then_hours_then_nothing(tmp_path):
    history = History(str(tmp_path))
    for at in range(180):
        history.add(minute(at))
    history.add_gap("redis", MIDNIGHT_S + 10_800, MIDNIGHT_S + 20_000, "down")
    history.tidy(FIRST_MERGE_S - 1)
    assert tiers_of(history) == {"1m": 180}
    history.tidy(FIRST_MERGE_S)
    assert tiers_of(history) == {"10m": 18}
    history.tidy(SECOND_MERGE_S - 1)
    assert tiers_of(history) == {"10m": 18}
    history.tidy(SECOND_MERGE_S)
    assert tiers_of(history) == {"1h": 3}
    assert [(facts.begin_s, facts.end_s) for facts in history.slices()] == [
        (MIDNIGHT_S + 3600 * at, MIDNIGHT_S + 3600 * (at + 1)) for at in range(3)
    ]
    assert [gap.why for gap in history.gaps()] == ["down"]
    history.tidy(END_S - 1)
    assert history.report().total() == 900
    history.tidy(END_S)
    assert history.slices() == []
    assert not [name for name in os.listdir(tmp_path) if "sqlite" in name]


def test_what_differs_is_not_merged(tmp_path):
    history = History(str(tmp_path))
    for at, change in enumerate([{}, {"labels": {"a": "b"}}, {"service": "nginx"}, {}]):
        history.add(minute(at, **change))
    history.add(minute(5)._replace(report=report(("main", 1, 1, 1), rate_hz=99)))
    history.tidy(FIRST_MERGE_S)
    assert len(history.slices()) == 4
    assert len(history.slices(Selection("redis"))) == 3


def test_slices_about_a_change_of_build_and_pinned_ones_stay_as_they_are(tmp_path):
    history = History(str(tmp_path))
    for at in range(600):
        history.add(minute(at, build_id="old" if at < 300 else "new"))
    history.add(minute(700, build_id="new"))
    assert history.pin(["redis"], MIDNIGHT_S + 700 * 60, MIDNIGHT_S + 701 * 60) == 1
    for now_s in (FIRST_MERGE_S, SECOND_MERGE_S):
        history.tidy(now_s)
        pinned = [facts for facts in history.slices() if facts.pinned]
        begins = [(facts.begin_s - MIDNIGHT_S) / 60 for facts in pinned]
        assert begins == [*range(239, 361), 700]
        assert {facts.tier for facts in pinned} == {"1m"}
    assert history.report().total() == 601 * 5


def test_oldest_slices_go_first_and_pinned_ones_last(tmp_path):
    history = History(str(tmp_path))
    for at in range(0, 5 * 1440, 240):
        rows = [(f"main;f{at};g{n}", 1, n, n) for n in range(100)]
        history.add(minute(at, *rows))
    for at in (240, 1680):
        assert history.pin(["redis"], MIDNIGHT_S + at * 60, MIDNIGHT_S + at * 60 + 60) == 1
    history.close()
    size = sum(entry.stat().st_size for entry in os.scandir(tmp_path))
    history.tidy(MIDNIGHT_S + 5 * DAY_S - 1, keep_bytes=size * 3 // 4)
    minutes = [round((facts.begin_s - MIDNIGHT_S) / 60) for facts in history.slices()]
    assert minutes[:2] == [240, 1680]
    assert minutes[2] >= 1440
    assert minutes[-6:] == [*range(4 * 1440, 5 * 1440, 240)]
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) <= size * 3 // 4
    history.tidy(MIDNIGHT_S + 5 * DAY_S - 1, keep_bytes=1)
    minutes = [round((facts.begin_s - MIDNIGHT_S) / 60) for facts in history.slices()]
    assert minutes == [*range(4 * 1440, 5 * 1440, 240)]  # the last day stays


def test_identity_stays_until_the_file_is_made_anew(tmp_path):
    history, found = History(str(tmp_path)), []
    for step in (lambda: history.add(minute(0)), lambda: history.tidy(FIRST_MERGE_S),
                 lambda: remove(file_names(str(tmp_path))[0]) or history.add(minute(0))):  # fmt: skip
        step()
        with closing(HistoryFile(file_names(str(tmp_path))[0].path)) as file:
            found.append(file.identity)
    assert found[0] == found[1] != found[2]


def test_late_slice_joins_those_that_were_merged(tmp_path):
    history = History(str(tmp_path))
    for at in range(5):
        history.add(minute(at))
    history.tidy(FIRST_MERGE_S)
    history.add(minute(7))
    assert history.report().total() == 30
    history.tidy(FIRST_MERGE_S)
    assert history.report().total() == 30
    assert tiers_of(history) == {"10m": 1}


def change(history: History, statement: str, *values: object) -> None:
    """Change the file of the first day, as its writer would not."""
    history.close()
    with closing(sqlite3.connect(file_names(history.directory)[0].path)) as database, database:
        database.execute(statement, values)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["delete", "_insert", "compact"])
@pytest.mark.parametrize("nth", [1, 3])
def test_kill_at_any_step_loses_nothing_and_counts_nothing_twice(tmp_path, monkeypatch, step, nth):
    history = History(str(tmp_path))
    for at in range(30):
        history.add(minute(at))
    history.close()
    calls = count(1)

    def die(self, *values):
        if next(calls) == nth or step == "compact":
            raise Killed
        return original(self, *values)

    original = getattr(HistoryFile, step)
    with monkeypatch.context() as patch:
        patch.setattr(HistoryFile, step, die)
        with pytest.raises(Killed):
            history.tidy(FIRST_MERGE_S)
    assert history.report().total() == 150
    history.tidy(FIRST_MERGE_S)
    assert history.report().total() == 150
    assert tiers_of(history) == {"10m": 3}
    assert list(history.findings()) == []


def test_tidying_is_done_by_one_at_a_time(tmp_path):
    history = History(str(tmp_path))
    history.add(minute(0))
    fd = retention.lock(str(tmp_path), "")
    assert fd is not None
    history.tidy(FIRST_MERGE_S)
    assert tiers_of(history) == {"1m": 1}
    os.close(fd)
    history.tidy(FIRST_MERGE_S)
    assert tiers_of(history) == {"10m": 1}


def test_reader_that_has_opened_a_file_reads_it_to_its_end(tmp_path):
    history = History(str(tmp_path))
    history.add(minute(0))
    file = HistoryFile(file_names(str(tmp_path))[0].path)
    history.tidy(FIRST_MERGE_S)
    assert file.report([*file.facts()]).total() == 5
    file.close()
    assert history.report().total() == 5
