"""Reads ELF files: segments, sections, notes.

Only this file imports pyelftools, and only to parse headers: pyelftools is too slow for CFI and symbols, and
decodes some CFI opcodes wrongly.  An exception of pyelftools on damaged bytes becomes a `FormatError`.
Section headers are read on first use; a stripped file or a copy of memory may have none.

Invariant: no table of a hostile file takes long to read.  Each table is read up to a limit, and `problems`
names the limits that were reached (tests/formats/elf/test_limits.py).
Source: System V gABI chapters 4 and 5; Linux fs/binfmt_elf.c, load_elf_phdrs (64 KiB of program headers).
"""

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import chain, islice
from mmap import MADV_DONTNEED, mmap
from struct import unpack_from
from typing import NamedTuple

from elftools.common.utils import struct_parse
from elftools.elf.enums import ENUM_P_TYPE_BASE, ENUM_SH_TYPE_BASE
from elftools.elf.structs import ELFStructs

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError

Buffer = bytes | memoryview | mmap

PAGE, _EHDR_SIZE = 4096, 64  # bytes
_MAX_FINGERPRINT_SIZE = 256  # bytes
_MAX_IDENTITY_NOTE_SIZE = 1 << 16  # bytes
_MAX_NAME_SIZE = 256  # bytes of a section name; limits the search in a string table without NULs
_MAX_SEGMENTS = 1170  # program headers; the kernel executes no file with more, but a core file may have more
_MAX_NOTES = 10_000  # notes that are searched for the build-id; files have about five
_MAX_CORE_NOTES = 1 << 20  # notes that are read from one segment; a core file has about six per thread
_MAX_OWNER_SIZE, _MAX_BUILD_ID_SIZE = 64, 64  # bytes
ET_REL = 1
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_EH_FRAME, PT_GNU_SFRAME = 1, 2, 4, 0x6474E550, 0x6474E554
SHT_NOBITS, SHT_SYMTAB, SHT_DYNSYM = 8, 2, 11
PF_X, PF_W = 1, 2
SHF_EXECINSTR, SHF_COMPRESSED = 4, 0x800
_NT_GNU_BUILD_ID = 3


class Segment(NamedTuple):
    """A program header.  `type` is 0 for a type that only one machine has."""

    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int


class Section(NamedTuple):
    """A section header with the section's name.  `type` is 0 for a type that only one machine has."""

    name: str
    type: int
    flags: int
    vaddr: int
    offset: int
    size: int
    link: int


@lru_cache(maxsize=16)
def _structs(byteorder: ByteOrder, *kind: int | str) -> ELFStructs:
    """Return pyelftools' structures for files of one machine; cached, as they take 80 KB and 1 ms."""
    structs = ELFStructs(little_endian=byteorder == "little", elfclass=64)
    structs.create_basic_structs()
    if kind:
        structs.create_advanced_structs(*kind)
    return structs


