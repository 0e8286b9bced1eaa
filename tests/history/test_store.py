"""The store: what is added is there, also for other processes, and whatever ends the writer."""

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.errors import SfsampleError
from sfsample.history.facts import Selection, Slice, facts_of
from sfsample.history.files import HistoryFile
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.report.merge import merge
from sfsample.report.report import WEIGHTS
from sfsample.report.time_slices import TIME_UNIT_NS as UNIT
from tests.builders.histories import DAY_S, MIDNIGHT_S, delete, minute, report, sums
from tests.builders.reports import from_lines


def test_slice_is_kept_as_it_was_added(tmp_path):
    history = History(str(tmp_path / "new" / "history"))
    closed = minute(3, ("main;a", 5, 50, 40), ("main;b", 2, 20, 0), labels={"env": "prod"}, build_id="ab12")
    history.add(closed)
    [facts] = history.slices()
    assert facts[1:7] == (closed.begin_s, closed.end_s, "redis", {"env": "prod"}, "ab12", "web1")
    assert (facts.rate_hz, facts.mode, facts.samples) == (19.0, "wall", 7)
    assert (facts.coverage, facts.ticks, facts.late_ticks, facts.tier, facts.pinned) == (
        0.5,
        1140,
        3,
        "1m",
        False,
    )
    again = history.report()
    assert sums(again) == sums(closed.report)
    assert (again.duration_ns, again.rate_hz, again.host) == (60 * 10**9, 19.0, "web1")
    assert again.started_ns == round(closed.begin_s * 1e9)
    assert history.problems == {}


def test_reports_are_merged_as_merge_does(tmp_path):
    history = History(str(tmp_path))
    added = [minute(at, ("main;a", at, 7 * at, at), (f"main;f{at % 3}", 1, 1, 1)) for at in range(1, 9)]
    added.append(minute(24 * 60 + 1))  # the next day is another file
    for closed in added:
        history.add(closed)
    expected, found = merge([closed.report for closed in added]), history.report()
    assert sums(found) == sums(expected)
    assert found.duration_ns == expected.duration_ns
    assert found.stats.having(problems=[]) == expected.stats.having(problems=[])


def test_weights_that_a_report_does_not_have_are_not_invented(tmp_path):
    history = History(str(tmp_path))
    history.add(Slice(MIDNIGHT_S, MIDNIGHT_S + 60, "a", from_lines("p;f 3")))
    assert history.report().weights == ("samples",)
    assert history.report().total() == 3


def test_minute_without_cpu_time_does_not_hide_that_of_others(tmp_path):
    history = History(str(tmp_path))
    history.add(minute(0))
    idle = minute(1, ("main;poll", 5, 50, 0))
    stacks = tuple(stack._replace(weights=stack.weights[:2]) for stack in idle.report.stacks)
    history.add(idle._replace(report=idle.report._replace(stacks=stacks, weights=WEIGHTS[:2])))
    found = history.report()
    assert [found.total(name) for name in WEIGHTS] == [10, 100 * UNIT, 40 * UNIT]


def test_stacks_of_threads_that_differ_by_id_are_one(tmp_path):
    history = History(str(tmp_path))
    for at, tid in enumerate((7, 8)):
        history.add(minute(at)._replace(report=report(("main", 1, 1, 1), tid=tid)))
    assert [stack.weights for stack in history.report().stacks] == [(2, 2 * UNIT, 2 * UNIT)]


