"""Reads ELF core files: the mappings, the bytes that were dumped, and the notes about the process.

Counts and sizes are limited by the size of the file.  A damaged note is skipped, and noted in `problems`.

Source: gABI chapter 5 (notes); Linux include/linux/elfcore.h (`elf_prstatus`, `elf_prpsinfo`: one layout on
all 64-bit machines) and fs/binfmt_elf.c (NT_FILE); gdb writes the same notes.
"""

from collections.abc import Iterator
from struct import iter_unpack, unpack_from
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError
from sfsample.formats.elf.image import PT_LOAD, PT_NOTE, ElfImage, Note, Segment, notes

ET_CORE = 4
NT_PRSTATUS = 1  # note type; others, in `_read_note`: NT_PRPSINFO 3, NT_AUXV 6, NT_FILE 0x46494c45
AT_ENTRY, AT_SYSINFO_EHDR = 9, 33
_SIGNAL, _PID, _REGISTERS = 12, 32, 112  # offsets in elf_prstatus: pr_cursig, pr_pid, pr_reg
_PSINFO_PID, _FNAME, _PSARGS = 24, (40, 56), (56, 136)  # offsets in elf_prpsinfo: pr_pid, pr_fname, pr_psargs
LEAST_SIZE = 50_000_000  # bytes; a smaller core file has the limits of a file of this size
_BYTES_PER_NOTE = 200  # a file with fewer bytes per note is refused; real files have more
_MAX_FILES = 500_000  # entries of NT_FILE
_MAX_AUXV_BYTES = 4096  # bytes; the kernel writes less than 1024


class CoreThread(NamedTuple):
    """A thread of the process."""

    tid: int
    signal: int  # current signal (pr_cursig); 0: none
    sets: dict[int, bytes]  # note type -> raw register set


class MappedFile(NamedTuple):
    """One entry of NT_FILE: a file that is mapped at the addresses [start, end)."""

    start: int
    end: int
    offset: int  # bytes from the start of the file
    path: str


class CoreFile:
    """The contents of a core file.  Raises FormatError if `image` is no core file, or describes no thread."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        # mappings of the process; of each mapping, the file has the first `filesz` bytes
        self.segments = [s for s in image.segments if s.type == PT_LOAD and s.memsz]
        self.byteorder: ByteOrder = image.byteorder
        self.problems: list[str] = []
        self.threads: list[CoreThread] = []
        self.files: tuple[MappedFile, ...] = ()
        self.auxv: dict[int, int] = {}
        self.pid = 0  # pid of the process; 0: unknown
        self.name = self.arguments = ""
        self._order = "<" if image.byteorder == "little" else ">"
        if image.type != ET_CORE:
            raise FormatError(image.name, 16, "not a core file")
        self._read_notes()
        if not self.threads:
            raise FormatError(image.name, 0, "no thread is described (no NT_PRSTATUS note)")
        size = len(image.data)
        missing = max((s.offset + s.filesz - size for s in self.segments), default=0)
        if missing > 0:
            self.problems.append(f"{image.name}: truncated: its last {missing} bytes are missing")

    # -- notes

    def _read_notes(self) -> None:
        self._notes_left = max(len(self.image.data), LEAST_SIZE) // _BYTES_PER_NOTE
        for segment in self.image.segments:
            if segment.type == PT_NOTE:
                try:
                    self._read_segment(segment)
                except FormatError as limit:
                    self._note_damage(segment, limit.offset, limit)
                if self._notes_left < 0:
                    raise FormatError(self.image.name, segment.offset, "more notes than its size allows")

    def _read_segment(self, segment: Segment) -> None:
        data = self.image.data[segment.offset : segment.offset + segment.filesz]
        for note in notes(data, self.byteorder):
            self._notes_left -= 1
            if self._notes_left < 0:
                return
            try:
                self._read_note(note)
            except FormatError as damage:
                self._note_damage(segment, note.offset, damage)

    def _note_damage(self, segment: Segment, offset: int, damage: FormatError) -> None:
        place = f"{self.image.name}+{segment.offset + offset:#x}"
        self.problems.append(f"{place}: {damage.section}: {damage.what}")

    def _read_note(self, note: Note) -> None:
        """Read one note.  A register set belongs to the thread of the last NT_PRSTATUS."""
        desc = note.desc
        match note.owner, note.type:
            case b"CORE", 1:
                if len(desc) <= _REGISTERS:
                    raise FormatError("NT_PRSTATUS", 0, f"of {len(desc)} bytes")
                signal, tid = unpack_from(f"{self._order}H{_PID - _SIGNAL - 2}xI", desc, _SIGNAL)
                self.threads.append(CoreThread(tid, signal, {NT_PRSTATUS: bytes(desc[_REGISTERS:])}))
            case b"CORE", 3:
                self.name, self.arguments = _text(desc, *_FNAME), _text(desc, *_PSARGS)
                if len(desc) >= _PSINFO_PID + 4:
                    (self.pid,) = unpack_from(f"{self._order}I", desc, _PSINFO_PID)
            case b"CORE", 6:
                pairs = desc[: min(len(desc) & -16, _MAX_AUXV_BYTES)]
                self.auxv = dict(iter_unpack(f"{self._order}QQ", pairs))
            case b"CORE", 0x46494C45:
                self.files = tuple(self._read_files(desc))
            case b"CORE" | b"LINUX", kind:
                if self.threads:
                    self.threads[-1].sets.setdefault(kind, bytes(desc))

    def _read_files(self, desc: memoryview) -> Iterator[MappedFile]:
        """Read NT_FILE: count, page size, count * (start, end, offset in pages), count * path and NUL."""
        if len(desc) < 16:
            raise FormatError("NT_FILE", 0, f"of {len(desc)} bytes")
        count, page = unpack_from(f"{self._order}QQ", desc)
        if count > min((len(desc) - 16) // 24, _MAX_FILES):
            raise FormatError("NT_FILE", 0, f"{count} files in {len(desc)} bytes")
        paths = bytes(desc[16 + 24 * count :]).split(b"\0", count)
        places = iter_unpack(f"{self._order}QQQ", desc[16 : 16 + 24 * count])
        for (start, end, offset), path in zip(places, paths, strict=False):
            yield MappedFile(start, end, offset * page, path.decode("utf-8", "surrogateescape"))


def _text(desc: memoryview, start: int, end: int) -> str:
    return bytes(desc[start:end]).partition(b"\0")[0].decode("utf-8", "replace")
