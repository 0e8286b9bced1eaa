"""The /proc files of threads stay open, and never answer for another thread."""

import os
from collections.abc import Iterator
from errno import ESRCH
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.process.task_files import TaskFiles


@pytest.fixture
def tasks(tmp_path) -> Iterator[tuple[Path, TaskFiles]]:
    """Return a directory with regular files for threads 1, 2 and 3, and its TaskFiles."""
    for tid in "123":
        (tmp_path / tid).mkdir()
        (tmp_path / tid / "schedstat").write_text(f"{tid} 0 1\n")
        (tmp_path / tid / "stat").write_text(f"{tid} (x) R")
    directory = os.open(tmp_path, os.O_RDONLY)
    files = TaskFiles(directory)
    yield tmp_path, files
    files.keep_only(())
    os.close(directory)


def thread(tid: int, off_cpu_counters: bytes | None) -> SimpleNamespace:
    return SimpleNamespace(tid=tid, off_cpu_counters=off_cpu_counters)


def test_thread_is_unchanged_if_its_open_file_has_the_same_content(tasks):
    path, files = tasks
    before = [thread(tid, files.read(tid, "schedstat")) for tid in (1, 2)]
    (path / "2" / "schedstat").write_text("2 0 2\n")
    never_opened, unknown = thread(3, b"3 0 1\n"), thread(1, None)

    same, others = files.unchanged("schedstat", [*before, never_opened, unknown])

    assert (same, others) == (before[:1], [before[1], never_opened, unknown])
    assert files.unchanged("status", before) == ([], before)


def test_thread_without_an_open_file_is_not_unchanged(tasks):
    _, files = tasks
    before = thread(1, files.read(1, "schedstat"))
    files.forget(1)

    assert files.unchanged("schedstat", [before]) == ([], [before])


def test_all_files_of_a_thread_are_closed_together(tasks):
    _, files = tasks
    kept = TaskFiles.kept_open
    for tid in (1, 2, 3):
        files.read(tid, "schedstat")
    files.read(2, "stat")

    assert (files.known(), TaskFiles.kept_open - kept) == ([1, 2, 3], 4)
    files.keep_only([1, 3])
    assert (files.known(), TaskFiles.kept_open - kept) == ([1, 3], 2)
    assert files.read(2, "stat") == b"2 (x) R", "it is opened again"


def test_reused_thread_id_has_another_holder(tasks, monkeypatch):
    """Only ESRCH shows that the thread has ended; a missing file does not."""
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