def test_selection_is_by_service_time_label_and_build(tmp_path):
    history = History(str(tmp_path))
    for at in range(10):
        history.add(minute(at, service="ab"[at % 2], labels={"n": str(at // 5)}, build_id=f"b{at % 2}"))

    def minutes(**selection):
        found = history.slices(Selection(**selection))
        return [round((facts.begin_s - MIDNIGHT_S) / 60) for facts in found]

    assert minutes() == [*range(10)]
    assert minutes(service="a") == [0, 2, 4, 6, 8]
    assert minutes(begin_s=MIDNIGHT_S + 120, end_s=MIDNIGHT_S + 240) == [2, 3]
    assert minutes(begin_s=MIDNIGHT_S + 130, end_s=MIDNIGHT_S + 140) == [2]  # it is within the slice
    assert minutes(labels={"n": "1"}, service="b") == [5, 7, 9]
    assert minutes(build_id="b1", end_s=MIDNIGHT_S + 200.0) == [1]
    assert minutes(service="c") == []


@given(st.lists(st.floats(0, 600), min_size=2, max_size=5, unique=True))
def test_times_next_to_each_other_have_each_slice_once(edges):
    edges.sort()
    kept = facts_of(minute(0)._replace(begin_s=0.0, end_s=1.0))
    windows = [Selection(begin_s=low, end_s=high) for low, high in pairwise(edges)]
    inside = [window for window in windows if window.end_s - window.begin_s > 1]
    assert sum(window.has(kept) for window in inside) <= 1


def test_gaps_are_kept(tmp_path):
    history = History(str(tmp_path))
    history.add_gap("redis", MIDNIGHT_S, MIDNIGHT_S + 90, "watcher was down")
    assert [tuple(gap) for gap in history.gaps()] == [
        (MIDNIGHT_S, MIDNIGHT_S + 90, "redis", "watcher was down")
    ]
    assert history.gaps(Selection("other")) == []
    assert history.gaps(Selection(begin_s=MIDNIGHT_S + 100)) == []


def test_second_watcher_of_a_service_is_refused(tmp_path):
    first, second = History(str(tmp_path)), History(str(tmp_path))
    first.add(minute(0))
    with pytest.raises(SfsampleError, match="another watch writes the history of redis"):
        second.add(minute(1))
    second.add(minute(1, service="nginx"))
    first.close()
    second.add(minute(1))
    assert len(second.slices()) == 3


def test_nobody_else_can_read_it(tmp_path):
    history = History(str(tmp_path / "history"))
    history.add(minute(0))
    assert os.stat(tmp_path / "history").st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path / "history")} == {0o600}


@pytest.mark.parametrize(
    "change",
    [
        {"begin_s": float("nan")},
        {"begin_s": -1.0},
        {"end_s": 1e300},
        {"end_s": 0.0},
        {"service": "\ud800"},
        {"service": "x" * 100_000},
        {"report": report(("main", 1, 1, 1))._replace(labels={"a": 1})},
        {"report": report(("main", 1 << 64, 1, 1))},
    ],
)
def test_slice_that_cannot_be_kept_is_one_error_and_the_next_is_kept(tmp_path, change):
    history = History(str(tmp_path))
    with pytest.raises(SfsampleError, match="cannot"):
        history.add(minute(0)._replace(**change))
    history.add(minute(1))
    assert [facts.samples for facts in history.slices()] == [5]
    assert list(history.findings()) == []


def test_directory_that_was_removed_is_made_again(tmp_path):
    history = History(str(tmp_path / "h"))
    history.add(minute(0))
    (tmp_path / "h").rename(tmp_path / "elsewhere")
    history.add(minute(1))
    assert len(history.slices()) == 1


def test_deleted_slices_are_gone_and_others_stay(tmp_path):
    history = History(str(tmp_path))
    for at in range(6):
        history.add(minute(at, (f"main;f{at}", at + 1, 1, 1), service="ab"[at % 2]))
    assert delete(history, Selection("a")) == 3
    assert {facts.service for facts in history.slices()} == {"b"}
    assert history.report().total() == 2 + 4 + 6


def test_file_of_a_day_that_was_removed_is_made_again(tmp_path):
    history = History(str(tmp_path))
    history.add(minute(0))
    for path in tmp_path.glob("*.sqlite*"):
        path.unlink()
    assert history.slices() == []
    history.add(minute(9))
    assert len(history.slices()) == 1


# -- crashes, full disks, other processes

WRITER = """
import sys
from sfsample.history.files import HistoryFile
from sfsample.history.paths import file_names
from sfsample.history.store import History
from tests.builders.histories import minute
history = History(sys.argv[1])
for at in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
    history.add(minute(at, *((f"main;f{at % 40};g{n}", n + 1, 10, 5) for n in range(20))))
    print(at, flush=True)
"""


def start_writer(directory, first, count):
    command = [sys.executable, "-c", WRITER, str(directory), str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_writer_loses_no_slice_that_was_acknowledged(tmp_path):
    acknowledged: set[int] = set()
    for lives in range(8):
        with start_writer(tmp_path, first := max(acknowledged, default=-1) + 2, 1000) as writer:
            assert writer.stdout is not None
            for _ in range(1 + 7 * lives):
                acknowledged.add(int(writer.stdout.readline()))
            time.sleep(0.0007 * lives)  # another instant within the next slice each time
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().splitlines(keepends=True)
            acknowledged |= {int(line) for line in rest if line.endswith("\n")}
        assert first in acknowledged
        history = History(str(tmp_path))
        assert list(history.findings()) == []
        found = {round((facts.begin_s - MIDNIGHT_S) / 60) for facts in history.slices()}
        assert acknowledged <= found
        assert history.report().total() == len(found) * 210
        assert history.problems == {}
        acknowledged |= found


def test_many_read_while_one_writes(tmp_path):
    with start_writer(tmp_path, 0, 40) as writer:
        assert writer.stdout is not None
        while line := writer.stdout.readline():
            for reader in [History(str(tmp_path)) for _ in range(4)]:
                assert reader.report().total() >= (int(line) + 1) * 210
                assert reader.problems == {}
            assert list(reader.findings()) == []
    assert writer.returncode == 0
    assert len(History(str(tmp_path)).slices()) == 40


def test_full_disk_is_one_error_and_what_was_kept_stays(tmp_path):
    """The limit of the size of a file makes writes fail as a full disk does, after a part of them."""
    history = History(str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = 0
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
        with pytest.raises(SfsampleError, match="cannot write") as failure:  # noqa: PT012 - until it fails
            for kept in range(10_000):
                history.add(minute(kept, *((f"main;f{kept};g{n}", n, 1, 1) for n in range(50))))
        assert failure.value.help == ("free some space",)
        assert kept > 5
        assert len(history.slices()) == kept
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    history.add(minute(kept))
    assert len(history.slices()) == kept + 1
    assert list(history.findings()) == []


def test_two_watchers_write_one_file(tmp_path):
    histories = [History(str(tmp_path)) for _ in range(3)]
    for at in range(30):
        histories[at % 3].add(minute(at, (f"main;f{at}", 1, 1, 1), service=f"s{at % 3}"))
    for at in range(3):
        assert histories[0].report(Selection(f"s{at}")).total() == 10
    with suppress(FileNotFoundError):
        histories[0].tidy(MIDNIGHT_S + DAY_S)
    assert len(histories[0].slices()) == 30


def test_service_that_is_let_go_is_free_and_another_may_write_it(tmp_path):
    first, second = History(str(tmp_path)), History(str(tmp_path))
    first.add(minute(0, service="cc1"))
    first.add(minute(0, service="redis"))
    first.let_go(keep=["redis"])
    assert [path.name for path in tmp_path.glob(".*")] == [".lock"]
    second.add(minute(1, service="cc1"))
    with pytest.raises(SfsampleError, match="another watch"):
        second.add(minute(1))


def test_cpu_time_by_second_is_kept_until_slices_are_merged(tmp_path):
    history = History(str(tmp_path))
    for at in range(2):
        closed = minute(at)
        stats = closed.report.stats.having(cpu_ms_by_second=[at, 950, 0])
        history.add(closed._replace(report=closed.report._replace(stats=stats)))
    _, line = history.time_slices(Selection())
    assert [each.cpu_ms for each in line.slices] == [(0, 950, 0), (1, 950, 0)]
    history.tidy(MIDNIGHT_S + 4 * DAY_S)
    _, line = history.time_slices(Selection())
    assert [each.cpu_ms for each in line.slices] == [()]
    assert "cpu_ms_by_second" not in history.report().stats.document


def test_what_a_file_leaves_out_is_not_selected(tmp_path):
    history = History(str(tmp_path))
    for at in range(6):
        history.add(minute(at))
        history.add(minute(at, service="nginx"))
    [name] = file_names(str(tmp_path))
    with closing(HistoryFile(name.path)) as file:
        everything = [*file.facts()]
        for service in (None, "redis", "none"):
            for begin, end in pairwise((0.0, 29.0, 30.0, 60.0, 100.0, 110.0, 300.0, 900.0)):
                chosen = Selection(service, MIDNIGHT_S + begin, MIDNIGHT_S + end)
                found = [*file.facts(chosen=chosen)]
                assert [*filter(chosen.has, found)] == [*filter(chosen.has, everything)]
                assert len(found) <= 2 * (2 + (end - begin) / 60)
