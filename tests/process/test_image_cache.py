"""Files that several processes map are opened once."""

import os
import shutil
from pathlib import Path

import pytest

from sfsample.errors import FormatError
from sfsample.process import image_cache as module
from sfsample.process.image_cache import ImageCache

LIBRARY = Path(__file__).parents[1] / "fixtures/v3/libcallee.so"


def open_image(cache: ImageCache, path: Path, name: str = "/lib/x.so"):
    fd = os.open(path, os.O_RDONLY)
    try:
        return cache.file(fd, name)
    finally:
        os.close(fd)


def test_file_and_its_tables_are_opened_once():
    cache = ImageCache()
    image = open_image(cache, LIBRARY)

    assert open_image(cache, LIBRARY) is image
    assert cache.tables_of(None, image, "/lib/x.so") is cache.tables_of(None, image, "/lib/x.so")
    assert open_image(ImageCache(), LIBRARY) is not image


def test_copy_with_the_same_path_and_build_id_is_the_same_image(tmp_path):
    cache = ImageCache()
    image = open_image(cache, LIBRARY)
    copy = tmp_path / "copy.so"
    shutil.copyfile(LIBRARY, copy)
    assert image.build_id
    assert open_image(cache, copy) is image
    assert open_image(cache, copy, "/lib/other.so") is not image

    copy.write_bytes(LIBRARY.read_bytes() + b"more")
    assert open_image(cache, copy) is not image


def test_replaced_file_is_another_image(tmp_path):
    cache = ImageCache()
    path = tmp_path / "x.so"
    data = bytearray(LIBRARY.read_bytes())
    path.write_bytes(data)
    image = open_image(cache, path)
    data[60] ^= 1  # e_shnum, which has no effect here
    (tmp_path / "new").write_bytes(data)
    os.replace(tmp_path / "new", path)

    assert open_image(cache, path) is not image


def test_image_of_the_same_bytes_is_made_once():
    cache = ImageCache()
    data = LIBRARY.read_bytes()

    assert cache.memory(data, "[vdso]") is cache.memory(bytes(data), "[vdso]")
    with pytest.raises(FormatError):
        cache.memory(b"no ELF", "[vdso]")


def test_root_is_opened_once_for_each_mount_namespace():
    cache = ImageCache()
    root = cache.root("/", "mnt:[1]")

    assert cache.root("/proc/self/root", "mnt:[1]") is root
    assert cache.root("/", "mnt:[2]") is not root


def test_full_cache_drops_the_oldest_entry(monkeypatch):
    monkeypatch.setattr(module, "_MAX_ENTRIES", 2)
    cache = ImageCache()
    first = cache.root("/", "1")
    for number in (2, 3):
        cache.root("/", str(number))

    assert len(cache._roots) == 2
    assert cache.root("/", "1") is not first
