"""ELF images: invented files for each statement, mutated real ones for the rest."""

import tracemalloc
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage, Section, Segment, build_id_of
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


# -- the header


def test_header():
    made = image(TEXT)

    assert (made.name, made.machine, made.byteorder) == ("invented", 62, "little")
    assert made.segments == (Segment(1, R | X, 0x1000, 0x1000, 64, 64),)
    assert image(TEXT, machine=22, byteorder="big").machine == 22
    assert image(TEXT, machine=22, byteorder="big").segments == made.segments


def test_the_headers_alone():
    data = (FIXTURES / "v3/target").read_bytes()
    whole = ElfImage(data, "target")
    bare = whole.headers()

    assert (bare.segments, bare.build_id, bare.machine) == (whole.segments, whole.build_id, whole.machine)
    assert whole.build_id
    assert len(bare.data) < 4096
    assert list(bare.sections) == []
    assert bare.loaded(whole.executable[0][0], 16) is None
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
def test_refusals(data, offset, what):
    with pytest.raises(FormatError) as refusal:
        ElfImage(data, "some file")

    assert (refusal.value.section, refusal.value.offset) == ("some file", offset)
    assert what in refusal.value.what


def test_bytes_a_view_and_a_mapped_file_are_the_same(tmp_path):
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


# -- where things are


def test_segments_by_type():
    sframe = Load(0x2000, b"sframe", type=PT_GNU_SFRAME)
    other = Load(0x3000, b"?", type=0x12345678)
    made = image(TEXT, sframe, other)

    assert made.segment(PT_GNU_SFRAME).vaddr == 0x2000
    assert made.segment(PT_NOTE) is None
    assert made.segments[2].type == 0x12345678


def test_executable_and_code_sections():
    made = image(
        TEXT._replace(memsz=0x80),
        Load(0x5000, b"data", flags=R | W),
        sections=[
            Bytes(".text", 0x1000, b"code", flags=6), Bytes(".data", 0x5000, b"data", flags=3)],
    )  # fmt: skip

    assert made.executable == ((0x1000, 0x1080),)
    assert made.code_sections == ((0x1000, 0x1004),)


def bias(made: ElfImage, start: int, offset: int, executable: bool = True) -> int | None:
    return made.load_bias(start, offset, executable=executable)


def test_load_bias():
    shared = image(Load(0, bytes(64), flags=R, offset=0), TEXT)
    fixed = image(Load(0x40_1000, bytes(64), offset=0x1000))
    prelinked = image(
        Load(0x3000_0000, bytes(64), flags=R, offset=0), Load(0x3000_1000, bytes(64), offset=0x1000)
    )

    assert bias(shared, 0x7F00_0000_1000, 0x1000) == 0x7F00_0000_0000
    assert bias(fixed, 0x40_1000, 0x1000) == 0
    assert bias(prelinked, 0x7F00_0000_1000, 0x1000) == 0x7F00_0000_0000 - 0x3000_0000
    assert bias(prelinked, 0x1000_0000, 0x1000) == 0x1000_0000 - 0x3000_1000  # below its vaddr


def test_load_bias_of_a_segment_whose_vaddr_is_not_its_offset():
    """lld: text at offset 0x1234, vaddr 0x2234; the page that holds it is at 0x1000 and at 0x2000."""
    made = image(Load(0x2234, bytes(0x100), offset=0x1234))

    assert bias(made, 0x7F00_0000_2000, 0x1000) == 0x7F00_0000_0000


def test_load_bias_of_a_later_part_of_a_segment():
    made = image(Load(0x1000, bytes(0x3000), offset=0x1000))

    assert bias(made, 0x7F00_0000_3000, 0x3000) == 0x7F00_0000_0000
    assert bias(made, 0x7F00_0000_4000, 0x4000) is None
    assert bias(made, 0x7F00_0000_0000, 0) is None


