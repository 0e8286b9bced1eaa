"""`watch` keeps its slices and gaps in a history, unless it is to write files only."""

import json
from calendar import timegm
from errno import EAGAIN
from unittest.mock import Mock

import pytest

from sfsample.cli import main
from sfsample.cli.terminal import say_at
from sfsample.errors import NoSpace, SfsampleError
from sfsample.history import RETENTION, Retention
from sfsample.history.facts import Slice
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.watching import history_sink
from sfsample.watching.history_sink import HistorySink
from sfsample.watching.own_program import own_program, prune_words
from tests.builders.reports import from_lines
from tests.builders.watches import watch_of

BEGIN_S = 1_790_000_000.0


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "history"


@pytest.fixture
def sink(directory, monkeypatch):
    started = []
    monkeypatch.setattr(history_sink.subprocess, "Popen", lambda words, **_: started.append(words) or Ended())
    sink = HistorySink(str(directory), RETENTION, say_at)
    sink.started = started
    yield sink
    sink.close()


class Ended:
    pid = 2**22 + 1  # of no process

    def poll(self):
        return 0


def closed(minute, *lines, services=("bank",)):
    begin_s = BEGIN_S + 60 * minute
    report = from_lines(*lines)._replace(target={"build_id": "beef"}, labels={"team": "shop"})
    whole, *parts = (Slice(begin_s, begin_s + 60, name, report) for name in ("all", *services))
    return whole, parts


