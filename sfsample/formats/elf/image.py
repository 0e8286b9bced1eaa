"""ELF files: segments, sections, notes.  The one door to pyelftools.

Law: given bytes, gives values; opens no file.  pyelftools reads headers and notes; it never interprets
CFI or symbols here (too slow, and wrong for some opcodes).  Whatever it raises on foreign bytes leaves as
`FormatError`.  Sections are read only when asked for: a stripped or memory-built image has none.

Source: System V gABI chapters 4 and 5.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from io import BytesIO
from mmap import mmap
from typing import NamedTuple

from elftools.common.utils import struct_parse
from elftools.elf.structs import ELFStructs

from sfsample.core.arch import ByteOrder
from sfsample.errors import FormatError

Buffer = bytes | memoryview | mmap

PAGE, _EHDR = 4096, 64
_MARK = 256
_LONGEST_NAME = 256  # of a section: a table without NULs must not be searched whole for each
ET_REL = 1
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_EH_FRAME, PT_GNU_SFRAME = 1, 2, 4, 0x6474E550, 0x6474E554
SHT_NOBITS, SHT_SYMTAB, SHT_DYNSYM, SHT_RELA = 8, 2, 11, 4
PF_X = 1
SHF_EXECINSTR = 4
_NT_GNU_BUILD_ID = 3
_TYPES = {"PT_LOAD": PT_LOAD, "PT_DYNAMIC": PT_DYNAMIC, "PT_NOTE": PT_NOTE,
          "PT_GNU_EH_FRAME": PT_GNU_EH_FRAME, "PT_GNU_SFRAME": PT_GNU_SFRAME}  # fmt: skip
_SECTION_TYPES = {"SHT_NOBITS": SHT_NOBITS, "SHT_SYMTAB": SHT_SYMTAB, "SHT_DYNSYM": SHT_DYNSYM,
                  "SHT_RELA": SHT_RELA}  # fmt: skip


class Segment(NamedTuple):
    """A program header.  `type` is numeric; types that nobody here asks about are 0."""

    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int


class Section(NamedTuple):
    """A section header, with its name."""

    name: str
    type: int
    flags: int
    vaddr: int
    offset: int
    size: int
    link: int


@lru_cache(maxsize=16)
def _structs(byteorder: ByteOrder, *kind: int | str) -> ELFStructs:
    """Return pyelftools' descriptions of files of one kind, of 80 KB and made in 1 ms: they are shared."""
    structs = ELFStructs(little_endian=byteorder == "little", elfclass=64)
    structs.create_basic_structs()
    if kind:
        structs.create_advanced_structs(*kind)
    return structs


