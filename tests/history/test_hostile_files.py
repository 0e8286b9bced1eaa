"""Files that are damaged, hostile, of another user or of a newer sfsample are skipped, with a sentence."""

import os
import random
import sqlite3
import subprocess
from contextlib import closing, suppress
from errno import EROFS

import pytest

from sfsample.errors import BadInput, SfsampleError
from sfsample.history import files
from sfsample.history.paths import check_owner, file_names
from sfsample.history.store import History
from tests.builders.histories import DAY_S, MIDNIGHT_S, minute


@pytest.fixture
def history(tmp_path):
    """Return a history of two days, of which the second is to be damaged."""
    history = History(str(tmp_path))
    for at in range(5):
        history.add(minute(at))
        history.add(minute(1440 + at, *((f"main;f{at};g{n}", n, 1, 1) for n in range(50))))
    history.add_gap("redis", MIDNIGHT_S + DAY_S, MIDNIGHT_S + DAY_S + 5, "down")
    history.close()
    return history


def path(history: History) -> str:
    return file_names(history.directory)[1].path


def change(history: History, *statements: str) -> None:
    with closing(sqlite3.connect(path(history), isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def check_skipped(history: History, what: str) -> None:
    """Check that the first day is there, and that both a question and `check` name the second."""
    total = history.report().total()
    assert total == 25
    [problem] = history.problems
    assert path(history) in problem
    assert what in problem
    assert any(path(history) in finding for finding in history.findings())
    assert list(map(str, history.tidy(MIDNIGHT_S + 4 * DAY_S) or ())) == []  # it goes on


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("PRAGMA user_version=2", "another version of sfsample"),
        ("CREATE TRIGGER t AFTER INSERT ON slice BEGIN DELETE FROM gap; END", "not the tables of a history"),
        ("CREATE VIEW v AS SELECT * FROM slice", "not the tables of a history"),
        ("DROP TABLE stacks", "not the tables of a history"),
        ("ALTER TABLE gap ADD COLUMN more TEXT", "not the tables of a history"),
        ("UPDATE slice SET begin_s = 'x'", "begin_s is not valid"),
        ("UPDATE slice SET begin_s = 1e300", "begin_s is not valid"),
        ("UPDATE slice SET begin_s = -1", "begin_s is not valid"),
        ("UPDATE slice SET end_s = 1", "ends before it begins"),
        ("UPDATE slice SET samples = -1", "samples is not valid"),
        ("UPDATE slice SET samples = 1.5", "samples is not valid"),
        ("UPDATE slice SET samples = samples + 1", "samples instead of"),
        ("UPDATE slice SET service = NULL", "service is not valid"),
        ("UPDATE slice SET service = x'ff'", "service is not valid"),
        ("UPDATE slice SET service = CAST(x'ff' AS TEXT)", "damaged"),
        ("UPDATE slice SET labels = '[]'", "labels are not valid"),
        ("UPDATE slice SET labels = '{\"a\": 1}'", "labels are not valid"),
        ("UPDATE slice SET labels = replace(hex(zeroblob(9000)), '0', '[')", "labels are not valid"),
        ("UPDATE slice SET weights = 'lines'", "weights is not valid"),
        ("UPDATE slice SET rate_hz = 0", "rate_hz is not valid"),
        ("UPDATE slice SET tier = '5m'", "tier is not valid"),
        ("UPDATE stacks SET rows = 'x'", "not a blob"),
        ("UPDATE stacks SET rows = zeroblob(50)", "damaged"),
        ("UPDATE stacks SET stats = zeroblob(50)", "damaged"),
        ("UPDATE names SET batch = zeroblob(50)", "damaged"),
        ("DELETE FROM names", "a stack is missing"),
        ("DELETE FROM stacks", "no stacks"),
    ],
)
def test_wrong_contents_are_skipped_with_a_sentence(history, statement, what):
    change(history, statement)
    check_skipped(history, what)


def test_wrong_gap_is_skipped(history):
    change(history, "UPDATE gap SET why = NULL")
    assert history.gaps() == []
    assert list(history.problems) == [f"{path(history)}: a gap is not valid"]
    assert any("a gap is not valid" in finding for finding in history.findings())


def test_file_that_is_no_database_is_skipped(history):
    with open(path(history), "wb") as file:
        file.write(b"no database, but long enough to have a header of a hundred bytes" * 99)
    check_skipped(history, "not a database")


