"""Files that several processes map are opened once."""

import gc
import os
import weakref
from pathlib import Path

import pytest

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
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
    assert cache.tables_of(None, image) is cache.tables_of(None, image)
    assert open_image(ImageCache(), LIBRARY) is not image


def test_a_file_that_claims_path_and_build_id_of_another_is_another_image(tmp_path):
    """A hostile container has a libc of the same size and build-id, with other symbols behind its head."""
    cache = ImageCache()
    data = bytearray(LIBRARY.read_bytes())
    data[-1] ^= 1
    hostile = tmp_path / "x.so"
    hostile.write_bytes(data)
    claimed = open_image(cache, hostile)
    image = open_image(cache, LIBRARY)

    assert claimed.build_id == image.build_id is not None
    assert image is not claimed
    assert bytes(image.data) == LIBRARY.read_bytes()


def test_file_that_was_changed_in_place_is_another_image(tmp_path):
    """A program can set the modification time of its file as it likes."""
    cache = ImageCache()
    path = tmp_path / "x.so"
    path.write_bytes(LIBRARY.read_bytes())
    image, before = open_image(cache, path), path.stat()
    with path.open("r+b") as file:
        file.write(b"\x7fELF")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert open_image(cache, path) is not image


def test_tables_are_not_shared_between_roots(tmp_path):
    """A debug file in the root of one process must not give another process its unwind tables."""
    cache = ImageCache()
    image, root = open_image(cache, LIBRARY), Root(str(tmp_path))
    tables = cache.tables_of(root, image)

    assert tables.root is root
    assert cache.tables_of(root, image) is tables
    assert cache.tables_of(None, image) is not tables


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


def test_file_that_nothing_uses_is_closed():
    """A deleted file must not keep its space on the disk for as long as a watch runs."""
    cache = ImageCache()
    image = open_image(cache, LIBRARY)
    tables = cache.tables_of(None, image)
    assert open_image(cache, LIBRARY) is image
    assert cache.tables_of(None, image) is tables
    dropped = weakref.ref(image)
    del image, tables
    gc.collect()
    assert dropped() is None
