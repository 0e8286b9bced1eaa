"""A saved stack, unwound again from the files on this machine.

Law: a file is believed only if it is the one that was mapped then (build-id, or the checksum of its head).
One that is missing or differs ends the replay with an error that names it: what the walk would do without it
tells nothing.
"""

import os
from collections.abc import Sequence
from functools import partial
from mmap import ACCESS_READ, mmap
from typing import NamedTuple

from sfsample.core.filesystem import root_at
from sfsample.core.stack import Stack
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import debug_file_finder
from sfsample.modules.generated_code import ReadMemory
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.modules.unwind_tables import UnwindTables
from sfsample.saved_stacks.format import VDSO, Pieces, SavedModule, SavedStack, identify
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES, Unwinder


class Replayed(NamedTuple):
    """A stack, and the module of each frame."""

    stack: Stack
    modules: tuple[Module | None, ...]
    problems: tuple[str, ...]


def replay(
    saved: SavedStack,
    *,
    sysroot: str = "",
    debug_dirs: Sequence[str] = (),
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS,
    max_frames: int = MAX_FRAMES,
) -> Replayed:
    """Unwind; modules are looked for under `sysroot`.  Raises SfsampleError when one is not there."""
    files = _Files(saved, sysroot)
    tables_of = partial(UnwindTables, find=debug_file_finder(root_at(sysroot), debug_dirs))
    index = ModuleMap(lambda: saved.mappings, files, _reader(saved.code), tables_of)
    index.refresh()
    snapshot = saved.snapshot
    stack = Unwinder(index, steppers, max_frames).walk(snapshot)
    if files.refused:
        raise SfsampleError(
            f"cannot replay: {next(iter(files.refused.values()))}",
            *list(files.refused.values())[1:],
            "get the files of the machine it was saved on, and name their root with --sysroot",
        )
    modules = tuple(index.find(frame.lookup_pc) for frame in stack.frames)
    return Replayed(stack, modules, tuple(index.problems))


def _reader(pieces: Pieces) -> ReadMemory:
    """Return what reads saved code; what was not saved are zeros, which no stepper takes for its code."""

    def read(address: int, size: int) -> bytes:
        found = bytearray(size)
        for at, data in pieces:
            low, high = max(at, address), min(at + len(data), address + size)
            if low < high:
                found[low - address : high - address] = data[low - at : high - at]
        return bytes(found)

    return read


class _Files:
    """Opens the files of the mappings; `refused` says which were not there, by path."""

    def __init__(self, saved: SavedStack, sysroot: str) -> None:
        self._modules = saved.modules
        self._vdso = saved.vdso
        self._sysroot = sysroot
        self.refused: dict[str, str] = {}

    def __call__(self, mapping: Mapping) -> ElfImage:
        """Return the image that was mapped.  Raises FormatError, having noted why."""
        try:
            return self._open(mapping)
        except FormatError as refusal:
            self.refused[mapping.path] = f"{mapping.path}: {refusal.what}"
            raise

    def _open(self, mapping: Mapping) -> ElfImage:
        if mapping.path == VDSO:
            if not self._vdso:
                raise FormatError(VDSO, 0, "was not saved")
            return ElfImage(self._vdso, VDSO)
        known = self._module_at(mapping)
        if known is None:
            raise FormatError(mapping.path, 0, "could not be read when the stack was saved")
        image = _read(self._sysroot + mapping.path, mapping.path, known.begins_at)
        here = identify(Module(image, 0, mapping.path))
        if not _same(known, here):
            raise FormatError(mapping.path, 0, f"differs: {_name(here)} here, {_name(known)} was mapped")
        return image

    def _module_at(self, mapping: Mapping) -> SavedModule | None:
        """Return the last one that begins in the file where the mapping does, or before."""
        below = (one for one in self._modules if one.path == mapping.path and one.begins_at <= mapping.offset)
        return max(below, key=lambda one: one.begins_at, default=None)


def _read(path: str, name: str, begins_at: int) -> ElfImage:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            fd = file.fileno()
            if not os.fstat(fd).st_size:
                raise FormatError(name, 0, "is empty")
            return ElfImage(mmap(fd, 0, access=ACCESS_READ, offset=begins_at), name, begins_at)
    except OSError as failure:
        raise FormatError(name, 0, f"cannot be opened: {failure.strerror}: {path}") from None
    except (ValueError, OverflowError):
        raise FormatError(name, 0, f"is not the one that was mapped: nothing is at {begins_at:#x}") from None


def _same(there: SavedModule, here: SavedModule) -> bool:
    return there.build_id == here.build_id and (there.build_id is not None or there.checksum == here.checksum)


def _name(module: SavedModule) -> str:
    return f"build-id {module.build_id}" if module.build_id else f"head {module.checksum}"
