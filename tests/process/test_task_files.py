"""Small files of threads that are kept open."""

import os
from collections.abc import Iterator
from errno import ESRCH
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.process.task_files import TaskFiles


@pytest.fixture
def tasks(tmp_path) -> Iterator[tuple[Path, TaskFiles]]:
    """Give threads 1, 2 and 3, whose files are ordinary ones."""
    for tid in "123":
        (tmp_path / tid).mkdir()
        (tmp_path / tid / "schedstat").write_text(f"{tid} 0 1\n")
        (tmp_path / tid / "stat").write_text(f"{tid} (x) R")
    directory = os.open(tmp_path, os.O_RDONLY)
    files = TaskFiles(directory)
    yield tmp_path, files
    files.keep_only(())
    os.close(directory)


def thread(tid: int, still: bytes | None) -> SimpleNamespace:
    return SimpleNamespace(tid=tid, still=still)


def test_a_thread_is_unchanged_if_its_open_file_says_what_it_said(tasks):
    path, files = tasks
    before = [thread(tid, files.read(tid, "schedstat")) for tid in (1, 2)]
    (path / "2" / "schedstat").write_text("2 0 2\n")
    never_opened, not_known = thread(3, b"3 0 1\n"), thread(1, None)

    same, others = files.unchanged("schedstat", [*before, never_opened, not_known])

    assert (same, others) == (before[:1], [before[1], never_opened, not_known])
    assert files.unchanged("status", before) == ([], before)


def test_a_thread_whose_file_was_closed_is_not_known_to_be_unchanged(tasks):
    _, files = tasks
    before = thread(1, files.read(1, "schedstat"))
    files.forget(1)

    assert files.unchanged("schedstat", [before]) == ([], [before])


def test_every_file_of_a_thread_is_closed_with_it(tasks):
    _, files = tasks
    kept = TaskFiles.kept_open
    for tid in (1, 2, 3):
        files.read(tid, "schedstat")
    files.read(2, "stat")

    assert (files.known(), TaskFiles.kept_open - kept) == ([1, 2, 3], 4)
    files.keep_only([1, 3])
    assert (files.known(), TaskFiles.kept_open - kept) == ([1, 3], 2)
    assert files.read(2, "stat") == b"2 (x) R", "it is opened anew"


def test_who_is_given_the_id_of_another_is_told_apart(tasks, monkeypatch):
    """A file that is there, or not, says nothing; that a thread has ended does."""
    _, files = tasks
    assert files.holder(1) is None
    files.read(1, "stat")
    first, pread, kept = files.holder(1), os.pread, TaskFiles.kept_open
    assert files.read(1, "no such file") is None
    assert (files.holder(1), TaskFiles.kept_open) == (first, kept), "its other files stay open"

    def ended_once(*arguments):
        monkeypatch.setattr(os, "pread", pread)
        raise ProcessLookupError(ESRCH, "ended")

    monkeypatch.setattr(os, "pread", ended_once)
    assert files.read(1, "stat") is not None
    assert files.holder(1) not in (None, first)
    files.keep_only([2])
    assert files.holder(1) is None
