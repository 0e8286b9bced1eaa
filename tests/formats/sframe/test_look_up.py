"""Addresses find the function and the row of an SFrame table."""

import pytest

from sfsample.formats.sframe import HEADER_SIZE, SFrameTable
from tests.builders.sframe_builder import (
    PCREL,
    SORTED,
    Function,
    row,
    section,
)
from tests.builders.sframe_tables import ADDRESS, FP, SP, START, VERSIONS, only_rows, reg, table


@VERSIONS
def test_row_holds_up_to_the_next_row(version):
    made = table(version, [Function(START, 16, [row(0, 8), row(1, 16), row(4, 24), row(4, 32)])])

    offsets = [made.row_at(START + i).cfa.offset for i in (0, 1, 3, 4, 15)]
    assert offsets == [8, 16, 16, 32, 32]  # of two rows with one start the last wins
    assert made.row_at(START - 1) is None
    assert made.row_at(START + 16) is None


@VERSIONS
def test_no_row_holds_before_the_first(version):
    made = table(version, [Function(START, 16, [row(4, 8)])])

    assert made.row_at(START + 3) is None
    assert made.row_at(START + 4).cfa == reg(SP, 8)


@VERSIONS
def test_row_at_the_end_of_its_function_never_holds(version):
    made = table(version, [Function(START, 16, [row(0, 8), row(16, 99)])])

    assert {made.row_at(START + i).cfa.offset for i in range(16)} == {8}
    assert made.row_at(START + 16) is None


@VERSIONS
def test_row_starts_have_1_2_or_4_bytes(version):
    sizes = [0x10, 0x1000, 0x20000]
    starts = [0x1000, 0x2000, 0x4000]
    functions = [Function(start, size, [row(0, 8), row(size - 1, 16)])
                 for start, size in zip(starts, sizes, strict=True)]  # fmt: skip
    made = table(version, functions)

    assert [f.fre_type for f in made.fdes()] == [0, 1, 2]
    for start, size in zip(starts, sizes, strict=True):
        assert made.row_at(start + size - 2).cfa.offset == 8
        assert made.row_at(start + size - 1).cfa.offset == 16


@VERSIONS
def test_row_words_have_1_2_or_4_bytes(version):
    fres = only_rows(version, row(0, 8), row(1, 1000, -1000), row(2, 1 << 20, -(1 << 20)))

    assert [r.cfa.offset for r in fres] == [8, 1000, 1 << 20]
    assert [r.fp and r.fp.offset for r in fres] == [None, -1000, -(1 << 20)]


@VERSIONS
def test_rows_of_a_masked_function_repeat(version):
    made = table(version, [Function(START, 0x40, [row(0, 8), row(10, 16)], repeat=16)])

    assert [made.row_at(START + i).cfa.offset for i in (0, 9, 10, 15, 16, 26, 63)] == [
        8, 8, 16, 16, 8, 16, 16]  # fmt: skip
    assert made.row_at(START + 0x40) is None


@pytest.mark.parametrize("version", [2, 3])
def test_masked_function_without_block_size_has_no_row(version):
    made = table(version, [Function(START, 0x40, [row(0, 8)], info=0x10)])

    assert made.row_at(START) is None


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("version", [2, 3])
def test_plt_got_row_is_repaired_in_look_ups_only(version, block):
    """ld 2.44-2.47.50 write sp+16 for slots that are entered with sp+8; `rows` still shows that."""
    made = table(version, [Function(START, 4 * block, [row(0, 16)], repeat=block)])

    assert made.row_at(START + block + 2).cfa == reg(SP, 8)
    assert made.rows(next(made.fdes()))[0].cfa == reg(SP, 16)


def test_other_single_row_of_a_plt_is_not_repaired():
    plt_sec = table(3, [Function(START, 64, [row(0, 8)], repeat=16)])
    assert plt_sec.row_at(START + 20).cfa == reg(SP, 8)
    unmasked = table(3, [Function(START, 64, [row(0, 16)])])
    assert unmasked.row_at(START + 20).cfa == reg(SP, 16)
    odd = table(3, [Function(START, 64, [row(0, 16, base="fp")], repeat=16)])
    assert odd.row_at(START + 20).cfa == reg(FP, 16)


@VERSIONS
def test_function_of_size_0_does_not_hide_others(version):
    fp8 = [row(0, 8)]
    functions = [Function(START, 16, [row(0, 24)])] + [Function(START + 4, 0, fp8)] * 3
    made = table(version, functions)

    assert made.row_at(START + 3).cfa.offset == 24
    assert made.row_at(START + 4).cfa.offset == 24
    assert made.row_at(START + 15).cfa.offset == 24


