"""Malformed SFrame functions and rows: groups 9 to 19 of the malformed-input catalogue (fact sheet section
6).

The number in a test's name is its group.
"""

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import StopReason
from sfsample.errors import FormatError
from sfsample.formats.sframe import HEADER_SIZE, SFrameFre, read_tables
from sfsample.unwind.row import apply_row
from sfsample.unwind.steppers.sframe import to_row
from tests.builders.sframe_builder import (
    AARCH64_BE,
    AARCH64_LE,
    AMD64,
    FDE_SIZE,
    PCREL,
    S390X,
    SORTED,
    Function,
    control,
    flex,
    row,
    section,
)
from tests.builders.sframe_reading import (
    ADDRESS,
    CODE,
    GOOD,
    NEXT,
    START,
    VERSIONS,
    BoundedMemory,
    UnreadableMemory,
    neighbour_survives,
    read_row,
    read_section,
    read_with_neighbour,
)


@VERSIONS
@pytest.mark.parametrize("offset", [100, 1 << 16, 1 << 31, 0xFFFFFFFF])
def test_09_rows_outside_the_area_damage_one_function(version, offset):
    assert not isinstance(read_with_neighbour(version, GOOD._replace(fre_off=offset)).found[START], SFrameFre)


@VERSIONS
def test_09_rows_of_another_function_are_read_within_the_area(version):
    """Rows of another function are read as they are, within the area."""
    for offset in range(12):
        reading = read_section(section(version, [GOOD._replace(fre_off=offset), NEXT], address=ADDRESS))
        assert reading.refusal is None
    shared = section(version, [GOOD, Function(START + 32, 8, [], num_fres=1, fre_off=0)], address=ADDRESS)
    found = read_section(shared).found[START + 32]
    assert isinstance(found, SFrameFre)
    assert found.cfa.offset == 8


@pytest.mark.parametrize("version", [1, 2])
def test_09_check_stops_where_functions_share_too_many_rows(version):
    """2000 functions share 2000 rows in 6000 bytes: to decode all would be four million rows."""
    rows = [row(0, 8)] * 2000
    functions = [Function(START, 16, rows)] + [
        Function(START + 16 * i, 16, [], num_fres=2000, fre_off=0) for i in range(1, 2000)]  # fmt: skip
    [table] = read_tables(section(version, functions, address=ADDRESS), ADDRESS)
    decoded = []
    decode = table.decode
    table.decode = lambda fde: decoded.append(fde) or decode(fde)
    [finding] = [text for text in table.check() if "share rows" in text]

    assert "stopped at" in finding
    assert len(decoded) < 10
    assert len(table.rows(table.fde(5))) == 2000  # each function can be read
    for index in range(40):
        table.rows(table.fde(index))
    assert sum(map(len, table._rows.values())) <= 1 << 15  # and the cache is bounded


def test_10_attribute_across_the_end_of_the_area_damages_one_function():
    end = 2 * 5 + 2 * 3
    for offset in (end - 4, end - 1, end, end + 1, 0xFFFFFFFF):
        reading = read_with_neighbour(3, GOOD._replace(fre_off=offset))
        assert reading.found[START] == "function attribute outside the FRE area"
        assert START not in reading.rows
        assert any("attribute outside" in text for text in reading.check)


