"""Segments of ELF images: load bias, and the bytes loaded at an address."""

from sfsample.formats.elf.image import ElfImage
from tests.builders.elf_builder import (
    Bytes,
    Load,
    R,
    W,
    elf,
)

TEXT = Load(0x1000, b"code" * 16, offset=0x1000)


def image(*segments: Load, sections: list[Bytes] | None = None, **header) -> ElfImage:
    return ElfImage(elf(list(segments), sections, **header), "invented")


def bias(made: ElfImage, start: int, offset: int, executable: bool = True) -> int | None:
    return made.load_bias(start, offset, executable=executable)


def test_load_bias_is_address_minus_vaddr():
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


def test_load_bias_of_a_shared_page_depends_on_permission():
    """End of text and start of data: each is mapped once, and the permissions distinguish the mappings."""
    text = Load(0x1000, bytes(0x800), offset=0x1000)
    data = Load(0x2800, bytes(0x100), flags=R | W, offset=0x1800)
    for made in (image(text, data), image(data, text)):
        assert bias(made, 0x7F00_0000_1000, 0x1000) == 0x7F00_0000_0000
        assert bias(made, 0x7F00_0000_2000, 0x1000, executable=False) == 0x7F00_0000_0000


def test_load_bias_needs_no_segment_of_the_same_permission():
    made = image(Load(0x1000, bytes(64), flags=R, offset=0x1000))

    assert bias(made, 0x7F00_0000_1000, 0x1000) == 0x7F00_0000_0000


def test_load_bias_of_a_segment_without_file_bytes():
    bss = Load(0x1000, b"", flags=R | W, offset=0x1000, filesz=0, memsz=0x1000)

    assert bias(image(bss), 0x7F00_0000_1000, 0x1000, executable=False) == 0x7F00_0000_0000


def test_loaded_returns_file_bytes_by_vaddr():
    made = image(TEXT, Load(0x5000, b"data", flags=R | W, memsz=0x100))

    assert made.loaded(0x1004, 4) == b"code"
    assert made.loaded(0x103C) == b"code"
    assert made.loaded(0x5000) == b"data"
    assert made.loaded(0x5000, 5) is None  # zeros in memory, nothing in the file
    assert made.loaded(0x5004, 1) is None
    assert made.loaded(0xFFF, 1) is None
    assert made.loaded(-1, 1) is None


def test_loaded_of_a_truncated_file_returns_whole_reads_only():
    data = elf([TEXT])[: 0x1000 + 10]
    made = ElfImage(data, "cut")

    assert made.loaded(0x1000, 10) == b"codecodeco"
    assert made.loaded(0x1000, 11) is None
    assert made.loaded(0x1000) is None


def test_load_bias_of_a_page_that_two_texts_share():
    """A linker script puts a second text at another address, in a page of the first (mold issue 1047)."""
    first = Load(0x40_0000, bytes(0x2124), offset=0)
    second = Load(0x60_2124, bytes(0x1000), offset=0x2124)
    for made in (image(first, second), image(second, first)):
        assert bias(made, 0x40_0000, 0) == 0
        assert bias(made, 0x60_2000, 0x2000) == 0
        assert bias(made, 0x60_3000, 0x3000) == 0  # rest of a mapping that mprotect(2) has split


def test_load_bias_of_two_texts_that_begin_in_one_page():
    """The mappings of both texts begin at one offset, so the address of the file's first byte decides."""
    head = Load(0x40_0000, bytes(0x1B4), flags=R, offset=0)
    first, second = Load(0x40_1000, bytes(0x20), offset=0x1000), Load(0x60_2020, bytes(0x3B), offset=0x1020)
    made = image(head, first, second)
    for load_bias in (0, 0x7000_0000):
        base = load_bias + 0x40_0000
        for start in (0x40_1000, 0x60_2000):
            assert made.load_bias(start + load_bias, 0x1000, executable=True, base=base) == load_bias
