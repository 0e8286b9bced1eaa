"""No part of a hostile file is read without an end, and what a limit leaves out is said.

Each file here took seconds or gigabytes before there was a limit; none of them is large.
"""

import os
from mmap import ACCESS_READ, mmap
from struct import pack

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf import image as image_module
from sfsample.formats.elf.core_file import CoreFile
from sfsample.formats.elf.image import ElfImage, notes
from tests.builders import elf_builder as e

OTHER = e.note(b"abcd", kind=9)
BUILD_ID = e.note(b"\xab" * 20)


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