@pytest.mark.parametrize(("version", "info", "size"), [(1, 0, 2), (2, 1, 3), (3, 2, 5), (1, 2, 5), (2, 0, 2)])
def test_11_row_count_beyond_the_area_damages_one_function(version, info, size):
    room = 3 * 2 + (10 if version == 3 else 0)
    for count in (room // size + 1, 0xFFFF):
        with BoundedMemory():
            reading = read_with_neighbour(version, GOOD._replace(num_fres=count, info=info))
        assert not isinstance(reading.found[START], SFrameFre)
        assert not isinstance(reading.rows[START], tuple)


@pytest.mark.parametrize("version", [1, 2])
def test_11_row_count_of_32_ones_damages_one_function(version):
    with BoundedMemory():
        reading = read_with_neighbour(version, GOOD._replace(num_fres=0xFFFFFFFF), num_fres=0)
    assert "4294967295 rows do not fit" in reading.rows[START]


def test_11_row_count_beyond_the_limit_raises_format_error():
    data = section(2, [GOOD._replace(num_fres=1 << 19)], address=ADDRESS)
    area = bytearray(data) + bytes(1 << 20)
    area[0x10:0x14] = (3 + (1 << 20)).to_bytes(4, "little")
    with BoundedMemory():
        [table] = read_tables(memoryview(area), ADDRESS)
        with pytest.raises(FormatError, match="524288 rows are more than any function has"):
            table.row_at(START)


def test_11_function_without_rows_is_outermost_in_v3_only():
    assert read_with_neighbour(1, GOOD._replace(rows=[])).found[START] is None
    assert read_with_neighbour(2, GOOD._replace(rows=[])).found[START] is None
    assert read_with_neighbour(3, GOOD._replace(rows=[])).found[START] == SFrameFre(0, 0, ())  # outermost


@VERSIONS
@pytest.mark.parametrize("info", range(3, 16))
def test_12_unknown_row_type_damages_one_function(version, info):
    assert f"FRE type {info}" in read_with_neighbour(version, GOOD._replace(info=info)).rows[START]


@pytest.mark.parametrize("info2", range(2, 32))
def test_12_reserved_function_type_damages_one_function(info2):
    assert f"FDE type {info2}" in read_with_neighbour(3, GOOD._replace(info2=info2)).rows[START]


@pytest.mark.parametrize("version", [2, 3])
def test_12_block_size_0_gives_no_row_and_a_large_one_is_used(version):
    nothing = read_with_neighbour(version, GOOD._replace(info=0x10))
    assert nothing.found[START] is None
    assert any("without a block size" in text for text in nothing.check)
    larger = read_with_neighbour(
        version, GOOD._replace(info=0x10, repeat=255, rows=[row(0, 8), row(200, 16)])
    )
    assert larger.found[START].cfa.offset == 8


@VERSIONS
def test_13_function_of_size_0_or_beyond_64_bits_covers_nothing_else(version):
    assert read_with_neighbour(version, GOOD._replace(size=0)).found[START] is None
    high = (1 << 64) - 16
    wraps = Function(high - (1 << 64), 0xFFFFFFFF, [row(0, 8, width=1)], info=0)
    reading = read_section(section(version, [GOOD, wraps], address=0x100, flags=PCREL if version == 3 else 0),
                  0, 7, address=0x100)  # fmt: skip
    assert reading.found[high].cfa.offset == 8
    assert reading.found[0] is reading.found[7] is None  # the function does not wrap to address 0


@VERSIONS
def test_13_functions_outside_the_code_do_no_harm(version):
    functions = [
        Function(START - 0x100, 16, [row(0, 8)]),
        GOOD,
        NEXT,
        Function(START + 0x7F8, 16, [row(0, 8)]),
    ]
    reading = read_section(section(version, functions, address=ADDRESS), executable=CODE)

    assert neighbour_survives(reading)


@VERSIONS
def test_13_overlapping_functions_do_no_harm(version):
    functions = [GOOD, GOOD, Function(START + 8, 64, [row(0, 40)]), NEXT]
    reading = read_section(section(version, functions, address=ADDRESS))

    assert neighbour_survives(reading)
    assert isinstance(reading.found[START], SFrameFre)


@VERSIONS
def test_13_wrong_sorted_flag_is_reported_and_never_mistakes_a_function(version):
    """With a wrong flag a function may be missed, but never mistaken; without the flag all are found."""
    functions = [Function(START + at, 16, [row(0, at + 8)]) for at in (0x300, 0x10, 0x200, 0, 0x100)]
    flags = PCREL if version == 3 else 0
    wrong_flag = read_section(section(version, functions, address=ADDRESS, flags=flags | SORTED))
    for function in functions:
        assert wrong_flag.found[function.start] in (None, wrong_flag.rows[function.start][0])
    assert any("not in the order that the flag promises" in text for text in wrong_flag.check)
    no_flag = read_section(section(version, functions, address=ADDRESS, flags=flags))
    for function in functions:
        assert no_flag.found[function.start] == no_flag.rows[function.start][0]
    assert no_flag.check == ()


def test_14_signal_function_without_rows_and_row_without_words_are_valid():
    """Both are valid: a trampoline with the ABI's layout, and outermost code inside a function."""
    assert read_with_neighbour(3, GOOD._replace(rows=[], signal=True)).found[START] is None
    rows = [row(0, 8), row(4), row(8, 16)]
    reading = read_section(section(3, [GOOD._replace(rows=rows)], address=ADDRESS), START + 4, START + 8)
    assert [reading.found[START + at].cfa for at in (0, 4, 8)] == [
        Rule(7, 8, deref=False), None, Rule(7, 16, deref=False)]  # fmt: skip
    assert reading.found[START + 4].problem is None
    assert reading.check == ()


@VERSIONS
def test_15_truncated_row_damages_one_function(version):
    """The area ends after the start, after the info byte, in the words."""
    for info, code in ((0, "u8"), (1, "u16"), (2, "u32")):
        width = 1 << info
        last = Function(START, 16, [row(0, 8), row(4, 0x1000, -16)], info=info)
        whole = len(section(version, [NEXT, last], address=ADDRESS)) - HEADER_SIZE - 2 * FDE_SIZE[version]
        for missing in range(1, width + 1 + 2 * 2 + 1):
            data = section(version, [last._replace(num_fres=2), NEXT], address=ADDRESS, fre_len=whole)
            swapped = section(version, [NEXT, last], address=ADDRESS, fre_len=whole - missing,
                              flags=PCREL if version == 3 else 0)  # fmt: skip
            assert read_section(data).refusal is None
            reading = read_section(swapped)
            assert neighbour_survives(reading), code
            assert not isinstance(reading.found[START], SFrameFre), (code, missing)


@VERSIONS
def test_15_unknown_word_size_damages_one_function(version):
    word_size_3 = row(0, 8)._replace(mangled=True, count=0x30 | 1)
    assert (
        "data word size code 3" in read_with_neighbour(version, GOOD._replace(rows=[word_size_3])).rows[START]
    )


@VERSIONS
@pytest.mark.parametrize(("abi", "most"), [(AMD64, 2), (AARCH64_LE, 3), (AARCH64_BE, 3), (S390X, 3)])
def test_15_row_with_too_many_words_is_a_problem(version, abi, most):
    for count in range(1, 16):
        fre = read_row(version, row(0, *[16] * count), abi=abi)
        assert (fre.problem is None) == (count <= most)


def test_15_flexible_row_with_too_many_words_is_a_problem():
    pairs = [control(7), 8] * 7
    for count in (7, 8, 14):
        assert "words in a flexible row" in read_row(3, flex(0, *pairs[:count]), flexible=True).problem


@pytest.mark.parametrize("version", [1, 2])
def test_15_row_without_words_is_a_problem_before_errata_2(version):
    assert "without words" in read_row(version, row(0)).problem


@VERSIONS
def test_16_row_starts_that_are_late_unordered_or_beyond_the_function(version):
    late = read_with_neighbour(version, GOOD._replace(rows=[row(4, 8)]))
    assert late.found[START] is None
    back = read_with_neighbour(version, GOOD._replace(rows=[row(4, 8), row(0, 16)]))
    assert "row start 0 after 4" in back.rows[START]
    beyond = read_with_neighbour(version, GOOD._replace(rows=[row(0, 8), row(16, 99), row(200, 99)]))
    assert beyond.found[START].cfa.offset == 8
    equal = read_with_neighbour(version, GOOD._replace(rows=[row(0, 8), row(0, 16)]))
    assert equal.found[START].cfa.offset == 16


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((control(7),), "without its offset"),
        ((control(7), 8, control(0)), "without its offset"),
        ((control(7), 8, 0, 0, 0), "left over"),
        ((control(None), 8, 0), "not based on a register"),
        ((control(None, deref=True), 8), "not based on a register"),
        ((control(7) | 4, 8), "control word 0x3d"),
        ((control(7), 8, control(0) | 4, 0), "control word 0x5"),
        ((control(128), 8), "control word 0x401"),
        ((control(7), 8, 0, -5, 0x10000), "control word 0xfffffffb"),  # gas 2.46
        ((0, 8), "without its offset"),
    ],
)  # fmt: skip
def test_17_invalid_flexible_row_is_a_problem(words, problem):
    assert problem in read_row(3, flex(0, *words), flexible=True).problem


