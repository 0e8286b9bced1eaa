"""What the targets of one run have in common: the files that they map, and their root directories.

Law: a file that several processes map is opened and parsed once.  It is the same if device, inode, time and
size are; or, seen through another file system (a container's), if path, size, headers and build-id are.  No
more than `_MOST` of anything is kept for the next process: who uses a thing keeps it.
"""

import os
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from typing import TypeVar

from sfsample.debug_files import finder
from sfsample.errors import FormatError
from sfsample.files import Root
from sfsample.formats.elf import ElfImage
from sfsample.modules.tables import Tables

_MOST = 256  # each image has a file open
_HEAD = 4096

_K = TypeVar("_K")
_V = TypeVar("_V")


class Shared:
    """Opens each thing once.  `debug_dirs` are searched for debug files before the system's."""

    def __init__(self, debug_dirs: Sequence[str] = ()) -> None:
        self._debug_dirs = debug_dirs
        self._images: dict[tuple[object, ...], ElfImage] = {}
        self._tables: dict[ElfImage, Tables] = {}
        self._roots: dict[tuple[object, ...], Root] = {}

    def file(self, fd: int, name: str, begins: int = 0) -> ElfImage:
        """Return the image that begins there in an open file, which the target knows as `name`.

        Raises FormatError.
        """
        found = os.fstat(fd)
        if not found.st_size:
            raise FormatError(name, 0, "is empty")
        key = name, begins, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
        if key in self._images:
            return self._kept(key, self._images[key])
        image = ElfImage(mmap(fd, 0, access=ACCESS_READ, offset=begins), name, begins)
        return _keep(self._images, key, self._same(image) if image.build_id else image)

    def _same(self, image: ElfImage) -> ElfImage:
        """Return the image with this build-id that is open, or else this one."""
        return self._kept((image.name, len(image.data), image.build_id, bytes(image.data[:_HEAD])), image)

    def memory(self, data: bytes, name: str) -> ElfImage:
        """Return the image of these bytes.  Raises FormatError."""
        key = name, data
        return self._images[key] if key in self._images else self._kept(key, ElfImage(data, name))

    def _kept(self, key: tuple[object, ...], image: ElfImage) -> ElfImage:
        """Return what is kept, or else this image; it has been wanted last."""
        return _keep(self._images, key, self._images.pop(key, image))

    def tables_of(self, root: Root | None, image: ElfImage, path: str) -> Tables:
        """Return the unwind tables of an image that was mapped from `path` by a process of this root."""
        found = self._tables.get(image)
        return found or _keep(self._tables, image, Tables(image, path, finder(root, self._debug_dirs)))

    def root(self, path: str, mounts: str | None) -> Root:
        """Return a root directory, as seen in this mount namespace.  Raises OSError."""
        root = Root(path)
        key = (mounts, *root.identity)
        return self._roots.get(key) or _keep(self._roots, key, root)


def _keep(kept: dict[_K, _V], key: _K, value: _V) -> _V:
    """Keep a value, and give up for it what has been kept, or wanted, longest ago."""
    if len(kept) >= _MOST:
        del kept[next(iter(kept))]
    kept[key] = value
    return value
