"""What reaches a terminal, and where results go.

Law: nothing raw from outside is shown; a file is complete or absent, and nothing is left beside it.
"""

import io
import os
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest

from sfsample.cli import console, main
from sfsample.cli.console import Interrupt, Output
from sfsample.cli.terminal import printable, say
from sfsample.errors import SfsampleError

HOSTILE = "a\x1b[31mb\nc\rd\x07e\x9bf\u202eg\u200fh\u2028i\udcffj;k"


def test_printable_is_what_it_says() -> None:
    shown = printable(HOSTILE)
    assert shown == "a?[31mb?c?d?e?f?g?h?i?j;k"
    assert printable("café µs 漢字; ok") == "café µs 漢字; ok"


def test_say_cleans_and_bounds_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"sfsample: {HOSTILE}", "x" * 100_000)
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"sfsample: {printable(HOSTILE)}"
    assert len(second) < 1100


class Gone(io.StringIO):
    """A stderr whose reader has gone."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        return self._fd


def test_say_survives_a_stderr_that_is_closed_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    say("nobody hears")
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stderr", Gone(writer))
    say("nobody hears")
    os.write(writer, b"it is /dev/null now")
    os.close(writer)


@pytest.mark.parametrize(
    "argv",
    [[HOSTILE], ["-p", HOSTILE], ["-p", "1", HOSTILE], ["-p", "1", f"--{HOSTILE}"],
     ["-p", "1", "-f", HOSTILE], ["dump", "-n", "no\x1b[0msuch\nprocess \u202e here"],
     ["-p", "1", "-o", f"/nowhere/{HOSTILE}"],
     ["-d", "1", "--", f"/nowhere/{HOSTILE}"], ["x" * 100_000]],
)  # fmt: skip
def test_error_lines_are_clean(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) in (1, 2, 3)
    out, err = capsys.readouterr()
    first, *more = err.splitlines()
    assert out == ""
    assert first.startswith("sfsample: ")
    assert all(line.startswith("  ") for line in more)
    assert all(line.isprintable() and len(line) < 1100 for line in (first, *more))


# -- files


def listing(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "out"))
    assert listing(tmp_path) == []  # nothing before: whatever ends us leaves nothing behind
    output.write("text\n")
    output.discard()
    assert (tmp_path / "out").read_text() == "text\n"
    assert listing(tmp_path) == ["out"]


def test_a_new_file_obeys_the_umask_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        Output(str(tmp_path / "new")).write("x")
        (tmp_path / "old").touch(0o600)
        Output(str(tmp_path / "old")).write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_old_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.touch()
    os.chown(path, 65534, 65534)
    Output(str(path)).write("x")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")  # dangling at first
    for text in ("one", "two"):
        Output(str(tmp_path / "link")).write(text)
        assert (tmp_path / "there/file").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert listing(tmp_path / "there") == ["file"]


def test_devices_and_fifos_are_written_to(tmp_path: Path) -> None:
    Output("/dev/null").write("x" * 100_000)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    Output(str(fifo)).write("x" * 100_000)
    reader.join(30)
    assert read == ["x" * 100_000]
    assert stat.S_ISFIFO(os.stat(fifo).st_mode)


def unwritable(path: Path | str) -> str:
    with pytest.raises(SfsampleError) as caught:
        Output(str(path))
    assert caught.value.exit_code == 1
    assert caught.value.help
    return str(caught.value)


def test_mistakes_show_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert unwritable(tmp_path) == f"cannot write: {tmp_path}: Is a directory"
    assert unwritable("") == "cannot write: '': Is a directory"
    assert "Is a directory" in unwritable(f"{tmp_path}/new/")
    assert "No such file" in unwritable(tmp_path / "nowhere" / "out")
    assert "Not a directory" in unwritable(tmp_path / "file" / "out")
    assert "symbolic links" in unwritable(tmp_path / "loop")
    assert "name too long" in unwritable(tmp_path / ("x" * 256))
    assert listing(tmp_path) == ["file", "loop"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything; see tests/live/test_cli_errors.py")
def test_permissions_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o400)
    assert "Permission denied" in unwritable(tmp_path / "file")
    (tmp_path / "closed").mkdir(0o500)
    assert "Permission denied" in unwritable(tmp_path / "closed" / "out")


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    Output(str(tmp_path / ("x" * 255))).write("x")
    assert listing(tmp_path) == ["x" * 255]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    (tmp_path / "out").write_text("before")
    output = Output(str(tmp_path / "out"))

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(console.os, "replace", fail)
    with pytest.raises((SfsampleError, KeyboardInterrupt)):
        output.write("after")
    output.discard()
    assert listing(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "before"


def test_a_full_device_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(SfsampleError, match="No space left"):
        Output("/dev/full").write("x")


# -- signals


def test_the_first_signal_asks_and_the_second_ctrl_c_breaks_off() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert not interrupt()
        signal.raise_signal(signal.SIGTERM)
        assert interrupt()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_once_it_is_broken_off_no_further_ctrl_c_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came while the first was being told gave a traceback."""
    heeded: list[object] = []

    def interrupted(_argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("sfsample.cli._run", interrupted)
    monkeypatch.setattr(
        "sfsample.cli._complain", lambda _what: heeded.append(signal.getsignal(signal.SIGINT))
    )
    before = signal.getsignal(signal.SIGINT)
    try:
        assert main([]) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert heeded == [signal.SIG_IGN]


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt()
    finally:
        signal.signal(signal.SIGHUP, before)
