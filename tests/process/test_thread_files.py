"""The /proc files of threads stay open, and never answer for another thread."""

import os
from collections.abc import Iterator
from errno import ESRCH
from pathlib import Path

import pytest

from sfsample.process.procfs import Cause, cause_of
from sfsample.process.thread_files import ThreadFiles

Files = dict[int, ThreadFiles]


def absent(failure: OSError) -> None:
    assert cause_of(failure) is Cause.GONE


@pytest.fixture
def tasks(tmp_path) -> Iterator[tuple[Path, Files]]:
    """Return a directory with regular files for threads 1, 2 and 3, and what reads them."""
    for tid in "123":
        (tmp_path / tid).mkdir()
        (tmp_path / tid / "schedstat").write_text(f"{tid} 0 1\n")
        (tmp_path / tid / "stat").write_text(f"{tid} (x) R")
    directory = os.open(tmp_path, os.O_RDONLY)
    files = {tid: ThreadFiles(directory, tid, 100_000, absent) for tid in (1, 2, 3)}
    yield tmp_path, files
    for thread in files.values():
        thread.end()
    os.close(directory)


def test_all_files_of_a_thread_are_closed_together(tasks):
    _, files = tasks
    kept = ThreadFiles.kept_open
    for thread_files in files.values():
        thread_files.read("schedstat")
    files[2].read("stat")

    assert ThreadFiles.kept_open - kept == 4
    files[2].close()
    assert ThreadFiles.kept_open - kept == 2
    assert files[2].read("stat") == b"2 (x) R", "it is opened again"


@pytest.mark.parametrize(("kernel_counts", "found"), [(True, b"0 0 0\n"), (False, b":\t0\n")])
def test_thread_that_has_never_run_differs_from_a_kernel_without_counters(
    tasks, monkeypatch, kernel_counts, found
):
    path, files = tasks
    (path / "2" / "schedstat").write_text("0 0 0\n")
    (path / "2" / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t0\n")
    monkeypatch.setattr("sfsample.process.thread_files._kernel_counts", lambda: kernel_counts)
    assert files[2].counters() == found


def test_nothing_is_opened_for_a_thread_that_has_ended(tasks):
    _, files = tasks
    assert files[1].read("stat")
    kept = ThreadFiles.kept_open
    files[1].end()
    assert files[1].read("stat") is files[1].counters() is None
    assert (files[1].fds, kept - ThreadFiles.kept_open) == ({}, 1)


def test_beyond_the_limit_files_are_read_and_closed(tasks):
    path, _ = tasks
    directory = os.open(path, os.O_RDONLY)
    files = ThreadFiles(directory, 1, ThreadFiles.kept_open, absent)
    assert files.read("stat") == b"1 (x) R"
    assert files.fds == {}
    os.close(directory)


def test_reused_thread_id_has_another_holder(tasks, monkeypatch):
    """Only ESRCH shows that the thread has ended; a missing file does not."""
    files = tasks[1][1]
    assert files.holder is None
    files.read("stat")
    first, pread, kept = files.holder, os.pread, ThreadFiles.kept_open
    assert files.read("no such file") is None
    assert (files.holder, ThreadFiles.kept_open) == (first, kept), "its other files stay open"

    def ended_once(*arguments):
        monkeypatch.setattr(os, "pread", pread)
        raise ProcessLookupError(ESRCH, "ended")

    monkeypatch.setattr(os, "pread", ended_once)
    assert files.read("stat") is not None
    assert files.holder not in (None, first)
    files.close()
    assert files.holder is None
