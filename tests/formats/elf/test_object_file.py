"""Object files are laid out and relocated.

tests/differential/test_sframe_readelf.py compares the result for real object files with readelf.
"""

from struct import pack

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.elf.object_file import lay_out
from tests.builders.elf_builder import Bytes, elf

REL, RELA, SYMTAB = 1, 4, 2
CODE, TABLE = 6, 2  # SHF_ALLOC | SHF_EXECINSTR, SHF_ALLOC
SECTION_OF_SYMBOL = 2  # .text.hot below: the null section is 0
FIELD = 8  # offset of the relocated field

MACHINES = [
    pytest.param(62, "little", 24, 2, id="x86_64"),
    pytest.param(183, "little", 260, 261, id="aarch64"),
    pytest.param(183, "big", 260, 261, id="aarch64_be"),
    pytest.param(22, "big", 23, 5, id="s390x"),
]


def object_file(machine=62, byteorder="little", kind=24, *, place=FIELD, link=4, size=None):
    """Return a file with two code sections, 16 bytes of SFrame V3, and a relocation of its field at offset 8.

    The relocation's symbol and addend lead to 0x10 in the second code section.
    """
    order = "<" if byteorder == "little" else ">"
    symbol = pack(f"{order}IBBHQQ", 0, 3, 0, SECTION_OF_SYMBOL, 4, 0)
    relocation = pack(f"{order}QQq", place, 1 << 32 | kind, 12)
    magic = pack(f"{order}HBB", 0xDEE2, 3, 4)
    return elf([], [
        Bytes(".text", 0, bytes(100), flags=CODE),
        Bytes(".text.hot", 0, bytes(50), flags=CODE),
        Bytes(".sframe", 0, magic + bytes(12), flags=TABLE),
        Bytes(".symtab", 0, bytes(24) + symbol, type=SYMTAB, flags=0),
        Bytes(".rela.sframe", 0, relocation, type=RELA, flags=0, link=link, size=size),
    ], machine=machine, byteorder=byteorder, kind=REL)  # fmt: skip


def test_code_sections_come_first_and_sections_do_not_overlap():
    image, layout, left_out = lay_out(ElfImage(object_file(), "x.o"))

    assert layout == ((".text", 0), (".text.hot", 128))
    assert image.executable == ((0, 100), (128, 178))
    assert image.section(".sframe").vaddr == 192
    assert left_out == 0


@pytest.mark.parametrize(("machine", "byteorder", "eight", "four"), MACHINES)
def test_pc_relative_field_counts_from_its_own_address(machine, byteorder, eight, four):
    for kind, size in ((eight, 8), (four, 4)):
        image = lay_out(ElfImage(object_file(machine, byteorder, kind), "x.o")).image
        table = bytes(image.contents(image.section(".sframe")))

        word = int.from_bytes(table[FIELD : FIELD + size], byteorder, signed=True)
        assert word == (128 + 4 + 12) - (192 + FIELD)


@pytest.mark.parametrize(("kind", "place"), [(99, FIELD), (24, 9), (2, 13), (24, 1 << 63)])
def test_relocation_that_cannot_be_applied_is_counted(kind, place):
    image, _, left_out = lay_out(ElfImage(object_file(kind=kind, place=place), "x.o"))

    assert left_out == 1
    assert bytes(image.contents(image.section(".sframe")))[4:] == bytes(12)


def test_missing_symbol_table_raises_format_error():
    with pytest.raises(FormatError, match=r"x\.o.*damaged object file"):
        lay_out(ElfImage(object_file(link=77), "x.o"))


def test_truncated_relocations_raise_format_error():
    with pytest.raises(FormatError, match="damaged object file"):
        lay_out(ElfImage(object_file(size=1 << 40), "x.o"))