@pytest.mark.parametrize("number", [11, 17, 31, 127])
def test_17_rule_on_an_unknown_register_stops_the_walk(number):
    """The row can be decoded; applying it needs a register that the frame does not have."""
    for words in ((control(number) - (256 if number > 15 else 0) * (number < 32), 8),
                  (control(7), 8, control(number), 0)):  # fmt: skip
        fre = read_row(3, flex(0, *words, width=2), flexible=True)
        if fre.problem is None:
            [table] = read_tables(section(3, []), ADDRESS)
            found = apply_row(to_row(fre, table), {7: 0x7000, 16: START}, UnreadableMemory(), table.abi.arch)
            assert found is StopReason.REGISTER_UNKNOWN


def test_17_dereference_of_unreadable_memory_stops_the_walk():
    fre = read_row(3, flex(0, control(7, deref=True), -128), flexible=True)
    [table] = read_tables(section(3, []), ADDRESS)

    for sp in (0, 1, 0x7001, (1 << 64) - 1):
        found = apply_row(to_row(fre, table), {7: sp, 16: START}, UnreadableMemory(), table.abi.arch)
        assert found is StopReason.BAD_MEMORY


def test_18_s390x_odd_word_is_a_register_before_v3_only():
    """An odd word is a register, 0 to 31, before V3, and invalid in V3."""
    assert read_row(2, row(0, 0, 0x21, 0x3F), abi=S390X).fp == Rule(31, 0, deref=False)
    for odd in (0x41, 0x7F, -1, -0x7F):
        assert "register-encoded" in read_row(2, row(0, 0, odd), abi=S390X).problem
        assert "register-encoded" in read_row(2, row(0, 0, 0, odd), abi=S390X).problem
    for odd in (0x1D, 0x21, -47):
        assert "register-encoded" in read_row(3, row(0, 0, odd), abi=S390X).problem
        assert "register-encoded" in read_row(3, row(0, 0, -48, odd), abi=S390X).problem
    assert read_row(3, row(0, 0, -48), abi=S390X).ra == Rule(CFA, -48, deref=True)


