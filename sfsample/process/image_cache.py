"""Shares ELF files, unwind tables and root directories among processes, so that sfsample opens each once.

Two files are the same if their device, inode, time of the last change and size are the same.  Only the kernel
sets these values, while any program can make a file with the same build-id or path.  Processes share tables
only if their root directory is also the same, because sfsample looks there for debug files.  The cache drops
the least recently used entries; processes keep references to the images that they still use.

Invariant: no process can put its file or its debug file in the place of another process's file
(tests/process/test_image_cache.py).
"""

import os
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from typing import TypeVar

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.unwind_tables import UnwindTables

_MAX_ENTRIES = 256  # entries of each kind; each image keeps a file open

_K = TypeVar("_K")
_V = TypeVar("_V")


class ImageCache:
    """A cache of opened files."""

    def __init__(self) -> None:
        self._images: dict[tuple[object, ...], ElfImage] = {}
        self._tables: dict[tuple[ElfImage, Root | None], UnwindTables] = {}
        self._roots: dict[tuple[object, ...], Root] = {}

    def file(self, fd: int, name: str) -> ElfImage:
        """Return the image in an open file; `name`: its path in the target.  Raises FormatError."""
        status = os.fstat(fd)
        if not status.st_size:
            raise FormatError(name, 0, "is empty")
        key = name, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size
        return _cached(self._images, key, lambda: ElfImage(mmap(fd, 0, access=ACCESS_READ), name))

    def memory(self, data: bytes, name: str) -> ElfImage:
        """Return the image in `data`.  Raises FormatError."""
        return _cached(self._images, (name, data), lambda: ElfImage(data, name))

    def tables_of(self, root: Root | None, image: ElfImage) -> UnwindTables:
        """Return the unwind tables of an image that a process with this root directory has mapped."""
        return _cached(self._tables, (image, root), lambda: UnwindTables(image, root))

    def root(self, path: str, mounts: str | None) -> Root:
        """Return the root directory `path`; `mounts` names its mount namespace.  Raises OSError."""
        root = Root(path)
        return _cached(self._roots, (mounts, *root.identity), lambda: root)


def _cached(cache: dict[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    """Return the entry; make it if it is missing, and drop the least recently used entry of a full cache."""
    value = cache.pop(key) if key in cache else make()
    if len(cache) >= _MAX_ENTRIES:
        del cache[next(iter(cache))]
    cache[key] = value
    return value
