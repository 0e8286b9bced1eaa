"""A result goes to a file, a device or stdout; a file is complete or absent, with nothing left beside it."""

import os
import stat
import threading
from pathlib import Path

import pytest

from sfsample.cli import output_file
from sfsample.cli.output_file import Output
from sfsample.errors import SfsampleError


def listing(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_file_appears_when_complete(tmp_path: Path) -> None:
    output = Output(str(tmp_path / "out"))
    assert listing(tmp_path) == []  # an interrupted command leaves nothing behind
    output.write("text\n")
    assert (tmp_path / "out").read_text() == "text\n"
    assert listing(tmp_path) == ["out"]


def test_new_file_obeys_umask_and_old_file_keeps_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        Output(str(tmp_path / "new")).write("x")
        (tmp_path / "old").touch(0o600)
        Output(str(tmp_path / "old")).write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o600


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")  # dangling at first
    for text in ("one", "two"):
        Output(str(tmp_path / "link")).write(text)
        assert (tmp_path / "there/file").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert listing(tmp_path / "there") == ["file"]


def test_devices_and_fifos_are_written(tmp_path: Path) -> None:
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


def refusal(path: Path | str) -> str:
    with pytest.raises(SfsampleError) as caught:
        Output(str(path))
    assert caught.value.exit_code == 1
    assert caught.value.help
    return str(caught.value)


def test_unwritable_path_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    assert refusal(tmp_path) == f"cannot write: {tmp_path}: Is a directory"
    assert refusal("") == "cannot write: '': Is a directory"
    assert "Is a directory" in refusal(f"{tmp_path}/new/")
    assert "No such file" in refusal(tmp_path / "nowhere" / "out")
    assert "Not a directory" in refusal(tmp_path / "file" / "out")
    assert "symbolic links" in refusal(tmp_path / "loop")
    assert "name too long" in refusal(tmp_path / ("x" * 256))
    assert listing(tmp_path) == ["file", "loop"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything; see tests/live/test_cli_errors.py")
def test_permissions_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o400)
    assert "Permission denied" in refusal(tmp_path / "file")
    (tmp_path / "closed").mkdir(0o500)
    assert "Permission denied" in refusal(tmp_path / "closed" / "out")


def test_longest_file_name_is_written(tmp_path: Path) -> None:
    Output(str(tmp_path / ("x" * 255))).write("x")
    assert listing(tmp_path) == ["x" * 255]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    (tmp_path / "out").write_text("before")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(output_file.os, "replace", fail)
    output = Output(str(tmp_path / "out"))
    with pytest.raises((SfsampleError, KeyboardInterrupt)):
        output.write("after")
    assert listing(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "before"


def test_full_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SfsampleError, match="No space left"):
        Output("/dev/full").write("x")
