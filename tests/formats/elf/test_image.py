"""ELF images: headers, sections, tables, notes."""

import tracemalloc
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage, Section, Segment, build_id_of
from sfsample.formats.elf.image import notes as read_notes
from tests.builders.elf_builder import (
    EHDR,
    PHDR,
    PT_GNU_EH_FRAME,
    PT_GNU_SFRAME,
    PT_NOTE,
    SHT_DYNSYM,
    SHT_NOBITS,
    SHT_STRTAB,
    SHT_SYMTAB,
    Bytes,
    Load,
    R,
    W,
    X,
    elf,
    note,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEXT = Load(0x1000, b"code" * 16, offset=0x1000)


def image(*segments: Load, sections: list[Bytes] | None = None, **header) -> ElfImage:
    return ElfImage(elf(list(segments), sections, **header), "invented")


def test_header_gives_machine_byte_order_and_segments():
    made = image(TEXT)

    assert (made.name, made.machine, made.byteorder) == ("invented", 62, "little")
    assert made.segments == (Segment(1, R | X, 0x1000, 0x1000, 64, 64),)
    assert image(TEXT, machine=22, byteorder="big").machine == 22
    assert image(TEXT, machine=22, byteorder="big").segments == made.segments


def test_headers_keep_segments_and_build_id_only():
    data = (FIXTURES / "v3/target").read_bytes()
    whole = ElfImage(data, "target")
    headers = whole.headers()

    assert (headers.segments, headers.build_id, headers.machine) == (
        whole.segments,
        whole.build_id,
        whole.machine,
    )
    assert whole.build_id
    assert len(headers.data) < 4096
    assert list(headers.sections) == []
    assert headers.loaded(whole.executable[0][0], 16) is None
    far = bytearray(data)
    far[32:40] = (len(data) - PHDR * 2).to_bytes(8, "little")  # e_phoff
    far[56:58] = (2).to_bytes(2, "little")  # e_phnum
    assert len(ElfImage(bytes(far), "target").headers().data) == EHDR
    assert ElfImage(bytes(far), "target").headers().segments == ()
    assert len(image().headers().data) == EHDR


@pytest.mark.parametrize(
    ("data", "offset", "what"),
    [
        (b"", 0, "not an ELF file"),
        (b"\x7fELF", 0, "not an ELF file"),
        (b"#!/bin/sh\n" + bytes(100), 0, "not an ELF file"),
        (elf([TEXT], elf_class=1), 4, "not a 64-bit ELF file"),
        (b"\x7fELF\x02\x03" + bytes(100), 5, "unknown byte order 3"),
        (elf([TEXT])[:63], 0, "shorter than an ELF header"),
        (elf([TEXT])[:100], 0, "unreadable ELF headers"),
    ],
)
def test_unusable_file_raises_format_error(data, offset, what):
    with pytest.raises(FormatError) as raised:
        ElfImage(data, "some file")

    assert (raised.value.section, raised.value.offset) == ("some file", offset)
    assert what in raised.value.what


def test_bytes_memoryview_and_mmap_give_the_same_image(tmp_path):
    data = elf([TEXT], [Bytes(".text", 0x1000, b"code")])
    path = tmp_path / "x"
    path.write_bytes(data)
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
        images = [ElfImage(data, "x"), ElfImage(memoryview(data), "x"), ElfImage(mapped, "x")]
        assert len({made.segments for made in images}) == 1
        assert len({made.sections for made in images}) == 1
        for made in images:
            made.data.release()
            made._stream = None


def test_segment_is_found_by_type():
    sframe = Load(0x2000, b"sframe", type=PT_GNU_SFRAME)
    other = Load(0x3000, b"?", type=0x12345678)
    made = image(TEXT, sframe, other)

    assert made.segment(PT_GNU_SFRAME).vaddr == 0x2000
    assert made.segment(PT_NOTE) is None
    assert made.segments[2].type == 0x12345678


def test_executable_ranges_come_from_segments_and_sections():
    made = image(
        TEXT._replace(memsz=0x80),
        Load(0x5000, b"data", flags=R | W),
        sections=[
            Bytes(".text", 0x1000, b"code", flags=6), Bytes(".data", 0x5000, b"data", flags=3)],
    )  # fmt: skip

    assert made.executable == ((0x1000, 0x1080),)
    assert made.code_sections == ((0x1000, 0x1004),)


def test_section_is_found_by_name():
    sections = [Bytes(".sframe", 0x2000, b"abc"), Bytes(".debug", 0, b"", SHT_NOBITS, size=100)]
    made = image(TEXT, sections=sections)

    assert [s.name for s in made.sections] == ["", ".sframe", ".debug", ".shstrtab"]
    found = made.section(".sframe")
    assert isinstance(found, Section)
    assert (found.vaddr, found.size, bytes(made.contents(found))) == (0x2000, 3, b"abc")
    assert made.section(".debug") is None  # it has no bytes in this file
    assert made.section(".text") is None


def test_image_without_section_headers_has_no_sections():
    made = image(TEXT)

    assert (made.sections, made.code_sections, made.section(".text"), made.symbols()) == ((), (), None, None)


def with_field(data: bytes, offset: int, value: int, size: int = 2) -> bytes:
    return data[:offset] + value.to_bytes(size, "little") + data[offset + size :]


def test_damaged_section_headers_lose_no_segment():
    good = elf([TEXT], [Bytes(".sframe", 0x2000, b"abc")])
    no_names = with_field(good, 62, 99)  # e_shstrndx
    nowhere = with_field(good, 40, 1 << 40, 8)  # e_shoff
    for data in (no_names, nowhere, good[:-100]):
        try:
            made = ElfImage(data, "damaged")
        except FormatError:
            continue
        assert made.section(".sframe") is None or data == good[:-100]
        assert len(made.segments) == 1
        assert bool(made.section_damage) == (made.section(".sframe") is None)


def test_contents_of_a_truncated_section_are_the_bytes_that_exist():
    made = image(TEXT, sections=[Bytes(".sframe", 0x2000, b"abc", size=1 << 40)])

    assert made.contents(made.section(".sframe"))[:3] == b"abc"


def test_symbols_prefer_symtab_to_dynsym():
    dynamic = [
        Bytes(".dynsym", 0x100, b"d" * 24, SHT_DYNSYM, link=2),
        Bytes(".dynstr", 0x200, b"D", SHT_STRTAB),
    ]
    static = [Bytes(".symtab", 0, b"s" * 24, SHT_SYMTAB, link=4), Bytes(".strtab", 0, b"S", SHT_STRTAB)]

    assert image(TEXT, sections=dynamic).symbols() == (b"d" * 24, b"D")
    assert image(TEXT, sections=dynamic + static).symbols() == (b"s" * 24, b"S")
    assert image(TEXT, sections=[dynamic[0]._replace(link=77)]).symbols() is None


def test_sframe_comes_from_its_segment_or_its_section():
    segment = Load(0x2000, b"by segment", type=PT_GNU_SFRAME)
    section = Bytes(".sframe", 0x3000, b"by section")

    assert image(TEXT).sframe() is None
    assert image(TEXT, segment, sections=[section]).sframe() == (b"by segment", 0x2000)
    assert image(TEXT, sections=[section]).sframe() == (b"by section", 0x3000)  # mold, lld
    removed = Load(0x2000, b"", type=PT_GNU_SFRAME, offset=0x10, filesz=0)  # objcopy --remove-section
    assert image(TEXT, removed).sframe() is None
    assert image(TEXT, removed, sections=[section]).sframe() == (b"by section", 0x3000)
    only_debug = section._replace(type=SHT_NOBITS, data=b"", size=100)  # objcopy --only-keep-debug
    assert image(TEXT, removed, sections=[only_debug]).sframe() is None


def test_segment_past_the_end_of_the_file_is_empty():
    assert image(TEXT, Load(0x2000, b"", type=PT_GNU_SFRAME, offset=1 << 40, filesz=8)).sframe() == (
        b"",
        0x2000,
    )


def test_eh_frame_hdr_comes_from_its_segment():
    assert image(TEXT).eh_frame_hdr() is None
    assert image(TEXT, Load(0x2000, b"", type=PT_GNU_EH_FRAME)).eh_frame_hdr() is None
    assert image(TEXT, Load(0x2000, b"hdr", type=PT_GNU_EH_FRAME)).eh_frame_hdr() == (b"hdr", 0x2000)


def test_build_id_comes_from_notes():
    other = note(b"\0" * 16, kind=5)
    made = image(
        TEXT, Load(0x300, other, type=PT_NOTE), Load(0x400, other + note(b"\xab" * 20), type=PT_NOTE)
    )

    assert made.build_id == "ab" * 20
    assert image(TEXT).build_id is None
    assert image(TEXT, Load(0x300, other, type=PT_NOTE)).build_id is None
    assert image(
        TEXT, Load(0x300, note(b"\1\2", byteorder="big"), type=PT_NOTE), machine=22, byteorder="big"
    ).build_id == "0102"  # fmt: skip


@pytest.mark.parametrize(
    "notes",
    [
        b"",
        bytes(11),
        bytes(12),
        bytes(1000),
        note(b"", kind=3),
        note(b"abc", name=b"XEN\0"),
        note(b"abc", name=b"a name of other length\0"),
        b"\xff" * 64,
        note(b"abcd", kind=1)[:13],
    ],
)
def test_other_notes_have_no_build_id(notes):
    assert build_id_of(read_notes(memoryview(notes), "little")) is None


def test_fixtures_have_tables_symbols_and_build_id():
    for path in FIXTURES.glob("v*/target"):
        made = ElfImage(path.read_bytes(), path.name)
        assert made.sframe() is not None
        assert made.eh_frame_hdr() is not None
        assert made.symbols() is not None
        assert len(made.build_id) == 40


def test_images_of_small_files_take_little_memory():
    data = elf([TEXT])
    tracemalloc.start()
    try:
        images = [ElfImage(data, "x") for _ in range(100)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(images) == 100
    assert used < 100 * 20_000  # the structures of pyelftools' parser for one kind of file take 80,000