class ElfImage:
    """One ELF object, with the tables that unwinding and symbols need; a table is read on first use.

    `is_core`: the caller expects a core file, which has a segment for each mapping.  The constructor raises
    FormatError if the bytes are not a usable 64-bit ELF object.
    """

    def __init__(self, data: Buffer, name: str, *, is_core: bool = False) -> None:
        self.name = name
        self._max_segments = 1 << 16 if is_core else _MAX_SEGMENTS
        self.data = memoryview(data)
        self.section_damage: str | None = None
        self.problems: list[str] = []  # limits and damage that were found so far
        self._check_ident()
        self._stream = data if isinstance(data, mmap) else BytesIO(data)
        try:
            # no ELFFile: it imports the DWARF half of pyelftools, which takes 1/10 of a dump's time
            self._header = header = struct_parse(_structs(self.byteorder).Elf_Ehdr, self._stream, 0)
            kind = header["e_type"], header["e_machine"], header["e_ident"]["EI_OSABI"]
            self._structs = _structs(self.byteorder, *kind)
            # vaddr of the first instruction of a program or of the dynamic loader; 0: not stated
            self.entry = int(header["e_entry"])
            self.segments = tuple(self._segments())
        except Exception as damage:  # noqa: BLE001 - pyelftools raises any exception on damaged input
            raise FormatError(name, 0, f"unreadable ELF headers: {damage!r}") from None

    def release_pages(self) -> None:
        """Free the memory of a mapped file; the kernel reads the pages again when the pages are needed."""
        if isinstance(self.data.obj, mmap):
            self.data.obj.madvise(MADV_DONTNEED)

    def _check_ident(self) -> None:
        ident = bytes(self.data[:16])
        if len(ident) < 16 or ident[:4] != b"\x7fELF":
            raise FormatError(self.name, 0, "not an ELF file")
        if ident[4] != 2:
            raise FormatError(self.name, 4, "not a 64-bit ELF file")
        if ident[5] not in (1, 2):
            raise FormatError(self.name, 5, f"unknown byte order {ident[5]}")
        self.byteorder: ByteOrder = "little" if ident[5] == 1 else "big"
        if len(self.data) < _EHDR_SIZE:
            raise FormatError(self.name, 0, "shorter than an ELF header")
        self.machine = int.from_bytes(self.data[18:20], self.byteorder)
        self.type = int.from_bytes(self.data[16:18], self.byteorder)  # e_type

    def _segments(self) -> Iterator[Segment]:
        header = self._header
        size, count = header["e_phentsize"], header["e_phnum"]
        if count > self._max_segments:
            raise ValueError(f"{count} program headers, more than {self._max_segments}")
        for index in range(min(count, len(self.data) // size) if size else 0):
            raw = struct_parse(self._structs.Elf_Phdr, self._stream, header["e_phoff"] + index * size)
            kind = ENUM_P_TYPE_BASE.get(raw["p_type"], raw["p_type"])
            yield Segment(kind if isinstance(kind, int) else 0, raw["p_flags"], raw["p_offset"],
                          raw["p_vaddr"], raw["p_filesz"], raw["p_memsz"])  # fmt: skip

    # -- segments and addresses

    def segment(self, kind: int) -> Segment | None:
        """Return the first program header of a type, or None."""
        return next((s for s in self.segments if s.type == kind), None)

    @cached_property
    def executable(self) -> tuple[tuple[int, int], ...]:
        """Vaddr ranges [start, end) of executable segments."""
        code = (s for s in self.segments if s.type == PT_LOAD and s.flags & PF_X)
        return tuple((s.vaddr, s.vaddr + s.memsz) for s in code)

    def load_bias(self, start: int, offset: int, *, executable: bool, base: int | None = None) -> int | None:
        """Return address - vaddr for a mapping of file `offset` at `start`; None: no PT_LOAD has that offset.

        Segments may share a page of the file.  The permissions of the mapping select a segment.  Of segments
        with equal permissions, the segment that begins in the first page of the mapping counts.  If several
        segments begin there, the segment with the load bias of the file's first byte (at `base`) counts.
        """
        sharing = [
            segment for segment in self.segments
            if segment.type == PT_LOAD
            and segment.offset & -PAGE <= offset < segment.offset + max(segment.filesz, 1)
        ]  # fmt: skip
        fitting = [s for s in sharing if bool(s.flags & PF_X) == executable] or sharing[-1:]
        begun = [s for s in fitting if s.offset & -PAGE == offset] or fitting
        biases = [start - offset - (s.vaddr - s.offset) for s in begun]
        of_file = base - self.head.vaddr if base is not None and self.head else None
        return of_file if of_file in biases else next(iter(biases), None)

    @cached_property
    def head(self) -> Segment | None:
        """The segment that loads the first byte of the file, or None."""
        return next((s for s in self.segments if s.type == PT_LOAD and s.offset == 0), None)

    @cached_property
    def identity_ranges(self) -> tuple[tuple[int, int], ...]:
        """(vaddr, size) of the loaded bytes that identify the file in memory: headers and notes."""
        small = (s for s in self.segments if s.type == PT_NOTE and s.filesz < _MAX_IDENTITY_NOTE_SIZE)
        head = [(self.head.vaddr, min(PAGE, self.head.filesz))] if self.head else []
        return (*head, *((s.vaddr, s.filesz) for s in small))

    @cached_property
    def fingerprint_range(self) -> tuple[int, int]:
        """(vaddr, size) of a few loaded bytes that differ between files: the build-id, else the headers."""
        for s in self.segments:
            is_small_note = s.type == PT_NOTE and s.filesz <= _MAX_FINGERPRINT_SIZE
            note = self.loaded(s.vaddr, s.filesz) if is_small_note else None
            if note is not None and build_id_of(notes(note, self.byteorder)):
                return s.vaddr, s.filesz
        head = next((s for s in self.segments if s.type == PT_LOAD), None)
        return (head.vaddr, min(_MAX_FINGERPRINT_SIZE, head.filesz)) if head else (0, 0)

    def loaded(self, vaddr: int, size: int | None = None) -> memoryview | None:
        """Return `size` bytes (None: all of the segment) loaded at `vaddr`; None: the file has fewer."""
        for s in self.segments:
            if s.type == PT_LOAD and s.vaddr <= vaddr < s.vaddr + s.filesz:
                at = s.offset + vaddr - s.vaddr
                end = s.offset + s.filesz if size is None else at + size
                if end <= min(s.offset + s.filesz, len(self.data)):
                    return self.data[at:end]
        return None

    def is_constant(self, vaddr: int) -> bool:
        """Return True if a read-only segment is loaded at `vaddr`, so no relocation changes the bytes."""
        return any(s.type == PT_LOAD and not s.flags & PF_W and s.vaddr <= vaddr < s.vaddr + s.filesz
                   for s in self.segments)  # fmt: skip

    # -- sections

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Section headers; empty if the file has none, or if they are damaged (`section_damage`)."""
        try:
            return tuple(self._sections())
        except Exception as damage:  # noqa: BLE001 - as in __init__; segments suffice to unwind
            self.section_damage = f"unreadable section headers, so no symbols: {damage!r}"
            self.note_problem(self.section_damage)
            return ()

    def note_problem(self, problem: str) -> None:
        """Add a problem, unless it is in `problems`."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _sections(self) -> Iterator[Section]:
        header = self._header
        size, base, count = header["e_shentsize"], header["e_shoff"], header["e_shnum"]
        if not base or not size:
            return
        if base + size > len(self.data):
            raise ValueError(f"at {base:#x}, beyond the end of the file")
        offsets = range(base, len(self.data) - size + 1, size)[:count]
        raws = [struct_parse(self._structs.Elf_Shdr, self._stream, at) for at in offsets]
        names = raws[header["e_shstrndx"]]
        table = self.data[names["sh_offset"] : names["sh_offset"] + names["sh_size"]]
        for raw in raws:
            bounded = bytes(table[raw["sh_name"] : raw["sh_name"] + _MAX_NAME_SIZE])
            name = bounded.partition(b"\0")[0].decode("utf-8", "replace")
            kind = ENUM_SH_TYPE_BASE.get(raw["sh_type"], raw["sh_type"])
            yield Section(name, kind if isinstance(kind, int) else 0, raw["sh_flags"], raw["sh_addr"],
                          raw["sh_offset"], raw["sh_size"], raw["sh_link"])  # fmt: skip

    @cached_property
    def code_sections(self) -> tuple[tuple[int, int], ...]:
        """Vaddr ranges [start, end) of sections with code."""
        return tuple((s.vaddr, s.vaddr + s.size) for s in self.sections if s.flags & SHF_EXECINSTR)

    def section(self, name: str) -> Section | None:
        """Return the section called `name`; None: no such section has bytes in the file."""
        return next((s for s in self.sections if s.name == name and s.type != SHT_NOBITS and s.size), None)

    def contents(self, section: Section) -> memoryview:
        """Return the bytes of a section; fewer than `size` if the file is truncated."""
        return self.data[section.offset : section.offset + section.size]

    # -- tables for unwinding and symbols

    def sframe(self) -> tuple[memoryview, int] | None:
        """Return the SFrame bytes and their vaddr, or None.

        The segment PT_GNU_SFRAME has the bytes.  A linker that only concatenates tables writes no such
        segment; then the section `.sframe` has the bytes.
        """
        in_segment = self._segment_bytes(PT_GNU_SFRAME)
        section = None if in_segment else self.section(".sframe")
        return (self.contents(section), section.vaddr) if section else in_segment

    def eh_frame_hdr(self) -> tuple[memoryview, int] | None:
        """Return the bytes and the vaddr of `.eh_frame_hdr`, or None."""
        return self._segment_bytes(PT_GNU_EH_FRAME)

    def _segment_bytes(self, kind: int) -> tuple[memoryview, int] | None:
        segment = self.segment(kind)
        if segment is None or not segment.filesz:
            return None
        return self.data[segment.offset : segment.offset + segment.filesz], segment.vaddr

    def symbols(self, *kinds: int) -> tuple[memoryview, memoryview] | None:
        """Return (records, string table) of the symbol table whose type comes first in `kinds`, or None."""
        sections = self.sections
        for kind in kinds or (SHT_SYMTAB, SHT_DYNSYM):
            for section in sections:
                if section.type == kind and section.size and section.link < len(sections):
                    return self.contents(section), self.contents(sections[section.link])
        return None

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id in hexadecimal, from PT_NOTE, or None."""
        parts = (self.data[s.offset : s.offset + s.filesz] for s in self.segments if s.type == PT_NOTE)
        all_notes = chain.from_iterable(notes(part, self.byteorder) for part in parts)
        build_id = build_id_of(islice(all_notes, _MAX_NOTES))
        if build_id is None and next(all_notes, None):
            self.note_problem(f"no build-id: it is not among the first {_MAX_NOTES} notes")
        return build_id

    def headers(self) -> "ElfImage":
        """Return an image with only the build-id and, if all are in the first page, the program headers."""
        header = self._header
        end = max(_EHDR_SIZE, header["e_phoff"] + header["e_phnum"] * header["e_phentsize"])
        head = bytearray(self.data[: end if end <= PAGE else _EHDR_SIZE])
        head[40:48] = bytes(8)  # e_shoff
        head[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
        if end > PAGE:
            head[56:58] = bytes(2)  # e_phnum
        image = ElfImage(bytes(head), self.name)
        image.__dict__["build_id"] = self.build_id
        return image


class Note(NamedTuple):
    """A note of a PT_NOTE segment."""

    offset: int  # bytes from the start of the segment
    owner: bytes  # name of the owner, which defines the types
    type: int
    desc: memoryview


def notes(data: memoryview, byteorder: ByteOrder) -> Iterator[Note]:
    """Yield the complete notes of a PT_NOTE segment (gABI).  Raises FormatError for too many notes."""
    offset = 0
    for _ in range(_MAX_CORE_NOTES):
        if offset + 12 > len(data):
            return
        namesz, descsz, kind = unpack_from("<III" if byteorder == "little" else ">III", data, offset)
        name, desc = offset + 12, offset + 12 + (namesz + 3 & -4)
        if desc + descsz > len(data):
            return
        owner = bytes(data[name : name + min(namesz, _MAX_OWNER_SIZE)]).rstrip(b"\0")
        yield Note(offset, owner, kind, data[desc : desc + descsz])
        offset = desc + (descsz + 3 & -4)
    raise FormatError("PT_NOTE", offset, f"only the first {_MAX_CORE_NOTES} notes were read")


def build_id_of(candidates: Iterable[Note]) -> str | None:
    """Return the GNU build-id among notes, or None."""
    for note in candidates:
        if (note.owner, note.type) == (b"GNU", _NT_GNU_BUILD_ID):
            return note.desc[:_MAX_BUILD_ID_SIZE].hex() or None
    return None
