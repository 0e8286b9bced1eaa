"""Shares ELF files, unwind tables and root directories among processes, and keeps processes for a next slice.

Two files are the same if their device, inode, time of the last change and size are the same.  Only the kernel
sets these values, while any program can make a file with the same build-id or path.  Processes share tables
only if their root directory is also the same, because sfsample looks there for debug files.  The cache has
only what processes and profiles still use, because an open file keeps its disk space after its deletion.

Invariant: no process can put its file or its debug file in the place of another process's file
(tests/process/test_image_cache.py).
"""

import os
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.unwind_tables import UnwindTables

if TYPE_CHECKING:
    from sfsample.process.process import LiveProcess


class ImageCache:
    """The opened files of one recording; in a watch, the files and processes of all slices."""

    def __init__(self) -> None:
        self._images = WeakValueDictionary[tuple[object, ...], ElfImage]()
        self._tables = WeakValueDictionary[tuple[ElfImage, Root | None], UnwindTables]()
        self._roots = WeakValueDictionary[tuple[object, ...], Root]()
        self.processes: dict[int, LiveProcess] = {}  # by pid: processes that the last recording left open

    def file(self, fd: int, name: str) -> ElfImage:
        """Return the image in an open file; `name`: its path in the target.  Raises FormatError."""
        status = os.fstat(fd)
        if not status.st_size:
            raise FormatError(name, 0, "is empty")
        key = name, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size
        images = self._images
        return images.get(key) or images.setdefault(key, ElfImage(mmap(fd, 0, access=ACCESS_READ), name))

    def memory(self, data: bytes, name: str) -> ElfImage:
        """Return the image in `data`.  Raises FormatError."""
        return self._images.get((name, data)) or self._images.setdefault((name, data), ElfImage(data, name))

    def tables_of(self, root: Root | None, image: ElfImage) -> UnwindTables:
        """Return the unwind tables of an image that a process with this root directory has mapped."""
        return self._tables.setdefault((image, root), UnwindTables(image, root))

    def root(self, path: str, mounts: str | None) -> Root:
        """Return the root directory `path`; `mounts` names its mount namespace.  Raises OSError."""
        root = Root(path)
        return self._roots.setdefault((mounts, *root.identity), root)