def test_two_segments_share_a_page_of_the_file():
    """End of text and start of data: each is mapped once, and the permissions tell which mapping is which."""
    text = Load(0x1000, bytes(0x800), offset=0x1000)
    data = Load(0x2800, bytes(0x100), flags=R | W, offset=0x1800)
    for made in (image(text, data), image(data, text)):
        assert bias(made, 0x7F00_0000_1000, 0x1000) == 0x7F00_0000_0000
        assert bias(made, 0x7F00_0000_2000, 0x1000, executable=False) == 0x7F00_0000_0000


def test_load_bias_without_a_segment_of_that_permission():
    made = image(Load(0x1000, bytes(64), flags=R, offset=0x1000))

    assert bias(made, 0x7F00_0000_1000, 0x1000) == 0x7F00_0000_0000


def test_load_bias_of_the_bytes_of_a_segment_without_contents():
    bss = Load(0x1000, b"", flags=R | W, offset=0x1000, filesz=0, memsz=0x1000)

    assert bias(image(bss), 0x7F00_0000_1000, 0x1000, executable=False) == 0x7F00_0000_0000


def test_loaded():
    made = image(TEXT, Load(0x5000, b"data", flags=R | W, memsz=0x100))

    assert made.loaded(0x1004, 4) == b"code"
    assert made.loaded(0x103C) == b"code"
    assert made.loaded(0x5000) == b"data"
    assert made.loaded(0x5000, 5) is None  # zeros in memory, nothing in the file
    assert made.loaded(0x5004, 1) is None
    assert made.loaded(0xFFF, 1) is None
    assert made.loaded(-1, 1) is None


def test_loaded_from_a_file_that_was_cut():
    data = elf([TEXT])[: 0x1000 + 10]
    made = ElfImage(data, "cut")

    assert made.loaded(0x1000, 10) == b"codecodeco"
    assert made.loaded(0x1000, 11) is None
    assert made.loaded(0x1000) is None


# -- sections


def test_sections():
    sections = [Bytes(".sframe", 0x2000, b"abc"), Bytes(".debug", 0, b"", SHT_NOBITS, size=100)]
    made = image(TEXT, sections=sections)

    assert [s.name for s in made.sections] == ["", ".sframe", ".debug", ".shstrtab"]
    found = made.section(".sframe")
    assert isinstance(found, Section)
    assert (found.vaddr, found.size, bytes(made.contents(found))) == (0x2000, 3, b"abc")
    assert made.section(".debug") is None  # it has no bytes in this file
    assert made.section(".text") is None


def test_no_section_headers():
    made = image(TEXT)

    assert (made.sections, made.code_sections, made.section(".text"), made.symbols()) == ((), (), None, None)


def patched(data: bytes, offset: int, value: int, size: int = 2) -> bytes:
    return data[:offset] + value.to_bytes(size, "little") + data[offset + size :]


def test_damaged_section_headers_are_none():
    """Sections are a convenience: what is damaged about them costs no segment."""
    good = elf([TEXT], [Bytes(".sframe", 0x2000, b"abc")])
    no_names = patched(good, 62, 99)  # e_shstrndx
    nowhere = patched(good, 40, 1 << 40, 8)  # e_shoff
    for data in (no_names, nowhere, good[:-100]):
        try:
            made = ElfImage(data, "damaged")
        except FormatError:
            continue
        assert made.section(".sframe") is None or data == good[:-100]
        assert len(made.segments) == 1
        assert bool(made.section_damage) == (made.section(".sframe") is None)


def test_a_section_that_the_file_does_not_hold():
    made = image(TEXT, sections=[Bytes(".sframe", 0x2000, b"abc", size=1 << 40)])

    assert made.contents(made.section(".sframe"))[:3] == b"abc"


