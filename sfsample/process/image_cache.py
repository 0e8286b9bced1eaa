"""What the targets of one run have in common: the files that they map, and their root directories.

Law: a file that several processes map is opened and parsed once.  It is the same if device, inode, time and
size are; or, seen through another file system (a container's), if path, size, headers and build-id are.  No
more than `_MOST` of anything is kept for the next process: who uses a thing keeps it.
"""

import os
from collections.abc import Callable, Sequence
from mmap import ACCESS_READ, mmap
from typing import TypeVar

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import debug_file_finder
from sfsample.modules.unwind_tables import UnwindTables

_MOST = 256  # each image has a file open
_HEAD = 4096

_K = TypeVar("_K")
_V = TypeVar("_V")


class ImageCache:
    """Opens each thing once.  `debug_dirs` are searched for debug files before the system's."""

    def __init__(self, debug_dirs: Sequence[str] = ()) -> None:
        self._debug_dirs = debug_dirs
        self._images: dict[tuple[object, ...], ElfImage] = {}
        self._tables: dict[ElfImage, UnwindTables] = {}
        self._roots: dict[tuple[object, ...], Root] = {}

    def file(self, fd: int, name: str, begins: int = 0) -> ElfImage:
        """Return the image that begins there in an open file, which the target knows as `name`.

        Raises FormatError.
        """
        found = os.fstat(fd)
        if not found.st_size:
            raise FormatError(name, 0, "is empty")
        key = name, begins, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
        return _kept(self._images, key, lambda: self._opened(fd, name, begins))

    def _opened(self, fd: int, name: str, begins: int) -> ElfImage:
        """Open a file; return the image with its build-id that is open already, if there is one."""
        image = ElfImage(mmap(fd, 0, access=ACCESS_READ, offset=begins), name, begins)
        if not image.build_id:
            return image
        key = name, len(image.data), image.build_id, bytes(image.data[:_HEAD])
        return _kept(self._images, key, lambda: image)

    def memory(self, data: bytes, name: str) -> ElfImage:
        """Return the image of these bytes.  Raises FormatError."""
        return _kept(self._images, (name, data), lambda: ElfImage(data, name))

    def tables_of(self, root: Root | None, image: ElfImage, path: str) -> UnwindTables:
        """Return the unwind tables of an image that was mapped from `path` by a process of this root."""
        return _kept(
            self._tables, image, lambda: UnwindTables(image, path, debug_file_finder(root, self._debug_dirs))
        )

    def root(self, path: str, mounts: str | None) -> Root:
        """Return a root directory, as seen in this mount namespace.  Raises OSError."""
        root = Root(path)
        return _kept(self._roots, (mounts, *root.identity), lambda: root)


def _kept(kept: dict[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    """Return what is kept, or make it; it has been wanted last, and what was longest ago may be given up."""
    value = kept.pop(key) if key in kept else make()
    if len(kept) >= _MOST:
        del kept[next(iter(kept))]
    kept[key] = value
    return value
