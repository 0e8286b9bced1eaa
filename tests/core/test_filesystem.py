"""Paths that a target chooses are resolved inside its root, and lead to regular files only."""

import contextlib
import os
import stat
import threading
from errno import ELOOP
from pathlib import Path

import pytest

from sfsample.core.filesystem import Root, open_regular, whole_file


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    return Root(str(tmp_path / "root"))


def content(root: Root, path: str) -> str:
    with open(root.open(path), encoding="ascii") as file:
        return file.read()


def link(tmp_path: Path, name: str, target: str) -> None:
    (tmp_path / "root" / name).symlink_to(target)


@pytest.mark.parametrize(
    "target", ["etc/file", "/etc/file", "../etc/file", "../../../../etc/file", "/../etc/./file", "other"]
)
def test_links_stay_inside_the_root(root, tmp_path, target):
    link(tmp_path, "link", target)
    link(tmp_path, "other", "/etc/../etc/file")
    link(tmp_path, "directory", "/")

    assert content(root, "/link") == content(root, "/directory/directory/link") == "inside"
    assert content(root, "/etc/../../link") == "inside"


def test_what_lies_outside_is_not_found(root, tmp_path):
    link(tmp_path, "link", str(tmp_path / "secret"))
    link(tmp_path, "magic", "/proc/self/root")
    for path in (
        "/link",
        "/../secret",
        "/etc/../../secret",
        f"/magic{tmp_path}/secret",
        "/etc/file/x",
        "/a\0b",
    ):
        with pytest.raises(OSError):
            root.open(path)


def test_link_at_the_end_is_refused_on_request(root, tmp_path):
    link(tmp_path, "link", "etc/file")
    link(tmp_path, "directory", "etc")
    with pytest.raises(OSError):
        root.open("/link", follow=False)
    os.close(root.open("/directory/file", follow=False))


def test_loop_of_links_is_an_error(root, tmp_path):
    link(tmp_path, "one", "two")
    link(tmp_path, "two", "/one")
    with pytest.raises(OSError) as failure:
        root.open("/one")
    assert failure.value.errno == ELOOP


def test_only_regular_files_are_opened(root, tmp_path):
    """To open a FIFO for reading would let a waiting writer go on; a device can do anything."""
    fifo = tmp_path / "root/fifo"
    os.mkfifo(fifo)
    went_on = threading.Event()

    def write() -> None:
        fd = os.open(fifo, os.O_WRONLY)
        went_on.set()
        os.close(fd)

    writer = threading.Thread(target=write)
    writer.start()
    for path in ("/fifo", "/etc", "/"):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            root.open(path)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        open_regular(str(fifo))
    assert not went_on.is_set()
    os.close(os.open(fifo, os.O_RDONLY))
    writer.join()


def test_no_descriptor_is_left(root, tmp_path):
    link(tmp_path, "link", "etc/../etc/file")
    before = os.listdir("/proc/self/fd")
    for path in ("/link", "/etc", "/none", "/link/none", "/fifo"):
        with contextlib.suppress(OSError):
            os.close(root.open(path))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_file_belongs_to_the_user_who_writes_it_whoever_owned_the_one_before(tmp_path):
    """Another user may have put a file of mode 0666 in a sticky directory, to get at the result."""
    tmp_path.chmod(0o1777)
    path = tmp_path / "out"
    path.touch()
    path.chmod(0o666)
    os.chown(path, 65534, 65534)
    before = os.umask(0o027)
    try:
        with whole_file(str(path), 0o666) as file:
            file.write(b"x")
    finally:
        os.umask(before)
    status = path.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o640)