def test_slices_and_gaps_are_kept(sink, directory, capsys):
    assert sink.add(*closed(0, "p;main;a 7")) == "history of bank"
    sink.add(*closed(1, "p;main;b 5"))
    sink.add_gap("bank", BEGIN_S + 120, BEGIN_S + 180, "the target ended")
    sink.close()
    assert main(["history", "list", "--json", "--history", str(directory)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["samples"] for row in document["slices"]] == [7, 5]
    assert {row["labels"]["team"] for row in document["slices"]} == {"shop"}
    assert [gap["why"] for gap in document["gaps"]] == ["the target ended"]
    assert {facts.build_id for facts in History(str(directory)).slices()} == {"beef"}


def test_slices_of_a_time_and_of_the_own_services_are_pinned(sink, directory, monkeypatch):
    other = History(str(directory))
    other.add(Slice(BEGIN_S, BEGIN_S + 60, "shop", from_lines("p;main;a 7")))
    for minute in range(5):
        sink.add(*closed(minute, "p;main;a 7"))
    monkeypatch.setattr(history_sink.time, "time", lambda: BEGIN_S + 300)
    assert sink.pin(119) == 2
    assert sink.pin(130) == 3
    pinned = [(facts.service, facts.begin_s) for facts in other.slices() if facts.pinned]
    assert pinned == [("bank", BEGIN_S + 60 * minute) for minute in (2, 3, 4)]
    other.close()


def test_slice_of_a_service_that_the_last_one_has_not_is_pinned_too(sink, directory, monkeypatch):
    """With --busiest, other processes may be the busiest now."""
    sink.add(*closed(0, "p;main;a 7", services=("web", "bank")))
    sink.add(*closed(1, "p;main;a 7", services=("bank",)))
    monkeypatch.setattr(history_sink.time, "time", lambda: BEGIN_S + 120)
    assert sink.pin(119) == 3
    assert [facts.pinned for facts in History(str(directory)).slices()] == [True] * 3


def test_slice_of_the_day_before_is_pinned_too(sink, directory, monkeypatch):
    midnight_s = (BEGIN_S // 86400 + 1) * 86400
    for begin_s in (midnight_s - 30, midnight_s + 30):
        sink.add(*closed((begin_s - BEGIN_S) / 60, "p;main;a 7"))
    monkeypatch.setattr(history_sink.time, "time", lambda: midnight_s + 90)
    assert sink.pin(70) == 2
    assert len([*directory.glob("*.sqlite")]) == 2


def test_size_and_oldest_day_are_metrics(sink, directory):
    assert sink.metrics() == {}
    directory.mkdir()
    for name, size in {"2026-11-02.sqlite": 7, "2026-11-24.sqlite": 20, "2026-11-24.sqlite-wal": 4}.items():
        (directory / name).write_bytes(bytes(size))
    oldest_s = timegm((2026, 11, 2, 0, 0, 0))
    assert sink.metrics() == {"sfsample_history_bytes": {"": 31},
                              "sfsample_history_oldest_timestamp_seconds": {"": oldest_s}}  # fmt: skip


def test_each_service_has_slices_and_gaps_of_its_own(sink, directory):
    sink.add_gap("busiest", BEGIN_S, BEGIN_S + 60, "no such process")
    assert sink.add(*closed(1, "p;main;a 7", services=("web", "bank"))) == "history of web, bank"
    sink.add_gap("busiest", BEGIN_S + 120, BEGIN_S + 180, "the target ended")
    history = History(str(directory))
    assert sorted(facts.service for facts in history.slices()) == ["bank", "web"]
    assert [gap.service for gap in history.gaps()] == ["busiest", "bank", "web"]


def test_service_that_another_watcher_keeps_does_not_cost_the_others(sink, directory, capsys):
    other = History(str(directory))
    other.add_gap("web", BEGIN_S, BEGIN_S + 60, "it watches this one")
    for minute in (1, 2):
        assert sink.add(*closed(minute, "p;main;a 7", services=("web", "bank"))) == "history of bank"
    assert capsys.readouterr().err.count("another watch writes the history of web") == 1
    with pytest.raises(SfsampleError, match="another watch writes the history of web"):
        sink.add(*closed(3, "p;main;a 7", services=("web",)))
    other.close()
    assert [facts.service for facts in History(str(directory)).slices()] == ["bank", "bank"]


def test_time_in_which_no_watcher_ran_is_a_gap(sink, directory):
    sink.add(*closed(0, "p;main;a 7"))
    sink.close()  # or killed
    later = HistorySink(str(directory), RETENTION, say_at)
    later.add(*closed(5, "p;main;a 7"))
    later.add(*closed(6, "p;main;a 7"))
    later.close()
    [gap] = History(str(directory)).gaps()
    assert gap[:2] == (BEGIN_S + 60, BEGIN_S + 300)
    assert gap.why == "sfsample did not watch it"


def test_slices_that_could_not_be_written_are_a_gap(sink, directory, monkeypatch):
    sink.add(*closed(0, "p;main;a 7"))
    with monkeypatch.context() as full:
        full.setattr(History, "add", Mock(side_effect=NoSpace("full")))
        for minute in (1, 2):
            with pytest.raises(NoSpace):
                sink.add(*closed(minute, "p;main;a 7"))
            sink.add_gap("bank", BEGIN_S + 120, BEGIN_S + 125, "late")
    sink.add(*closed(3, "p;main;a 7"))
    [gap] = History(str(directory)).gaps()
    assert (gap[:2], gap.why) == ((BEGIN_S + 60, BEGIN_S + 180), "slices could not be written")


def test_old_slices_are_merged_by_a_child_once_an_hour(sink, directory):
    sink.add(*closed(0, "p;main;a 7"))
    sink.add(*closed(1, "p;main;a 7"))
    assert sink.started == [own_program(*prune_words(str(directory), RETENTION))]


def test_child_keeps_what_the_flags_of_the_watch_say(directory):
    watch = watch_of("1", "--history", str(directory), "--keep-for", "7d", "--keep-bytes", "2G")
    [(sink, _)] = watch._recorder._sinks
    assert sink._retention == Retention(keep_for=7 * 86400.0, keep_bytes=2 << 30)


def test_child_that_cannot_be_started_costs_no_slice(sink, directory, monkeypatch, capsys):
    refusals = [BlockingIOError(EAGAIN, "Resource temporarily unavailable")] * 2
    start = history_sink.subprocess.Popen
    monkeypatch.setattr(history_sink.subprocess, "Popen", Mock(side_effect=[*refusals, Ended()]))
    for minute in range(3):
        assert sink.add(*closed(minute, "p;main;a 7")) == "history of bank"
    assert history_sink.subprocess.Popen.call_count == 3
    said = capsys.readouterr().err
    assert said.count("cannot start: sfsample history prune: Resource temporarily unavailable") == 1
    monkeypatch.setattr(history_sink.subprocess, "Popen", start)
    sink.add(*closed(3, "p;main;a 7"))
    assert not sink.started, "the next one is due in an hour"


def test_directory_that_cannot_be_used_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    sink = HistorySink(str(tmp_path / "file"), RETENTION, say_at)
    with pytest.raises(SfsampleError) as failure:
        sink.prepare()
    assert failure.value.help


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ([], ["HistorySink"]),
        (["--output-dir", "{}"], ["FileSink"]),
        (["--output-dir", "{}", "--history", "{}/h"], ["FileSink", "HistorySink"]),
        (["--output-dir", "{}", "--no-history"], ["FileSink"]),
        (["--history", "{}/h"], ["HistorySink"]),
    ],
)
def test_slices_go_to_the_history_unless_files_are_asked_for(tmp_path, flags, kinds):
    words = [word.format(tmp_path) for word in flags]
    watch = watch_of("-n", "bank", *words)
    assert [type(sink).__name__ for sink, _ in watch._recorder._sinks] == kinds


def test_damaged_file_is_said_once_and_a_new_one_goes_on(sink, directory, capsys):
    sink.add(*closed(0, "p;main;a 7"))
    sink.close()
    [name] = file_names(str(directory))
    with open(name.path, "wb") as file:
        file.write(b"no database" * 1000)
    for minute in (1, 2):
        assert sink.add(*closed(minute, "p;main;a 7")) == "history of bank"
    first, *rest = capsys.readouterr().err.splitlines()
    assert f"{name.path}: damaged: file is not a database: renamed to {name.path}.damaged-" in first
    assert rest == [f"  sfsample history check --history {directory} shows what is wrong"]
    assert main(["history", "check", "--history", str(directory)]) == 1
    assert "a damaged file" in capsys.readouterr().out