def test_look_up_passes_over_a_limited_number_of_functions_of_size_0():
    functions = [Function(START, 16, [row(0, 24)])] + [Function(START + 4, 0, [])] * 1000
    made = table(3, functions)

    assert made.row_at(START + 4) is None


def test_damaged_function_of_size_0_does_not_hide_others():
    functions = [Function(START, 16, [row(0, 24)]), Function(START + 4, 0, [], fre_off=1 << 20)]

    assert table(3, functions).row_at(START + 5).cfa.offset == 24


@VERSIONS
def test_functions_with_the_same_start_keep_their_own_rows(version):
    made = table(version, [Function(START, 0, [row(0, 8)]), Function(START, 16, [row(0, 24)])])

    assert [made.rows(f)[0].cfa.offset for f in made.fdes()] == [8, 24]
    assert made.row_at(START).cfa.offset == 24


@VERSIONS
def test_row_is_decoded_once(version):
    made = table(version, [Function(START, 16, [row(0, 8)])])

    assert made.row_at(START) is made.row_at(START + 1)


@VERSIONS
def test_unsorted_table_is_searched_in_order(version):
    flags = PCREL if version == 3 else 0
    functions = [Function(START + at, 16, [row(0, at + 8)]) for at in (0x300, 0x100, 0, 0x200)]
    made = table(version, functions, flags=flags)

    assert [made.row_at(START + at + 5).cfa.offset for at in (0, 0x100, 0x200, 0x300)] == [
        8, 0x108, 0x208, 0x308]  # fmt: skip
    assert made.row_at(START - 1) is None
    assert [f.start - START for f in made.fdes()] == [0x300, 0x100, 0, 0x200]


@VERSIONS
def test_table_with_a_wrong_sorted_flag_never_gives_a_wrong_function(version):
    functions = [Function(START + at, size, [row(0, 8)], repeat=16)
                 for at, size in ((0x300, 16), (0, 0), (0x200, 16), (0x10, 0))]  # fmt: skip
    made = table(version, functions)

    for vaddr in range(START - 0x20, START + 0x400):
        found = made.find(vaddr)
        assert found is None or found.start <= vaddr < found.start + found.size


@VERSIONS
def test_start_address_wraps_at_64_bits(version):
    """A start below the section of a file at address 0 is a negative field, and addresses have 64 bits."""
    high = (1 << 64) - 0x100
    made = SFrameTable(section(version, [Function(high - (1 << 64), 16, [row(0, 8)])], address=0x100), 0x100)

    assert next(made.fdes()).start == high
    assert made.row_at(high + 1).cfa == reg(SP, 8)


def test_empty_table_covers_no_address():
    assert table(3, []).find(START) is None
    assert table(3, [], flags=PCREL).find(START) is None


def test_v3_start_without_flag_counts_from_the_section():
    """Without the flag V3 starts count from the section, the specification says; no tool writes that."""
    made = table(3, [Function(START, 16, [row(0, 8)])], flags=SORTED)

    assert next(made.fdes()).start == START
    assert not made.pcrel


@pytest.mark.parametrize("version", [1, 2])
def test_start_counts_from_its_field_where_only_that_lies_in_code(version):
    """mold: the flag is clear, yet only field + raw lies in code."""
    code = [(0x1780, 0x1790)]
    functions = [Function(0x1780, 16, [row(0, 8)])]
    data = section(version, functions, address=0x590, flags=0, field_relative=True)

    without_code = SFrameTable(data, 0x590)
    assert next(without_code.fdes()).start == 0x1780 - HEADER_SIZE  # what readelf prints
    with_code = SFrameTable(data, 0x590, executable=code)
    assert next(with_code.fdes()).start == 0x1780
    assert len(with_code.problems) == 1
    assert with_code.row_at(0x1780).cfa == reg(SP, 8)


@pytest.mark.parametrize("version", [1, 2])
def test_start_counts_from_the_section_where_both_readings_lie_in_code(version):
    data = section(version, [Function(START, 16, [row(0, 8)])])
    made = SFrameTable(data, ADDRESS, executable=[(0, 0x10000)])

    assert next(made.fdes()).start == START
    assert made.problems == []


def test_field_relative_starts_of_a_long_table_are_recognized():
    functions = [Function(START + 16 * i, 16, [row(0, 8)]) for i in range(100)]
    data = section(2, functions, address=0x8000, flags=0, field_relative=True)
    made = SFrameTable(data, 0x8000, executable=[(START, START + 1600)])

    assert [f.start for f in made.fdes()] == [f.start for f in functions]
