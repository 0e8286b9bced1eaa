"""Files that several processes map are opened once."""

import os
import shutil
from pathlib import Path

import pytest

from sfsample.errors import FormatError
from sfsample.process import image_cache as module
from sfsample.process.image_cache import ImageCache

LIBRARY = Path(__file__).parents[1] / "fixtures/v3/libcallee.so"


def opened(shared: ImageCache, path: Path, name: str = "/lib/x.so"):
    fd = os.open(path, os.O_RDONLY)
    try:
        return shared.file(fd, name)
    finally:
        os.close(fd)


def test_a_file_is_opened_once_and_so_are_its_tables():
    shared = ImageCache()
    image = opened(shared, LIBRARY)

    assert opened(shared, LIBRARY) is image
    assert shared.tables_of(None, image, "/lib/x.so") is shared.tables_of(None, image, "/lib/x.so")
    assert opened(ImageCache(), LIBRARY) is not image


def test_a_copy_seen_through_another_file_system_is_the_same_if_the_build_id_is(tmp_path):
    shared = ImageCache()
    image = opened(shared, LIBRARY)
    copy = tmp_path / "copy.so"
    shutil.copyfile(LIBRARY, copy)
    assert image.build_id
    assert opened(shared, copy) is image
    assert opened(shared, copy, "/lib/other.so") is not image

    copy.write_bytes(LIBRARY.read_bytes() + b"more")
    assert opened(shared, copy) is not image


def test_a_file_that_was_replaced_is_another(tmp_path):
    shared = ImageCache()
    path = tmp_path / "x.so"
    data = bytearray(LIBRARY.read_bytes())
    path.write_bytes(data)
    image = opened(shared, path)
    data[60] ^= 1  # e_shnum: nobody minds
    (tmp_path / "new").write_bytes(data)
    os.replace(tmp_path / "new", path)

    assert opened(shared, path) is not image


def test_bytes_of_memory():
    shared = ImageCache()
    data = LIBRARY.read_bytes()

    assert shared.memory(data, "[vdso]") is shared.memory(bytes(data), "[vdso]")
    with pytest.raises(FormatError):
        shared.memory(b"no ELF", "[vdso]")


def test_a_root_is_held_once_for_each_mount_namespace():
    shared = ImageCache()
    root = shared.root("/", "mnt:[1]")

    assert shared.root("/proc/self/root", "mnt:[1]") is root
    assert shared.root("/", "mnt:[2]") is not root


def test_no_more_than_the_limit_is_kept(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 2)
    shared = ImageCache()
    first = shared.root("/", "1")
    for number in (2, 3):
        shared.root("/", str(number))

    assert len(shared._roots) == 2
    assert shared.root("/", "1") is not first
