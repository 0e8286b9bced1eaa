"""Nothing raw from outside reaches a terminal, and printing on stderr never fails."""

import io
import logging
import os
import sys

import pytest

from sfsample.cli import main
from sfsample.cli.terminal import say
from sfsample.core.printable import printable

HOSTILE = "a\x1b[31mb\nc\rd\x07e\x9bf\u202eg\u200fh\u2028i\udcffj;k"


def test_printable_replaces_controls() -> None:
    shown = printable(HOSTILE)
    assert shown == "a?[31mb?c?d?e?f?g?h?i?j;k"
    assert printable("café µs 漢字; ok") == "café µs 漢字; ok"


def test_say_cleans_and_cuts_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE, "x" * 100_000)
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"sfsample: {printable(HOSTILE)}"
    assert len(second) < 1100


def test_log_is_printable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("sfsample")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("SFSAMPLE_LOG", "debug")
    try:
        assert main(["completion", "bash"]) == 0
        logging.getLogger("sfsample.process").debug("not captured: %s", HOSTILE)
    finally:
        logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err.endswith(f" ms sfsample.process: not captured: {printable(HOSTILE)}\n")


class BrokenStderr(io.StringIO):
    """A stderr that has no reader."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        return self._fd


def test_say_survives_closed_or_broken_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    say("lost")
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stderr", BrokenStderr(writer))
    say("lost")
    os.write(writer, b"this is /dev/null now")
    os.close(writer)


@pytest.mark.parametrize(
    "argv",
    [[HOSTILE], ["-p", HOSTILE], ["-p", "1", HOSTILE], ["-p", "1", f"--{HOSTILE}"],
     ["-p", "1", "-f", HOSTILE], ["dump", "-n", "no\x1b[0msuch\nprocess \u202e here"],
     ["-p", "1", "-o", f"/nowhere/{HOSTILE}"],
     ["-d", "1", "--", f"/nowhere/{HOSTILE}"], ["x" * 100_000]],
)  # fmt: skip
def test_error_lines_are_printable_and_cut(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) in (1, 2, 3)
    out, err = capsys.readouterr()
    first, *more = err.splitlines()
    assert out == ""
    assert first.startswith("sfsample: ")
    assert all(line.startswith("  ") for line in more)
    assert all(line.isprintable() and len(line) < 1100 for line in (first, *more))


@pytest.mark.parametrize("codeset", ["ANSI_X3.4-1968", "ASCII", "no such codeset"])
def test_locale_without_micro_gets_us(
    codeset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say("pause p50 61 µs")
    monkeypatch.setattr("sfsample.cli.terminal.nl_langinfo", lambda _: codeset)
    say("pause p50 61 µs")
    assert capsys.readouterr().err == "sfsample: pause p50 61 µs\nsfsample: pause p50 61 us\n"