def test_symbols():
    dynamic = [
        Bytes(".dynsym", 0x100, b"d" * 24, SHT_DYNSYM, link=2),
        Bytes(".dynstr", 0x200, b"D", SHT_STRTAB),
    ]
    static = [Bytes(".symtab", 0, b"s" * 24, SHT_SYMTAB, link=4), Bytes(".strtab", 0, b"S", SHT_STRTAB)]

    assert image(TEXT, sections=dynamic).symbols() == (b"d" * 24, b"D")
    assert image(TEXT, sections=dynamic + static).symbols() == (b"s" * 24, b"S")
    assert image(TEXT, sections=[dynamic[0]._replace(link=77)]).symbols() is None


# -- what unwinding asks for


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


def test_a_segment_past_the_end_of_the_file_is_empty():
    assert image(TEXT, Load(0x2000, b"", type=PT_GNU_SFRAME, offset=1 << 40, filesz=8)).sframe() == (
        b"",
        0x2000,
    )


def test_eh_frame_hdr():
    assert image(TEXT).eh_frame_hdr() is None
    assert image(TEXT, Load(0x2000, b"", type=PT_GNU_EH_FRAME)).eh_frame_hdr() is None
    assert image(TEXT, Load(0x2000, b"hdr", type=PT_GNU_EH_FRAME)).eh_frame_hdr() == (b"hdr", 0x2000)


def test_build_id():
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
def test_notes_without_a_build_id(notes):
    assert build_id_of(notes, "little") is None


def test_fixtures_have_everything():
    for path in FIXTURES.glob("v*/target"):
        made = ElfImage(path.read_bytes(), path.name)
        assert made.sframe() is not None
        assert made.eh_frame_hdr() is not None
        assert made.symbols() is not None
        assert len(made.build_id) == 40


# -- any bytes


def exercise(data: bytes) -> None:
    """Ask everything; a file that is not usable is a FormatError from the constructor."""
    try:
        made = ElfImage(data, "hostile")
    except FormatError:
        return
    made.sframe(), made.eh_frame_hdr(), made.symbols()
    assert made.build_id is None or bytes.fromhex(made.build_id)
    for section in made.sections:
        assert len(made.contents(section)) <= len(data)
    for start, _ in (*made.executable, *made.code_sections):
        loaded = made.loaded(start, 16)
        assert loaded is None or len(loaded) == 16
        made.load_bias(start & -4096, 0, executable=True)


QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SMALL = elf(
    [
        TEXT._replace(offset=None),
        Load(0x300, note(b"\xab" * 20), type=PT_NOTE),
        Load(0x2000, b"x" * 40, type=PT_GNU_SFRAME),
    ],
    [Bytes(".sframe", 0x2000, b"x" * 40), Bytes(".symtab", 0, b"s" * 24, SHT_SYMTAB, link=2)],
)
INTERESTING = st.sampled_from(
    [0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1]
)
MUTATIONS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, EHDR + 3 * PHDR), st.integers(0, len(SMALL) - 1)),
        st.sampled_from([1, 2, 4, 8]),
        st.one_of(INTERESTING, st.integers(0, (1 << 64) - 1)),
    ),
    min_size=1,
    max_size=6,
)


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes(data):
    exercise(data)
    exercise(b"\x7fELF\2\1" + data)


@QUICK
@given(MUTATIONS, st.integers(0, 200))
def test_mutated_headers(mutations, cut):
    data = bytearray(SMALL[: len(SMALL) - cut // 2])
    for position, size, value in mutations:
        offset = position % len(data)
        data[offset : offset + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    exercise(bytes(data))


@QUICK
@given(st.binary(max_size=80))
def test_any_notes(notes):
    for byteorder in ("little", "big"):
        found = build_id_of(notes, byteorder)
        assert found is None or bytes.fromhex(found)


def test_many_files_of_one_kind_cost_little_memory():
    data = elf([TEXT])
    tracemalloc.start()
    try:
        images = [ElfImage(data, "x") for _ in range(100)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(images) == 100
    assert used < 100 * 20_000  # what pyelftools knows of their kind takes 80,000