class ElfImage:
    """One ELF object's bytes, with lazy views of what unwinding and naming need.

    `begins_at`: where it begins in its file, if that is an archive.

    Raises FormatError from the constructor when it is not a usable 64-bit ELF object.
    """

    def __init__(self, data: Buffer, name: str, begins_at: int = 0) -> None:
        self.name = name
        self.begins_at = begins_at
        self.data = memoryview(data)
        self.section_damage: str | None = None
        self._check_ident()
        try:
            self._open(data)
        except Exception as damage:  # noqa: BLE001 - pyelftools raises many kinds on damaged input
            raise FormatError(name, 0, f"unreadable ELF headers: {damage!r}") from None

    def _check_ident(self) -> None:
        ident = bytes(self.data[:16])
        if len(ident) < 16 or ident[:4] != b"\x7fELF":
            raise FormatError(self.name, 0, "not an ELF file")
        if ident[4] != 2:
            raise FormatError(self.name, 4, "not a 64-bit ELF file")
        if ident[5] not in (1, 2):
            raise FormatError(self.name, 5, f"unknown byte order {ident[5]}")
        self.byteorder: ByteOrder = "little" if ident[5] == 1 else "big"
        if len(self.data) < _EHDR:
            raise FormatError(self.name, 0, "shorter than an ELF header")
        self.machine = int.from_bytes(self.data[18:20], self.byteorder)
        self.relocatable = int.from_bytes(self.data[16:18], self.byteorder) == ET_REL  # not linked yet

    def _open(self, data: Buffer) -> None:
        self._stream = data if isinstance(data, mmap) else BytesIO(data)
        # not ELFFile: it would import the DWARF half of pyelftools, a tenth of what a dump may take
        basic = _structs(self.byteorder)
        self._header = header = struct_parse(basic.Elf_Ehdr, self._stream, 0)
        kind = header["e_type"], header["e_machine"], header["e_ident"]["EI_OSABI"]
        self._structs = _structs(self.byteorder, *kind)
        self.segments = tuple(self._segments())

    def _segments(self) -> Iterator[Segment]:
        header = self._header
        count = min(
            header["e_phnum"], len(self.data) // header["e_phentsize"] if header["e_phentsize"] else 0
        )
        for index in range(count):
            at = header["e_phoff"] + index * header["e_phentsize"]
            raw = struct_parse(self._structs.Elf_Phdr, self._stream, at)
            kind = _TYPES.get(raw["p_type"], raw["p_type"])
            yield Segment(kind if isinstance(kind, int) else 0, raw["p_flags"], raw["p_offset"],
                          raw["p_vaddr"], raw["p_filesz"], raw["p_memsz"])  # fmt: skip

    @property
    def entry(self) -> int:
        """Vaddr at which the program (or the loader) begins; 0: nowhere."""
        return int(self._header["e_entry"])

    # -- where things are

    def segment(self, kind: int) -> Segment | None:
        """Return the first program header of a type."""
        return next((s for s in self.segments if s.type == kind), None)

    @cached_property
    def executable(self) -> tuple[tuple[int, int], ...]:
        """Vaddr ranges [start, end) of executable segments; an object file has sections only."""
        if self.relocatable:
            return self.code_sections
        return tuple(
            (s.vaddr, s.vaddr + s.memsz) for s in self.segments if s.type == PT_LOAD and s.flags & PF_X
        )

    def load_bias(self, start: int, offset: int, *, executable: bool) -> int | None:
        """Return address - vaddr for a mapping of file `offset` at `start`; None when no PT_LOAD is there.

        Two segments can share a file page (end of text, start of data); permissions tell them apart.
        """
        best: int | None = None
        offset -= self.begins_at
        for segment in self.segments:
            first = segment.offset & -PAGE
            if segment.type != PT_LOAD or not first <= offset < segment.offset + max(segment.filesz, 1):
                continue
            best = start - offset - (segment.vaddr - segment.offset)
            if bool(segment.flags & PF_X) == executable:
                return best
        return best

    @cached_property
    def identity(self) -> tuple[tuple[int, int], ...]:
        """Vaddr and size of the loaded bytes by which a file is recognised in memory: headers and notes."""
        head = next((s for s in self.segments if s.type == PT_LOAD and s.offset == 0), None)
        found = ((s.vaddr, s.filesz) for s in self.segments if s.type == PT_NOTE and s.filesz < 1 << 16)
        return (*([(head.vaddr, min(PAGE, head.filesz))] if head else []), *found)

    @cached_property
    def mark(self) -> tuple[int, int]:
        """Vaddr and size of loaded bytes that tell this file from another: the build-id, else the head."""
        for s in self.segments:
            note = self.loaded(s.vaddr, s.filesz) if s.type == PT_NOTE and s.filesz <= _MARK else None
            if note is not None and build_id_of(bytes(note), self.byteorder):
                return s.vaddr, s.filesz
        head = next((s for s in self.segments if s.type == PT_LOAD), None)
        return (head.vaddr, min(_MARK, head.filesz)) if head else (0, 0)

    def loaded(self, vaddr: int, size: int | None = None) -> memoryview | None:
        """Return the file bytes loaded at `vaddr`: exactly `size`, or all that follow in the segment."""
        for s in self.segments:
            if s.type == PT_LOAD and s.vaddr <= vaddr < s.vaddr + s.filesz:
                at = s.offset + vaddr - s.vaddr
                end = s.offset + s.filesz if size is None else at + size
                if end <= min(s.offset + s.filesz, len(self.data)):
                    return self.data[at:end]
        return None

    # -- sections

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Section headers; none when the file has none or they are damaged (`section_damage` says how)."""
        try:
            return tuple(self._sections())
        except Exception as damage:  # noqa: BLE001 - as above; segments are enough to unwind
            self.section_damage = f"unreadable section headers, so no symbols: {damage!r}"
            return ()

    def _sections(self) -> Iterator[Section]:
        header = self._header
        size, base, count = header["e_shentsize"], header["e_shoff"], header["e_shnum"]
        if not base or not size:
            return
        if base + size > len(self.data):
            raise ValueError(f"at {base:#x}, behind the end of the file")
        raws = [
            struct_parse(self._structs.Elf_Shdr, self._stream, base + i * size)
            for i in range(min(count, (len(self.data) - base) // size))
        ]
        names = raws[header["e_shstrndx"]]
        table = bytes(self.data[names["sh_offset"] : names["sh_offset"] + names["sh_size"]])
        for raw in raws:
            longest = table[raw["sh_name"] : raw["sh_name"] + _LONGEST_NAME]
            name = longest.partition(b"\0")[0].decode("utf-8", "replace")
            kind = _SECTION_TYPES.get(raw["sh_type"], raw["sh_type"])
            yield Section(name, kind if isinstance(kind, int) else 0, raw["sh_flags"], raw["sh_addr"],
                          raw["sh_offset"], raw["sh_size"], raw["sh_link"])  # fmt: skip

    @cached_property
    def code_sections(self) -> tuple[tuple[int, int], ...]:
        """Vaddr ranges [start, end) of sections with instructions."""
        return tuple((s.vaddr, s.vaddr + s.size) for s in self.sections if s.flags & SHF_EXECINSTR)

    def section(self, name: str) -> Section | None:
        """Return the section of that name that has bytes in this file."""
        return next((s for s in self.sections if s.name == name and s.type != SHT_NOBITS and s.size), None)

    def contents(self, section: Section) -> memoryview:
        """Return a section's bytes, or as many of them as the file holds."""
        return self.data[section.offset : section.offset + section.size]

    # -- what unwinding and naming ask for

    def sframe(self) -> tuple[memoryview, int] | None:
        """Return SFrame bytes and their vaddr: PT_GNU_SFRAME, else the section (concatenating linkers)."""
        segment = self.segment(PT_GNU_SFRAME)
        if segment is not None and segment.filesz:
            return self.data[segment.offset : segment.offset + segment.filesz], segment.vaddr
        section = self.section(".sframe")
        return (self.contents(section), section.vaddr) if section else None

    def eh_frame_hdr(self) -> tuple[memoryview, int] | None:
        """Return `.eh_frame_hdr` and its vaddr."""
        segment = self.segment(PT_GNU_EH_FRAME)
        if segment is None or not segment.filesz:
            return None
        return self.data[segment.offset : segment.offset + segment.filesz], segment.vaddr

    def symbols(self, *kinds: int) -> tuple[memoryview, memoryview] | None:
        """Return (records, string table) of the first that is there, by default of `.symtab`, `.dynsym`."""
        for wanted in kinds or (SHT_SYMTAB, SHT_DYNSYM):
            for section in self.sections:
                if section.type == wanted and section.size and section.link < len(self.sections):
                    return self.contents(section), self.contents(self.sections[section.link])
        return None

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id in hexadecimal, from PT_NOTE."""
        notes = (s for s in self.segments if s.type == PT_NOTE)
        found = (build_id_of(bytes(self.data[s.offset : s.offset + s.filesz]), self.byteorder) for s in notes)
        return next(filter(None, found), None)

    def headers(self) -> "ElfImage":
        """Return an image of the headers alone: segments, if told in the first page, and the build-id."""
        header = self._header
        end = max(_EHDR, header["e_phoff"] + header["e_phnum"] * header["e_phentsize"])
        head = bytearray(self.data[: end if end <= PAGE else _EHDR])
        head[40:48] = bytes(8)  # e_shoff
        head[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
        if end > PAGE:
            head[56:58] = bytes(2)  # e_phnum
        bare = ElfImage(bytes(head), self.name, self.begins_at)
        bare.__dict__["build_id"] = self.build_id
        return bare


class Note(NamedTuple):
    """A note of a PT_NOTE segment: where it is in the segment, whose type it has, and what it says."""

    offset: int
    owner: bytes
    type: int
    desc: memoryview


def notes(data: memoryview, byteorder: ByteOrder) -> Iterator[Note]:
    """Yield each whole note of one PT_NOTE segment (gABI, "Note Section")."""
    offset = 0
    while offset + 12 <= len(data):
        namesz, descsz, kind = (
            int.from_bytes(data[offset + i : offset + i + 4], byteorder) for i in (0, 4, 8)
        )
        name, desc = offset + 12, offset + 12 + (namesz + 3 & -4)
        if desc + descsz > len(data):
            return
        yield Note(offset, bytes(data[name : name + namesz]).rstrip(b"\0"), kind, data[desc : desc + descsz])
        offset = desc + (descsz + 3 & -4)


def build_id_of(data: bytes, byteorder: ByteOrder) -> str | None:
    """Return the GNU build-id among the notes of one PT_NOTE segment, or None."""
    for note in notes(memoryview(data), byteorder):
        if (note.owner, note.type) == (b"GNU", _NT_GNU_BUILD_ID):
            return note.desc.hex() or None
    return None
