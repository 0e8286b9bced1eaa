"""No part of a hostile file is read without an end, and what a limit leaves out is said.

Each file here took seconds or gigabytes before there was a limit; none of them is large.
"""

import os
from mmap import ACCESS_READ, mmap
from struct import pack

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf import dynamic as dynamic_module
from sfsample.formats.elf import image as image_module
from sfsample.formats.elf.core_file import CoreFile
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import PT_DYNAMIC, ElfImage, notes
from tests.builders import elf_builder as e

OTHER = e.note(b"abcd", kind=9)
BUILD_ID = e.note(b"\xab" * 20)
DT_PLTRELSZ, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ = 2, 4, 5, 6, 7, 8
SHF_COMPRESSED = 0x800
DT_JMPREL, DT_GNU_HASH = 23, 0x6FFFFEF5


def test_a_file_with_more_program_headers_than_the_kernel_accepts_is_refused():
    """Each look-up searches them all: the build-id of a file of 1 MB took 8 s."""
    data = e.elf([e.Load(0x1000, b"", e.R, e.PT_NOTE, offset=64, filesz=64)] * 1171)
    with pytest.raises(FormatError, match="1171 program headers, more than 1170"):
        ElfImage(data, "hostile")
    assert len(ElfImage(data, "core", is_core=True).segments) == 1171
    assert len(ElfImage(e.elf([e.Load(0x1000)] * 1170), "x").segments) == 1170


def test_the_search_for_the_build_id_ends_after_so_many_notes_of_all_segments():
    many = [e.Load(0x1000, OTHER * 5000, e.R, e.PT_NOTE)] * 2
    searched = ElfImage(e.elf([*many[:1], e.Load(0x9000, BUILD_ID, e.R, e.PT_NOTE)]), "x")
    ended = ElfImage(e.elf([*many, e.Load(0x9000, BUILD_ID, e.R, e.PT_NOTE)]), "x")

    assert searched.build_id == "ab" * 20
    assert searched.problems == []
    assert ended.build_id is None
    assert ended.problems == ["no build-id: it is not among the first 10000 notes"]


def test_of_a_huge_note_only_the_beginning_is_copied():
    long_owner = e.note(b"", name=b"GNU\0" * 1000)
    [found] = notes(memoryview(long_owner), "little")
    assert len(found.owner) == 63

    image = ElfImage(e.elf([e.Load(0x1000, e.note(b"\xcd" * 5000), e.R, e.PT_NOTE)]), "x")
    assert image.build_id == "cd" * 64


def test_the_notes_of_a_core_file_are_counted(monkeypatch):
    monkeypatch.setattr(image_module, "_MAX_CORE_NOTES", 3)
    status = e.note(bytes(120), kind=1, name=b"CORE\0")
    data = e.elf([e.Load(0, status + OTHER * 5, e.R, e.PT_NOTE)], kind=4)
    core = CoreFile(ElfImage(data, "core", is_core=True))
    assert len(core.threads) == 1
    [problem] = core.problems
    assert problem.endswith("PT_NOTE: only the first 3 notes were read")


def test_names_of_sections_do_not_copy_a_string_table_of_any_size(tmp_path):
    """A sparse file costs nothing to make."""
    data = bytearray(e.elf([], [e.Bytes(".text", 0, b"code")]))
    data[-32:-24] = pack("<Q", 1 << 40)  # sh_size of .shstrtab, the last section
    path = tmp_path / "sparse"
    path.write_bytes(data)
    os.truncate(path, 1 << 40)
    with path.open("rb") as file:
        made = ElfImage(mmap(file.fileno(), 0, access=ACCESS_READ), "x")
    assert [section.name for section in made.sections] == ["", ".text", ".shstrtab"]


def dynamic_of(tables: bytes, *tags: tuple[int, int]) -> ElfImage:
    """Return an image whose dynamic section has the tags, and `tables` at 0x100000."""
    section = b"".join(pack("<qQ", *tag) for tag in (*tags, (0, 0)))
    loads = [e.Load(0x1000, section), e.Load(0x1000, section, type=PT_DYNAMIC), e.Load(0x100000, tables)]
    return ElfImage(e.elf(loads), "x")


def test_relocations_are_counted_also_those_without_a_symbol(monkeypatch):
    """A sparse segment of 200 GB would be a table of 8,000 million entries."""
    monkeypatch.setattr(dynamic_module, "_MAX_RELOCATIONS", 3)
    record = pack("<QQq", 0x5000, 1 << 32 | 7, 0)
    sizes = ((tag, 24 * 11) for tag in (DT_RELASZ, DT_PLTRELSZ))
    image = dynamic_of(bytes(48) + record * 9, (DT_RELA, 0x100000), (DT_JMPREL, 0x100000), *sizes)
    assert len(list(Dynamic(image).relocations())) == 1
    assert len(Dynamic(image).plt_relocations()) == 3
    assert image.problems == ["of 11 dynamic symbols or relocations only 3 were read"]
    monkeypatch.setattr(dynamic_module, "_MAX_USED_RELOCATIONS", 2)
    assert len(Dynamic(image).plt_relocations()) == 2


@pytest.mark.parametrize(
    ("tag", "hashes"),
    [
        (DT_GNU_HASH, pack("<IIII", 1, 1, 0, 0) + pack("<I", 1) + bytes(4000)),  # its chain has no end
        (DT_HASH, pack("<II", 1, 900) + bytes(4000)),  # it states 900 symbols
    ],
)
def test_dynamic_symbols_are_counted(monkeypatch, tag, hashes):
    monkeypatch.setattr(dynamic_module, "_MAX_SYMBOLS", 3)
    image = dynamic_of(hashes + bytes(24 * 1000), *((each, 0x100000) for each in (tag, DT_STRTAB, DT_SYMTAB)))
    records, _ = Dynamic(image).symbols
    assert len(records) == 3 * 24
    assert any("only 3 were read" in problem for problem in image.problems)
