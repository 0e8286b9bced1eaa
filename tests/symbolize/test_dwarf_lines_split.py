"""Split DWARF is detected; damaged DWARF gives no text and raises nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.formats.elf.image import ElfImage
from sfsample.symbolize.dwarf_lines import split_dwarf_problem
from tests.builders.elf_builder import Bytes, Load, elf

SKELETON = bytes.fromhex("04000000 0500 04 08")  # length, version 5, DW_UT_skeleton, address size
WHOLE = bytes.fromhex("04000000 0500 01 08")
WIDE = bytes.fromhex("ffffffff 0400000000000000 0500 04 08")
OLD = bytes.fromhex("07000000 0400 00000000 08")  # version 4, abbreviations at 0
# 1, DW_TAG_compile_unit, no children, DW_AT_GNU_dwo_name, DW_FORM_strp
DWO = bytes.fromhex("01 11 00 b042 0e 0000 00")
NAMED = bytes.fromhex("01 11 00 03 0e 0000 00")  # DW_AT_name


def image(info: bytes, abbreviations: bytes = b"", *, addresses: bool = True) -> ElfImage:
    sections = [Bytes(".debug_info", 0, info), Bytes(".debug_abbrev", 0, abbreviations)]
    more = [Bytes(".debug_addr", 0, bytes(8))] if addresses else []
    return ElfImage(elf([Load(0x1000, bytes(16))], [*sections, *more]), "invented")


@pytest.mark.parametrize(
    ("info", "abbreviations", "expected"),
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
def test_skeleton_units_are_counted(info, abbreviations, expected):
    problem = split_dwarf_problem(image(info, abbreviations))
    assert expected in problem
    assert bool(problem) == bool(expected)
    assert split_dwarf_problem(image(info, abbreviations, addresses=False)) == ""


def test_a_file_without_dwarf_has_no_problem():
    path = Path(__file__).parents[1] / "fixtures/v3/target"
    assert split_dwarf_problem(ElfImage(path.read_bytes(), "target")) == ""


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_no_bytes_raise(info, abbreviations):
    split_dwarf_problem(image(info, abbreviations))
