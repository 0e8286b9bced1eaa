"""Whether a file's lines are in others: of damaged files nothing is said, and nothing raises."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.formats.elf.image import ElfImage
from sfsample.symbolize.split_dwarf import without_lines
from tests.builders.elf_builder import Bytes, Load, elf

SKELETON = bytes.fromhex("04000000 0500 04 08")  # length, version 5, DW_UT_skeleton, address size
WHOLE = bytes.fromhex("04000000 0500 01 08")
WIDE = bytes.fromhex("ffffffff 0400000000000000 0500 04 08")
OLD = bytes.fromhex("07000000 0400 00000000 08")  # version 4, abbreviations at 0
DWO = bytes.fromhex(
    "01 11 00 b042 0e 0000 00"
)  # 1, DW_TAG_compile_unit, no children, DW_AT_GNU_dwo_name, DW_FORM_strp
NAMED = bytes.fromhex("01 11 00 03 0e 0000 00")  # DW_AT_name


def image(info: bytes, abbreviations: bytes = b"", *, addresses: bool = True) -> ElfImage:
    sections = [Bytes(".debug_info", 0, info), Bytes(".debug_abbrev", 0, abbreviations)]
    more = [Bytes(".debug_addr", 0, bytes(8))] if addresses else []
    return ElfImage(elf([Load(0x1000, bytes(16))], [*sections, *more]), "invented")


@pytest.mark.parametrize(
    ("info", "abbreviations", "said"),
    [
        (SKELETON + WHOLE, b"", "1 of its 2 units"),
        (WIDE + WHOLE + SKELETON, b"", "2 of its 3 units"),
        (OLD, DWO, "1 of its 1 units"),
        (OLD, NAMED, ""),
        (WHOLE, b"", ""),
        (b"", b"", ""),
        (SKELETON[:6], b"", ""),
        (OLD, DWO[:4], ""),
    ],
)
def test_units_are_counted(info, abbreviations, said):
    told = without_lines(image(info, abbreviations))
    assert said in told
    assert bool(told) == bool(said)
    assert without_lines(image(info, abbreviations, addresses=False)) == ""


def test_without_dwarf_nothing_is_said():
    path = Path(__file__).parents[1] / "fixtures/v3/target"
    assert without_lines(ElfImage(path.read_bytes(), "target")) == ""


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_any_bytes_never_raise(info, abbreviations):
    without_lines(image(info, abbreviations))