def test_file_without_a_commit_is_empty(history):
    with open(path(history), "wb"):
        pass
    assert history.report().total() == 25
    assert list(history.findings()) == []
    assert history.problems == {}
    history.add(minute(1440))
    assert history.report().total() == 30


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_is_found_or_without_effect(history, seed):
    """Bytes of a file are changed: a question has an answer, and no other exception leaves."""
    chance, name = random.Random(seed), path(history)  # noqa: S311 - a test
    with open(name, "rb") as file:
        data = bytearray(file.read())
    whole = history.report().total()
    for _ in range(chance.choice((1, 5, 100))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with open(name, "wb") as file:
        file.write(data[: chance.choice((len(data), chance.randrange(len(data))))])
    with suppress(SfsampleError):
        assert 25 <= history.report().total() <= whole
        assert len(history.slices()) <= 10
        assert len(history.gaps()) <= 1
    findings = list(history.findings())
    assert findings or history.problems == {}


def test_statement_that_would_not_end_is_damage(history, monkeypatch):
    monkeypatch.setattr(files, "_MAX_STEPS", 3)
    monkeypatch.setattr(files, "_STEP", 10)
    assert history.report().total() == 0
    assert all("interrupted" in problem for problem in history.problems)


def test_symbolic_link_is_refused(history, tmp_path):
    name = path(history)
    os.rename(name, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", name)
    assert history.report().total() == 25
    assert list(history.problems) == [f"{name}: a symbolic link, not a regular file"]
    with pytest.raises(SfsampleError, match="a symbolic link"):
        history.add(minute(1440))


def test_directory_that_is_a_link_is_refused(tmp_path):
    os.mkdir(tmp_path / "real")
    os.symlink(tmp_path / "real", tmp_path / "link")
    with pytest.raises(SfsampleError, match="a symbolic link, not a directory"):
        History(str(tmp_path / "link"))


def test_what_others_may_write_is_refused(history, tmp_path):
    os.chmod(path(history), 0o666)  # noqa: S103
    assert history.report().total() == 25
    assert "other users may write to it" in next(iter(history.problems))
    os.chmod(tmp_path, 0o777)  # noqa: S103
    with pytest.raises(SfsampleError, match="other users may write to it"):
        History(str(tmp_path))


def test_what_belongs_to_another_user_is_refused(tmp_path, monkeypatch):
    name = tmp_path / "file"
    name.touch(mode=0o600)
    check_owner(str(name))
    owner = os.lstat(name).st_uid
    monkeypatch.setattr(files.os, "geteuid", lambda: owner + 1)
    if owner == 0:  # root may have written it
        check_owner(str(name))
        os.chown(name, 12345, -1)
    with pytest.raises(BadInput, match="belongs to another user"):
        check_owner(str(name))


@pytest.mark.parametrize("mode", ["fifo", "directory"])
def test_file_that_is_none_is_skipped(history, mode):
    name = path(history)
    os.unlink(name)
    (os.mkfifo if mode == "fifo" else os.mkdir)(name)
    assert history.report().total() == 25
    assert list(history.problems) == [f"{name}: something else, not a regular file"]


def set_aside(history: History) -> list[str]:
    return sorted(name for name in os.listdir(history.directory) if ".damaged-" in name)


@pytest.mark.parametrize("begin", [0, 4096 * 3])
def test_damaged_file_is_set_aside_before_it_is_written(history, begin):
    size = os.path.getsize(path(history))
    with open(path(history), "r+b") as file:  # all of it, or what is behind the first pages
        file.seek(begin)
        file.write(random.Random(1).randbytes(size - begin))  # noqa: S311 - no secret
    writer = History(history.directory)
    writer.last_end_s("redis", MIDNIGHT_S + DAY_S + 600)  # as a watch does
    for at in (1450, 1451):
        writer.add(minute(at))
    writer.close()
    [aside] = set_aside(writer)
    assert [aside in problem for problem in writer.problems] == [True]
    assert os.path.getsize(os.path.join(history.directory, aside)) == size
    reader = History(history.directory)
    assert reader.report().total() == 25 + 10
    assert not reader.problems
    [finding] = reader.findings()
    assert aside in finding
    assert reader.report().total() == 35


def test_what_is_left_of_a_file_that_was_set_aside_can_be_read(history, tmp_path):
    change(
        history, "UPDATE stacks SET rows = zeroblob(50) WHERE id = 2"
    )  # no row of another slice is touched
    os.rename(path(history), f"{path(history)}.damaged-20261124T100000Z")
    [finding] = history.findings()
    commands = finding.partition("slices: ")[2].rpartition(";")[0].replace("OTHER", f"{tmp_path}/other")
    subprocess.run(commands, shell=True, check=True)  # noqa: S602 - as a user would
    left = History(f"{tmp_path}/other")
    assert left.report().total() == sum(range(50)) * 4
    assert len(left.problems) == 1


@pytest.mark.parametrize(
    "failure", [OSError(EROFS, "Read-only"), sqlite3.OperationalError("database is locked")]
)
def test_check_is_not_the_remedy_where_it_would_find_nothing(history, monkeypatch, failure):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(files.HistoryFile, "insert", fail)
    with pytest.raises(SfsampleError) as raised:
        history.add(minute(9))
    assert raised.value.help == ("choose another directory with --history",)


def test_name_of_a_directory_need_not_be_utf8(tmp_path):
    history = History(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    history.add(minute(0))
    assert history.report().total() == 5
    assert history.problems == {}


def test_file_that_becomes_damaged_while_it_is_written_is_set_aside(history):
    history.add(minute(1450))
    with open(path(history), "r+b") as file:
        file.write(random.Random(2).randbytes(os.path.getsize(path(history))))  # noqa: S311 - no secret
    history._close_writer()  # or its next page is read from the file
    history.add(minute(1451))
    assert len([name for name in set_aside(history) if not name.endswith("-wal")]) == 1
    assert History(history.directory).report().total() == 25 + 5


@pytest.mark.parametrize(("limits", "left"), [({"keep_for_s": DAY_S}, 0), ({"keep_bytes": 120_000}, 2)])
def test_what_was_set_aside_goes_by_age_and_first_for_the_size(history, limits, left):
    with open(path(history), "wb") as file:
        file.write(b"1" * 100_000)
    history.add(minute(1450))
    assert len(set_aside(history)) == 1
    history.tidy(MIDNIGHT_S + 2 * DAY_S, keep_for_s=9 * DAY_S)
    assert len(set_aside(history)) == 1
    history.tidy(MIDNIGHT_S + 3 * DAY_S, **{"keep_for_s": 9 * DAY_S, **limits})
    assert set_aside(history) == []
    assert len(file_names(history.directory)) == left


def test_file_of_another_version_is_not_set_aside(history):
    change(history, "PRAGMA user_version=99")
    with pytest.raises(SfsampleError, match="written by another version of sfsample"):
        history.add(minute(1450))
    assert set_aside(history) == []
