"""Shares ELF files, unwind tables and root directories among processes, so that none is opened twice.

Two files are the same if their device, inode, time of the last change and size are the same.  Only the kernel
sets these values, while any program can make a file with the same build-id or path.  Processes share tables
only if their root directory is also the same, because sfsample looks there for debug files.  The cache drops
the least recently used entries; processes keep references to the images in use.

Invariant: no process can put its file or its debug file in the place of another process's file
(tests/process/test_image_cache.py).
"""

import os
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from typing import Generic, TypeVar

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.unwind_tables import UnwindTables

_MAX_ENTRIES = 512  # images, tables or roots; an image keeps a file open

_K = TypeVar("_K")
_V = TypeVar("_V")


class ImageCache:
    """A cache of opened files, for one recording, or for all slices of a watch."""

    def __init__(self) -> None:
        self._images = _Entries[tuple[object, ...], ElfImage]()
        self._tables = _Entries[tuple[ElfImage, Root | None], UnwindTables]()
        self._roots = _Entries[tuple[object, ...], Root]()

    def begin_slice(self) -> None:
        """Drop the entries that the last slice did not use: an open deleted file still uses disk space."""
        for entries in (self._images, self._tables, self._roots):
            entries.drop_unused()

    def file(self, fd: int, name: str) -> ElfImage:
        """Return the image in an open file; `name`: its path in the target.  Raises FormatError."""
        status = os.fstat(fd)
        if not status.st_size:
            raise FormatError(name, 0, "is empty")
        key = name, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size
        return self._images.get(key, lambda: ElfImage(mmap(fd, 0, access=ACCESS_READ), name))

    def memory(self, data: bytes, name: str) -> ElfImage:
        """Return the image in `data`.  Raises FormatError."""
        return self._images.get((name, data), lambda: ElfImage(data, name))

    def tables_of(self, root: Root | None, image: ElfImage) -> UnwindTables:
        """Return the unwind tables of an image that a process with this root directory has mapped."""
        return self._tables.get((image, root), lambda: UnwindTables(image, root))

    def root(self, path: str, mounts: str | None) -> Root:
        """Return the root directory `path`; `mounts` names its mount namespace.  Raises OSError."""
        root = Root(path)
        return self._roots.get((mounts, *root.identity), lambda: root)


class _Entries(Generic[_K, _V]):
    """The entries of one kind, in the order of their last use."""

    def __init__(self) -> None:
        self._used: dict[_K, _V] = {}  # entries that this slice has used
        self._earlier: dict[_K, _V] = {}  # entries of the last slice that this slice has not used

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Return an entry; make a missing entry, and drop the least recently used entry of a full cache."""
        value = self._used.pop(key, None) or self._earlier.pop(key, None) or make()
        if len(self._used) >= _MAX_ENTRIES:
            del self._used[next(iter(self._used))]
        self._used[key] = value
        return value

    def drop_unused(self) -> None:
        """Begin a slice: drop the entries that the last slice did not use."""
        self._earlier, self._used = self._used, {}
