"""Unwinds a saved stack again, with the files on this machine.

A file must be the file that was mapped when the stack was saved: its build-id must be the same; without a
build-id, its checksum.  If a file is missing or differs, the replay ends with an error that names the file,
because a walk without this file would prove nothing.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sfsample.core.filesystem import Root, map_and_close
from sfsample.core.memory import ReadMemory
from sfsample.core.stack import Stack
from sfsample.core.walk_limits import DEFAULT_ORDER, MAX_FRAMES
from sfsample.errors import FormatError, SfsampleError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import debug_file_finder
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.modules.unwind_tables import UnwindTables
from sfsample.saved_stacks.format import VDSO, Pieces, SavedModule, SavedStack, identify
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import Unwinder


class ReplayedStack(NamedTuple):
    """The result of a replay."""

    stack: Stack
    modules: tuple[Module | None, ...]  # module of each frame; None: the frame is in no module
    problems: tuple[str, ...]  # texts about files that could not be read


def replay(
    saved: SavedStack,
    *,
    sysroot: str = "",
    debug_dirs: Sequence[str] = (),
    steppers: Sequence[str | Stepper] = DEFAULT_ORDER,
    max_frames: int = MAX_FRAMES,
) -> ReplayedStack:
    """Unwind a saved stack with the files in `sysroot`; a missing or different file is a SfsampleError."""
    try:
        root = Root(sysroot or "/")
    except OSError as failure:
        raise SfsampleError(f"cannot open: {sysroot}: {failure.strerror}",
                            "give a directory: --sysroot DIR") from None  # fmt: skip
    refused: dict[str, str] = {}  # path -> text about a file that is missing or differs

    def open_image(mapping: Mapping) -> ElfImage:
        try:
            return _open_mapped(saved, root, mapping)
        except FormatError as refusal:
            refused[mapping.path] = f"{mapping.path}: {refusal.what}"
            raise

    files_root = root if sysroot else None
    tables_of = partial(UnwindTables, find=debug_file_finder(files_root, debug_dirs), root=files_root)
    modules = ModuleMap(lambda: saved.mappings, open_image, _reader(saved.code), tables_of)
    modules.refresh()
    stack = Unwinder(modules, steppers, max_frames).walk(saved.snapshot)
    if refused:
        first, *others = refused.values()
        raise SfsampleError(f"cannot replay: {first}", *others, "copy these files from the machine of the "
                            "recording to a directory, and name it with --sysroot")  # fmt: skip
    frame_modules = tuple(modules.find(frame.lookup_pc) for frame in stack.frames)
    return ReplayedStack(stack, frame_modules, tuple(modules.problems))


def _reader(pieces: Pieces) -> ReadMemory:
    """Return a function that reads saved code; other bytes are 0, which no stepper recognizes."""

    def read(address: int, size: int) -> bytes:
        code = bytearray(size)
        for at, data in pieces:
            low, high = max(at, address), min(at + len(data), address + size)
            if low < high:
                code[low - address : high - address] = data[low - at : high - at]
        return bytes(code)

    return read


def _open_mapped(saved: SavedStack, root: Root, mapping: Mapping) -> ElfImage:
    """Return the image that was mapped.  Raises FormatError if the file is missing or differs."""
    if mapping.path == VDSO:
        if not saved.vdso:
            raise FormatError(VDSO, 0, "was not saved")
        return ElfImage(saved.vdso, VDSO)
    mapped = next((module for module in saved.modules if module.path == mapping.path), None)
    if mapped is None:
        raise FormatError(mapping.path, 0, "could not be read when the stack was saved")
    try:
        image = ElfImage(map_and_close(root.open(mapping.path)), mapping.path)
    except OSError as failure:
        raise FormatError(mapping.path, 0, f"cannot be opened: {failure.strerror}") from None
    here = identify(Module(image, 0, mapping.path))
    if _identity(here) != _identity(mapped):
        raise FormatError(mapping.path, 0, f"differs: {_identity(here)} here, {_identity(mapped)} was mapped")
    return image


def _identity(module: SavedModule) -> str:
    return f"build-id {module.build_id}" if module.build_id else f"head {module.checksum}"