@VERSIONS
def test_19_aarch64_bits_change_nothing_on_other_abis(version):
    """The mangled bit and the key bit belong to AArch64."""
    for abi in (AMD64, S390X):
        plain, marked = (read_row(version, row(0, 8, mangled=mangled), abi=abi) for mangled in (False, True))
        assert plain._replace(info=0) == marked._replace(info=0)
    reading = read_with_neighbour(version, GOOD._replace(info=0x20))
    assert reading.found[START].cfa.offset == 8


def test_same_row_bytes_in_functions_of_different_kinds_decode_differently():
    """The cache of rows must distinguish functions of different kinds."""
    same = row(0, control(7), 16, base="fp")
    functions = [
        Function(START, 16, [same], info=0),
        Function(START + 16, 16, [same], flexible=True),
        Function(START + 32, 16, [same], signal=True),
        Function(START + 48, 16, [row(0, 8)], info=1),
        Function(START + 64, 16, [row(0, 8)], info=0),
    ]
    found = read_section(section(3, functions, address=ADDRESS)).found

    assert [found[f.start].cfa for f in functions] == [
        Rule(6, control(7), deref=False), Rule(7, 16, deref=False), Rule(6, control(7), deref=False),
        Rule(7, 8, deref=False), Rule(7, 8, deref=False)]  # fmt: skip
    assert [found[f.start].signal for f in functions] == [False, False, True, False, False]
