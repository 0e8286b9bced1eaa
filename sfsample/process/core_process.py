"""Presents a core file as a process: module map, memory, and a snapshot of each thread.

Memory that was not dumped comes from the mapped files.  sfsample uses a file only if its headers and notes
equal the dumped bytes.  Only the constructor raises; a later failure becomes a line of `problems`.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from sfsample.core.arch import ARCHES, Arch, arch_of
from sfsample.core.filesystem import Root, map_and_close, open_regular
from sfsample.core.snapshot import Registers, ThreadSnapshot
from sfsample.errors import CoreError, FormatError
from sfsample.formats.elf import core_file
from sfsample.formats.elf.image import PAGE, PF_X, PT_LOAD, ElfImage, Segment
from sfsample.modules.mapping import Mapping, split_mark
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.modules.unwind_tables import UnwindTables
from sfsample.process.registers import NT_ARM_PAC_MASK, decode, layout_of, with_pac_mask

_NO_FILES = "the core file does not say which files were mapped (no NT_FILE): code has no names"
_HELP = "give a core file: gcore -o FILE PID, or coredumpctl dump -o FILE"
_PF_R = 4  # bit "readable" of a segment's p_flags


class CoreMemory:
    """Memory by address: from the core file, or from the mapped files if it was not dumped."""

    def __init__(self, core: core_file.CoreFile) -> None:
        self._core = core
        self._segments = sorted((s for s in core.segments if s.filesz), key=lambda s: s.vaddr)
        self._starts = [s.vaddr for s in self._segments]
        self.modules: ModuleMap | None = None  # mapped files; None until the map is built from this memory
        self._owners: dict[Mapping, Module | None] = {}  # module to which a mapping without code belongs
        self.byteorder = core.byteorder

    def word(self, address: int) -> int | None:
        """Return the unsigned 8-byte word at `address`."""
        data = self.read(address, 8)
        return None if data is None else int.from_bytes(data, self.byteorder)

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes from `address`."""
        data = self.dumped(address, size)
        if data is not None or self.modules is None:
            return data
        module = self.modules.find(address) or self._owner_of_constant(self.modules, address)
        return None if module is None else module.code(address, size)

    def _owner_of_constant(self, modules: ModuleMap, address: int) -> Module | None:
        """Return the module that has `address` in a segment that no process writes to."""
        mapping = modules.any_mapping(address)
        if mapping is None or not mapping.is_file or mapping.executable:
            return None
        if mapping not in self._owners:
            code = [m for m in modules.mappings if m.executable and m.path == mapping.path]
            nearest = min(code, key=lambda m: abs(m.start - mapping.start), default=None)
            self._owners[mapping] = modules.find(nearest.start) if nearest else None
        owner = self._owners[mapping]
        return owner if owner is not None and owner.image.is_constant(owner.vaddr(address)) else None

    def dumped(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes; None: the core file itself does not have these bytes."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or size < 0:
            return None
        segment = self._segments[at]
        skip = address - segment.vaddr
        if skip + size > segment.filesz:
            return None
        data = bytes(self._core.image.data[segment.offset + skip : segment.offset + skip + size])
        return data if len(data) == size else None


def open_core(path: str, exe: str | None = None, sysroot: str = "") -> "CoreProcess":
    """Open a core file; `exe` and `sysroot`: see `CoreImages`.  Raises CoreError."""
    try:
        image = ElfImage(map_and_close(open_regular(path)), path, is_core=True)
        return CoreProcess(image, exe, sysroot)
    except (OSError, FormatError) as failure:
        shown = path or repr("")
        if isinstance(failure, OSError):
            raise CoreError(f"cannot read core file: {shown}: {failure.strerror}", _HELP) from None
        raise CoreError(
            f"cannot read core file: {shown}: {str(failure).removeprefix(f'{path}+0x0: ')}",
            "it must be a 64-bit ELF core file, as the kernel and gcore write them;",
            "systemd-coredump compresses core files; unpack such a file first: zstd -d < FILE > core",
        ) from None  # fmt: skip


class CoreProcess:
    """A process as its core file describes it.  Raises FormatError if the file is too damaged to use."""

    def __init__(self, image: ElfImage, exe: str | None = None, sysroot: str = "") -> None:
        arch = arch_of(image.machine, image.byteorder)
        if arch is None:
            known = ", ".join(arch.name for arch in ARCHES)
            raise FormatError(image.name, 18, f"e_machine {image.machine} is none of {known}")
        self.arch: Arch = arch
        self._core = core_file.CoreFile(image)
        self.memory = CoreMemory(self._core)
        self.opener = CoreImages(self._core, self.memory, exe, sysroot)
        root = self.opener.root if sysroot else None
        tables_of = partial(UnwindTables, root=root)
        self.modules = ModuleMap(self._maps, self.opener, self.memory.dumped, tables_of)
        self.modules.refresh()
        self.memory.modules = self.modules
        self.pid = self._core.pid or self._core.threads[0].tid
        self.name, self.arguments = self._core.name, self._core.arguments
        self.signal = self._core.threads[0].signal
        self.exe = self.opener.exe_path  # path of the program, as the process saw it; None: unknown
        self.size = len(image.data)  # bytes of the core file

    @property
    def problems(self) -> list[str]:
        """Damage in the core file, and modules that could not be opened."""
        unnamed = [] if self._core.files else [_NO_FILES]
        return [*self._core.problems, *unnamed, *self.opener.problems, *self.modules.problems]

    def threads(self) -> list[core_file.CoreThread]:
        """Return the threads; the first thread received the signal."""
        return self._core.threads

    def snapshot(self, thread: core_file.CoreThread) -> ThreadSnapshot | str:
        """Return the snapshot of a thread, or the reason why the snapshot is missing."""
        registers = Registers()
        for register_set in layout_of(self.arch).sets:
            raw = thread.sets.get(register_set.note, b"")
            if len(raw) >= register_set.size:
                registers |= decode(register_set, raw, self.arch)
            elif register_set.note == core_file.NT_PRSTATUS:
                return f"its registers are {len(raw)} bytes, not {register_set.size}"
        mask = thread.sets.get(NT_ARM_PAC_MASK, b"")
        arch = with_pac_mask(self.arch, mask) if len(mask) >= 16 else self.arch
        return ThreadSnapshot(
            thread.tid, registers, self.memory, bounded=False, stop_ns=0, eintr=False, arch=arch
        )

    def _maps(self) -> tuple[Mapping, ...]:
        """Return the mappings: permissions come from the segments, paths come from the note NT_FILE.

        gdb writes no segment for memory that it does not dump, such as code.
        """
        files = {f.start: f for f in self._core.files}
        segments = {s.vaddr: s for s in self._core.segments}
        vdso = self._core.auxv.get(core_file.AT_SYSINFO_EHDR)
        mappings = [self._mapping(s, files.get(s.vaddr), vdso) for s in segments.values()]
        mappings += [self._mapping(Segment(PT_LOAD, _PF_R | PF_X, 0, f.start, 0, f.end - f.start), f, vdso)
                  for f in files.values() if f.start not in segments and f.end > f.start]  # fmt: skip
        return tuple(sorted(mappings))

    def _mapping(self, segment: Segment, file: core_file.MappedFile | None, vdso: int | None) -> Mapping:
        stated = file.path if file else "[vdso]" if segment.vaddr == vdso else ""
        path, deleted = split_mark(stated, self.opener.has_file)
        return Mapping(
            start=segment.vaddr, end=segment.vaddr + segment.memsz, readable=bool(segment.flags & _PF_R),
            executable=bool(segment.flags & PF_X), offset=file.offset if file else 0, device="",
            inode=int(file is not None), path=path, deleted=deleted,
        )  # fmt: skip


class CoreImages:
    """Opens the mapped files below `sysroot`; the file `exe` replaces the file of the program."""

    def __init__(self, core: core_file.CoreFile, memory: CoreMemory, exe: str | None, sysroot: str) -> None:
        self._core = core
        self._memory = memory
        self._exe = exe
        self._sysroot, self.root = sysroot, Root(sysroot or "/")
        entry, files = core.auxv.get(core_file.AT_ENTRY, 0), core.files
        path = next((f.path for f in files if f.start <= entry < f.end), files[0].path if files else "")
        # path of the program, as the process saw it
        self.exe_path = split_mark(path, self.has_file)[0] or None
        self.problems: list[str] = []
        self._images: dict[str, ElfImage] = {}

    def __call__(self, mapping: Mapping) -> ElfImage:
        """Return the image behind a mapping.  Raises CoreError or FormatError if no file fits."""
        if mapping.path == "[vdso]":
            return self._from_memory(mapping)
        refusals = []
        for path, open_file in self._candidates(mapping):
            try:
                image = self._open(path, open_file)
            except OSError as failure:
                refusals.append(f"{path} cannot be opened ({failure.strerror})")
                continue
            except FormatError as damage:
                refusals.append(str(damage))
                continue
            if self._is_mapped(image, mapping):
                break
            refusals.append(f"{path} is not the file that was mapped{self._difference(image, mapping)}")
        else:
            try:
                image = self._from_memory(mapping)
            except FormatError:
                raise CoreError("; ".join(refusals)) from None
        if self._exe and refusals and mapping.path == self.exe_path:
            problem = f"--exe is not used: {refusals[0]}"
            self.problems += [problem] * (problem not in self.problems)
        return image

    def has_file(self, path: str) -> bool:
        """Return True if a file is at this absolute path inside `sysroot`."""
        with suppress(OSError):
            os.close(self.root.open(path))
            return True
        return False

    def _open(self, path: str, open_file: Callable[[], int]) -> ElfImage:
        if path not in self._images:
            self._images[path] = ElfImage(map_and_close(open_file()), path)
        return self._images[path]

    def _candidates(self, mapping: Mapping) -> Iterator[tuple[str, Callable[[], int]]]:
        if self._exe and mapping.path == self.exe_path:
            yield self._exe, partial(open_regular, self._exe)
        yield self._sysroot + mapping.path, partial(self.root.open, mapping.path)

    def _difference(self, image: ElfImage, mapping: Mapping) -> str:
        """Return " (build-id A, mapped was B)"; "" if the build-id of the mapped file is unknown."""
        start = next((f.start for f in self._core.files if (f.path, f.offset) == (mapping.path, 0)), None)
        head = None if start is None else self._memory.dumped(start, PAGE)
        try:
            mapped = ElfImage(head or b"", mapping.path).build_id
        except FormatError:
            return ""
        return f" (build-id {image.build_id or 'none'}, mapped was {mapped})" if mapped else ""

    def _is_mapped(self, image: ElfImage, mapping: Mapping) -> bool:
        """Return True if the dumped parts of headers and notes equal the bytes of the image."""
        if image.machine != self._core.image.machine:
            return False
        bias = image.load_bias(mapping.start, mapping.offset, executable=mapping.executable)
        if bias is None:
            return False
        dumped = {part: self._memory.dumped(part[0] + bias, part[1]) for part in image.identity_ranges}
        compared = [data == bytes(image.loaded(*part) or b"") for part, data in dumped.items() if data]
        if not compared:
            problem = f"{image.name} is not confirmed: the core file has no bytes of {mapping.path}"
            self.problems.append(problem)
        return all(compared)

    def _from_memory(self, mapping: Mapping) -> ElfImage:
        """Make an image of a completely dumped mapping that begins with an ELF header, such as the vdso."""
        size = mapping.end - mapping.start
        data = self._memory.dumped(mapping.start, size) if mapping.offset == 0 else None
        if data is None:
            raise FormatError(mapping.path, 0, "was not dumped")
        return ElfImage(data, mapping.path)
