"""Finds and opens the ELF file behind a mapping of a live process.

sfsample uses a file only if its headers and notes (build-id) equal the bytes in the target's memory.  The
order of attempts is: the path inside the target's root directory; the path in sfsample's own root directory;
/proc/PID/map_files (the mapped file itself, even if it was deleted); the target's memory, which is always
right but has no `.symtab`.  The vdso is in no file, so sfsample reads it from memory.  The target may replace
a library after sfsample has read the memory map.  So sfsample checks the mapping before and after it opens a
file of map_files or copies the memory.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial

from sfsample.core.filesystem import Root, open_regular
from sfsample.errors import FormatError
from sfsample.formats.elf.dynamic import as_linked
from sfsample.formats.elf.image import PAGE, PF_W, PT_DYNAMIC, PT_LOAD, ElfImage
from sfsample.modules.mapping import Mapping, base_of
from sfsample.process.image_cache import ImageCache
from sfsample.process.procfs import ProcFs
from sfsample.process.vm import read_memory

_MAX_REBUILT_BYTES = 512 << 20  # bytes to copy from a process's memory; 500 libraries of Debian have 300 MB
_MAX_PROBLEMS = 10_000


class ImageOpener:
    """Opens the images of one process; `problems` names files on disk that differ from the mapped files."""

    def __init__(self, proc: ProcFs, image_cache: ImageCache, root: Root | None) -> None:
        """`root`: the root directory of the process; None: sfsample may not open it."""
        self._proc = proc
        self._roots = (root, Root()) if root else (Root(),)
        self._images = image_cache
        self._pid = proc.pid
        self._left = _MAX_REBUILT_BYTES
        self.problems: list[str] = []

    def __call__(self, mapping: Mapping) -> ElfImage:
        """Return the image behind a mapping.  Raises FormatError if neither a file nor memory is usable."""
        self._pid = self._proc.anchor()
        if mapping.path == "[vdso]":
            return self._images.memory(self._read(mapping.start, mapping.end - mapping.start), "[vdso]")
        refused = ""
        for open_file in self._candidates(mapping):
            try:
                image = self._mapped_image(open_file(), mapping)
            except FormatError as damage:
                refused = str(damage)
            except OSError as failure:
                refused = refused or f"cannot be opened ({failure.strerror})"
            else:
                if image is not None:
                    return image
                refused = "another file is at this path now"
        try:
            rebuilt = self._rebuild(mapping)
        except FormatError as damage:
            raise FormatError(damage.section, damage.offset, f"{damage.what}; its file: {refused}") from None
        what = "using the copy in the target's memory, which has the exported names only"
        problem = f"{mapping.path}: {refused}; {what}"
        if problem not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)
        return rebuilt

    def _mapped_image(self, fd: int, mapping: Mapping) -> ElfImage | None:
        """Return the image in an open file, and close the file; None: another file is mapped."""
        with os.fdopen(fd, "rb", buffering=0):
            image, status = self._images.file(fd, mapping.path), os.fstat(fd)
        maps = self._proc.maps()
        same = any(self._is_mapped(image, other, maps, status) for other in _of_same_file(mapping, maps))
        return image if same else None

    def _open_map_file(self, mapping: Mapping) -> int:
        """Open the file that is mapped at the addresses of a mapping, whatever its path."""
        self._check_still_mapped(mapping)
        fd = open_regular(self._map_file(mapping))
        try:
            self._check_still_mapped(mapping)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_still_mapped(self, mapping: Mapping) -> None:
        if mapping not in self._proc.maps():
            raise FormatError("memory map", mapping.start, "another file was mapped there meanwhile")

    def _candidates(self, mapping: Mapping) -> Iterator[Callable[[], int]]:
        """Yield functions that open the file.  The path in the maps may begin at either root, so try both."""
        if not mapping.deleted:
            for root in self._roots:
                yield partial(root.open, mapping.path)
        yield partial(self._open_map_file, mapping)

    def _is_mapped(
        self, image: ElfImage, mapping: Mapping, maps: tuple[Mapping, ...], status: os.stat_result
    ) -> bool:
        """Return True if the headers and notes in memory equal the image's headers and notes.

        Without a build-id, or if nothing can be compared, the inode must be the same.  At the address of a
        header, another file may be mapped, or another part of this file; such bytes are not compared.
        """
        bias = _bias(image, mapping)
        if bias is None:
            return False
        spans = [(m.start, m.end) for m in maps
                 if not m.is_file or (_file(m) == _file(mapping) and _bias(image, m) == bias)]  # fmt: skip
        pairs = [(read_memory(self._pid, vaddr + bias, size), image.loaded(vaddr, size))
                 for vaddr, size in image.identity_ranges
                 if any(start <= vaddr + bias < end for start, end in spans)]  # fmt: skip
        compared = [in_memory == in_file for in_memory, in_file in pairs if in_memory and in_file]
        if not all(compared):
            return False
        return bool(compared and image.build_id) or self._is_same_file(status, mapping)

    def _is_same_file(self, status: os.stat_result, mapping: Mapping) -> bool:
        try:
            return os.path.samestat(status, os.stat(self._map_file(mapping)))
        except OSError:  # map_files needs privileges
            # devices differ between /proc/PID/maps and stat(2) on btrfs and overlayfs
            return status.st_ino == mapping.inode

    def _map_file(self, mapping: Mapping) -> str:
        return f"/proc/{self._pid}/map_files/{mapping.start:x}-{mapping.end:x}"

    # -- from memory

    def _read(self, address: int, size: int) -> bytes:
        data = read_memory(self._pid, address, size)
        if data is None:
            raise FormatError("memory", address, f"{size} bytes of the target cannot be read")
        return data

    def _rebuild(self, mapping: Mapping) -> ElfImage:
        """Make an image of the loaded segments, except writable ones, which the process changes."""
        self._check_still_mapped(mapping)
        base = base_of(mapping, self._proc.maps())
        if base is None:
            raise FormatError("memory", mapping.start, "the ELF header is not mapped")
        image = ElfImage(self._read(base, PAGE), mapping.path).headers()  # memory has no sections
        loads = [s for s in image.segments if s.type == PT_LOAD and not s.flags & PF_W]
        size = max((s.offset + s.filesz for s in loads), default=0)
        copied = max(size, sum(s.filesz for s in loads))
        if not loads or copied > self._left:
            raise FormatError("memory", base, f"{copied} bytes are too many to copy")
        self._left -= copied
        bias = base - (image.head.vaddr if image.head else 0)
        data = bytearray(size)
        for s in loads:
            data[s.offset : s.offset + s.filesz] = self._read(s.vaddr + bias, s.filesz)
        data[: len(image.data)] = image.data[:size]
        self._add_dynamic(data, image, bias)
        self._check_still_mapped(mapping)
        return ElfImage(bytes(data), mapping.path)

    def _add_dynamic(self, data: bytearray, image: ElfImage, bias: int) -> None:
        """Add the dynamic section, even a writable one: it leads to the names of exported functions."""
        segment = image.segment(PT_DYNAMIC)
        if segment is None or not 0 < segment.filesz <= PAGE or segment.offset > _MAX_REBUILT_BYTES:
            return
        raw = read_memory(self._pid, segment.vaddr + bias, segment.filesz)
        if raw is None:
            return
        section = as_linked(raw, bias, image.byteorder)
        data.extend(bytes(max(0, segment.offset + segment.filesz - len(data))))
        data[segment.offset : segment.offset + len(section)] = section


def _of_same_file(mapping: Mapping, maps: tuple[Mapping, ...]) -> Iterator[Mapping]:
    """Yield the mapping, then other mappings of its file: V8 maps its code again, far from the headers."""
    yield mapping
    for other in maps if mapping.inode else ():
        if other != mapping and other.executable and _file(other) == _file(mapping):
            yield other


def _file(mapping: Mapping) -> tuple[str, str, int]:
    return mapping.path, mapping.device, mapping.inode


def _bias(image: ElfImage, mapping: Mapping) -> int | None:
    return image.load_bias(mapping.start, mapping.offset, executable=mapping.executable)
