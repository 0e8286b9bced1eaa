"""Only ENOENT and ESRCH mean that a process has ended, and a failure is looked at again."""

import os
from errno import EACCES, EIO, EMFILE, ENOENT, ENOMEM, ESRCH

import pytest

from sfsample.errors import NoSuchProcess, ReadFailed, TargetError
from sfsample.process import descendants, procfs
from sfsample.process.descendants import Descendants
from sfsample.process.procfs import Cause, ProcFs, cause_of, looked_at
from sfsample.watching import loop as watch


@pytest.mark.parametrize(
    ("number", "cause"),
    [(ENOENT, Cause.GONE), (ESRCH, Cause.GONE), (EACCES, Cause.REFUSED), (ENOMEM, Cause.TROUBLE),
     (EIO, Cause.TROUBLE), (EMFILE, Cause.TROUBLE), (10_000, Cause.TROUBLE)],
)  # fmt: skip
def test_cause(number, cause):
    assert cause_of(OSError(number, "")) is cause


@pytest.mark.parametrize(("failures", "result"), [(2, "text"), (3, None)])
def test_failed_read_is_repeated(failures, result):
    answers = iter([OSError(ENOMEM, "")] * failures)

    def read() -> str:
        if failure := next(answers, None):
            raise failure
        return "text"

    assert looked_at(read) == result


@pytest.fixture
def failing(monkeypatch):
    """Return a function that has the next calls of open(2) fail."""
    real_open = os.open

    def fail(number: int, times: int) -> None:
        left = [times]

        def failing_open(*arguments, **named):
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(number, os.strerror(number))
            return real_open(*arguments, **named)

        monkeypatch.setattr(os, "open", failing_open)

    return fail


@pytest.mark.parametrize("number", [ENOMEM, EIO, EMFILE])
def test_process_that_cannot_be_read_has_not_ended(failing, number):
    proc = ProcFs(os.getpid())
    for read in (proc.stat, proc.maps, proc.thread(os.getpid()).stat):
        failing(number, 1)
        with pytest.raises(ReadFailed):
            read()
    failing(number, 10)
    assert not proc.has_ended()
    failing(number, 10)
    assert proc.cpu_ns() is None
    failing(number, 0)
    proc.close()


def test_one_missing_file_does_not_end_a_process(failing):
    proc = ProcFs(os.getpid())
    failing(ENOENT, 1)
    assert proc.stat() is not None
    failing(ENOENT, 2)
    assert proc.stat() is None
    failing(ENOENT, 6)
    assert not proc.has_ended()
    proc.close()


@pytest.mark.parametrize(
    ("failure", "alive"),
    [(NoSuchProcess(1, ""), []), (ReadFailed(1, ""), [1]), (TargetError(1, ""), [1]), (None, [1])],
)
def test_watch_ends_only_with_its_targets(monkeypatch, failure, alive):
    def start_time(_pid: int) -> int:
        if failure:
            raise failure
        return 7

    monkeypatch.setattr(watch, "start_time", start_time)
    assert watch._alive({1: 7}) == alive


def test_new_process_that_cannot_be_read_is_looked_at_again(monkeypatch):
    """The first listing cannot read it."""
    real, pid = procfs.stat_of, os.getppid()
    parent = real(pid).parent
    if not parent:
        pytest.skip("the parent of the test is in another pid namespace")
    finder = Descendants([parent], lambda found: found)
    monkeypatch.setattr(descendants, "stat_of", lambda each: None if each == pid else real(each))
    assert pid not in [found for found, _ in finder.list_new()]
    monkeypatch.setattr(descendants, "stat_of", real)
    assert pid in [found for found, _ in finder.list_new()]
    finder.close()
