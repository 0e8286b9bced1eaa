"""Progress is one line on a terminal, which is erased at the end and never delays the work."""

import os
import pty
import select
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from sfsample.cli.terminal import Progress, emit, say
from tests.live.targets import HANG_S


@contextmanager
def terminal(monkeypatch) -> Iterator[int]:
    """Make stderr a terminal; yield its other end.  (No fixture: pytest sets stderr again after fixtures.)"""
    controller, terminal_fd = pty.openpty()
    with os.fdopen(terminal_fd, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield controller
        monkeypatch.undo()
    os.close(controller)


def shown(controller: int) -> str:
    """Return what was written since the last call, up to a mark, as the kernel may deliver late."""
    sys.stderr.write("|")
    sys.stderr.flush()
    text = ""
    while not text.endswith("|"):
        assert select.select([controller], [], [], HANG_S)[0], text
        text += os.read(controller, 10_000).decode()
    return text[:-1]


def test_line_is_erased_at_the_end(monkeypatch):
    with terminal(monkeypatch) as controller:
        monkeypatch.setattr("sfsample.cli.terminal._PERIOD_S", float("inf"))  # however slow the test is
        with Progress(quiet=False) as progress:
            progress.show("2 of 10 s")
            assert shown(controller) == "\r\x1b[Ksfsample: 2 of 10 s"
            progress.show("too soon")
        assert shown(controller) == "\r\x1b[K"


def test_message_erases_the_line(monkeypatch):
    with terminal(monkeypatch) as controller:
        monkeypatch.setattr("sfsample.cli.terminal._PERIOD_S", 0)
        with Progress(quiet=False) as progress:
            progress.show("2 of 10 s")
            shown(controller)
            say("late: 3 ticks missed")
            assert shown(controller) == "\r\x1b[Ksfsample: late: 3 ticks missed\r\n"
            say("late: again")
            emit("a line of the log\n")
            assert shown(controller) == "sfsample: late: again\r\na line of the log\r\n"
            progress.show("3 of 10 s")
            assert shown(controller) == "\r\x1b[Ksfsample: 3 of 10 s"
            emit("log\n")
            assert shown(controller) == "\r\x1b[Klog\r\n"
        assert shown(controller) == ""


def test_quiet_shows_nothing(monkeypatch):
    with terminal(monkeypatch) as controller:
        with Progress(quiet=True) as progress:
            progress.show("2 of 10 s")
        assert shown(controller) == ""


def test_pipe_gets_nothing(monkeypatch):
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read) as reader:
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(quiet=False) as progress:
            progress.show("2 of 10 s")
        stream.close()
        assert reader.read() == ""


def test_stopped_terminal_does_not_block(monkeypatch):
    with terminal(monkeypatch) as controller:
        termios.tcflow(sys.stderr.fileno(), termios.TCOOFF)
        with Progress(quiet=False) as progress:
            progress.show("not drawn")
            termios.tcflow(sys.stderr.fileno(), termios.TCOON)
            progress.show("2 of 10 s")
            assert shown(controller) == "\r\x1b[Ksfsample: 2 of 10 s"
