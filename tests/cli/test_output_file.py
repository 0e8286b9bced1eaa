"""A result goes to a file, a device or stdout; a file is complete or absent, with nothing left beside it."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sfsample.cli import output_file
from sfsample.cli.output_file import Output
from sfsample.core.filesystem import whole_file
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
    assert refusal("") == "cannot write: '': No such file or directory"
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


def test_result_that_cannot_be_renamed_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    output = Output(str(target))
    target.mkdir()
    with pytest.raises(SfsampleError) as refusal:
        output.write("an hour of work")
    [name] = set(listing(tmp_path)) - {target.name}
    kept = tmp_path / name
    assert kept.read_text() == "an hour of work"
    assert str(refusal.value) == f"cannot rename: {kept} to {target}: Is a directory"
    assert refusal.value.help == (f"the result is in {kept}",)


MOUNTED = [
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'mount --bind "$0" "$0" && exec "$@"',
]
may_mount = os.geteuid() == 0 and not subprocess.run([*MOUNTED, __file__, "true"], check=False).returncode


@pytest.mark.skipif(not may_mount, reason="may not mount (needs root)")
def test_result_that_replaces_no_mounted_file_is_kept(tmp_path: Path) -> None:
    """As with `docker run -v out.html:/out.html`."""
    target = tmp_path / "out.html"
    target.touch()
    code = "import sys; from sfsample.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "convert", "-", "-f", "folded", "-o", target]
    done = subprocess.run([*MOUNTED, target, *words], input="a;b 1\n", capture_output=True, text=True,
                          check=False)  # fmt: skip
    [name] = set(listing(tmp_path)) - {target.name}
    assert (tmp_path / name).read_text() == "a;b 1\n"
    what = f"cannot rename: {tmp_path / name} to {target}: Device or resource busy"
    assert done.stderr == f"sfsample: {what}\n  the result is in {tmp_path / name}\n"
    assert done.returncode == 1


def test_slice_and_metrics_that_cannot_be_renamed_leave_no_file(tmp_path: Path) -> None:
    """`watch` makes the next one soon, and would fill the disk."""
    (tmp_path / "metrics").mkdir()
    with pytest.raises(IsADirectoryError), whole_file(str(tmp_path / "metrics"), 0o644) as file:
        file.write(b"x")
    assert listing(tmp_path) == ["metrics"]
