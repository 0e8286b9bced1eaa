"""Progress: on a terminal and nowhere else, in one line that goes away, and never at the cost of the work."""

import os
import pty
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from sfsample.cli.progress import Progress, recording
from sfsample.recording.stats import Stats
from tests.live.targets import HANG_S


@contextmanager
def terminal(monkeypatch) -> Iterator[int]:
    """Make stderr a terminal; give its other end.  (No fixture: pytest sets stderr anew after those.)"""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield ours
        monkeypatch.undo()
    os.close(ours)


def shown(terminal: int) -> str:
    """What was shown since; a mark is put behind it, as the kernel may take its time to hand it on."""
    sys.stderr.write("|")
    sys.stderr.flush()
    text = ""
    while not text.endswith("|"):
        assert select.select([terminal], [], [], HANG_S)[0], text
        text += os.read(terminal, 10_000).decode()
    return text[:-1]


def test_a_line_that_goes_away(monkeypatch):
    with terminal(monkeypatch) as end:
        monkeypatch.setattr("sfsample.cli.progress._PERIOD_S", float("inf"))  # whatever holds us up
        with Progress(quiet=False) as progress:
            progress.show("reading \x1b[31m1 of 2")
            assert shown(end) == "\r\x1b[Ksfsample: reading ?[31m1 of 2"
            progress.show("at once again")
            assert shown(end) == ""
        assert shown(end) == "\r\x1b[K"


def test_nothing_when_nobody_wants_it(monkeypatch):
    with terminal(monkeypatch) as end:
        with Progress(quiet=True) as progress:
            progress.show("x")
        assert shown(end) == ""


def test_nothing_into_a_pipe(monkeypatch):
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read) as reader:
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(quiet=False) as progress:
            progress.show("x")
        stream.close()
        assert reader.read() == ""


def test_a_terminal_that_was_stopped_is_not_waited_for(monkeypatch):
    with terminal(monkeypatch):
        termios.tcflow(sys.stderr.fileno(), termios.TCOOFF)
        progress = Progress(quiet=False)
        assert not progress.due()
        termios.tcflow(sys.stderr.fileno(), termios.TCOON)
        assert progress.due()


def test_words_of_a_recording():
    stats = Stats(99.0)
    stats.samples, stats.ticks, stats.late_ticks = 200, 250, 10
    stats.pauses.add(61_000)
    said = "2 of 10 s, 200 samples, pause p50 61 µs max 61 µs, sampler 2.0 %, 10 missed"
    assert recording(stats, 2.4, 10.0, 0.048) == said
    assert recording(Stats(99.0), 2.4, None, 0.0) == "2 s, 0 samples, sampler 0.0 %"
