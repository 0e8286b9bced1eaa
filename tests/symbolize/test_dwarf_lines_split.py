"""Split DWARF is detected; damaged DWARF gives no text and raises nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.formats.elf.image import ElfImage
from sfsample.symbolize.dwarf_lines import split_dwarf_problem
from tests.builders.elf_builder import Bytes, Load, elf

COMPRESSED = 0x800  # SHF_COMPRESSED


def image(strings: bytes, *, addresses: bool = True, flags: int = 0) -> ElfImage:
    sections = [Bytes(".debug_str", 0, strings, flags=flags)]
    more = [Bytes(".debug_addr", 0, bytes(8))] if addresses else []
    return ElfImage(elf([Load(0x1000, bytes(16))], [*sections, *more]), "invented")


@pytest.mark.parametrize(
    ("strings", "is_split"),
    [(b"int\0one.dwo\0", True), (b"one.dwo\0main\0", True), (b"int\0one.dwo.c\0", False), (b"", False)],
)
def test_the_name_of_a_dwo_file_shows_split_dwarf(strings, is_split):
    problem = split_dwarf_problem(image(strings))
    assert ("lines and inlined functions" in problem) == is_split
    assert bool(problem) == is_split
    assert split_dwarf_problem(image(strings, addresses=False)) == ""


def test_a_file_without_dwarf_has_no_problem():
    path = Path(__file__).parents[1] / "fixtures/v3/target"
    assert split_dwarf_problem(ElfImage(path.read_bytes(), "target")) == ""


@given(st.binary(max_size=80))
def test_no_bytes_raise(strings):
    split_dwarf_problem(image(strings, flags=COMPRESSED))
