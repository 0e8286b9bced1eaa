"""Words of SFrame rows become rules for CFA, return address and frame pointer."""

import pytest

from tests.builders.sframe_builder import (
    AARCH64_LE,
    PCREL,
    S390X,
    SORTED,
    Function,
    control,
    flex,
    row,
)
from tests.builders.sframe_tables import (
    FP,
    SP,
    START,
    at_reg,
    only_rows,
    reg,
    rules,
    slot,
    table,
    vector,
)


def test_aarch64_row_may_save_ra_without_fp():
    [fre] = only_rows(2, row(0, 32, -24), abi=AARCH64_LE)

    assert rules(fre) == (reg(31, 32), slot(-24), None)


def test_s390x_v2_words_are_registers_or_scaled_offsets():
    leaf = only_rows(
        2,
        row(0, 0),
        row(4, 0, 0x21),
        row(8, 0, 0x21, 0x23),
        row(12, 21, 0, -72),
        row(16, 8770, -48, base="fp"),
        row(20, 50020, -48),
        row(24, 0, -48, 0),
        abi=S390X,
    )

    assert [rules(r) for r in leaf] == [
        (reg(15, 160), None, None),
        (reg(15, 160), reg(16), None),
        (reg(15, 160), reg(16), reg(17)),
        (reg(15, 328), None, slot(-72)),
        (reg(11, 70320), slot(-48), None),
        (reg(15, 400320), slot(-48), None),
        (reg(15, 160), slot(-48), None),
    ]


def test_s390x_flexible_row_scales_only_the_cfa():
    made = vector("s390leaf-sid")
    leaf = next(f for f in made.fdes() if f.fde_type == 1 and f.num_fres == 5)

    assert [rules(r) for r in made.rows(leaf)][:3] == [
        (reg(15, 160), None, None),
        (reg(15, 160), reg(16), None),
        (reg(15, 160), reg(16), reg(17)),
    ]
    [based_on_r1] = only_rows(3, flex(0, control(1), 0), abi=S390X, flexible=True)
    assert rules(based_on_r1) == (reg(1, 160), None, None)


def test_s390x_register_words_of_default_rows_are_refused_in_v3():
    [fre] = only_rows(3, row(0, 0, 0x21), abi=S390X)
    assert "register-encoded" in fre.problem
    [fre] = only_rows(2, row(0, 0, 0x41), abi=S390X)  # register 32 is none
    assert "register-encoded" in fre.problem


def test_flexible_row_may_omit_rules():
    sp8 = control(SP), 8
    fres = only_rows(
        3,
        flex(0, *sp8),
        flex(1, *sp8, 0),
        flex(2, *sp8, 0, control(FP, deref=True), -16),
        flex(3, *sp8, control(None, deref=True), -24, 0),
        flex(4, *sp8, control(None, deref=True), -24, control(0), 0),
        flex(5, control(127), -300),
        flexible=True,
    )

    assert [rules(r) for r in fres] == [
        (reg(SP, 8), None, None),
        (reg(SP, 8), None, None),
        (reg(SP, 8), None, at_reg(FP, -16)),
        (reg(SP, 8), slot(-24), None),
        (reg(SP, 8), slot(-24), reg(0)),
        (reg(127, -300), None, None),
    ]


def test_control_word_is_unsigned():
    [fre] = only_rows(3, flex(0, 0x81 - 0x100, -128), flexible=True)

    assert rules(fre) == (reg(16, -128), None, None)


def test_row_without_words_is_outermost():
    assert rules(only_rows(3, row(0))[0]) == (None, None, None)
    assert rules(only_rows(3, flex(0), flexible=True)[0]) == (None, None, None)
    assert rules(only_rows(2, row(0), flags=SORTED | PCREL)[0]) == (None, None, None)
    no_rows = table(3, [Function(START, 8, [])])
    assert rules(no_rows.row_at(START)) == (None, None, None)


def test_function_without_rows_has_no_row_before_v3():
    assert table(1, [Function(START, 8, [])]).row_at(START) is None
    assert table(2, [Function(START, 8, [])]).row_at(START) is None


@pytest.mark.parametrize("version", [1, 2])
def test_row_without_words_is_damage_before_errata_2(version):
    made = table(version, [Function(START, 8, [row(0), row(4, 16)])])

    assert made.row_at(START) is None
    assert made.row_at(START + 4).cfa == reg(SP, 16)
    assert "without words" in made.rows(next(made.fdes()))[0].problem


@pytest.mark.parametrize(
    ("fre", "flexible", "problem"),
    [
        (row(0, 8, -16, -24), False, "3 words, at most 2"),
        (flex(0, 0, 0), True, "not based on a register"),
        (flex(0, control(None, deref=True), 8), True, "not based on a register"),
        (flex(0, control(SP)), True, "without its offset"),
        (flex(0, control(SP), 8, control(None, deref=True)), True, "without its offset"),
        (flex(0, control(SP), 8, 0, 0, 0), True, "left over"),
        (flex(0, control(SP), 8, 0, control(FP), 0, 1), True, "left over"),
        (flex(0, *[control(SP), 8] * 4), True, "8 words in a flexible row"),
        (flex(0, control(SP) | 4, 8), True, "control word 0x3d"),
        (flex(0, control(128), 8), True, "control word 0x401"),
        (flex(0, control(SP), 8, 0, -5, 0, width=4), True, "control word 0xfffffffb"),  # gas 2.46
    ],
)
def test_invalid_row_leaves_other_rows_usable(fre, flexible, problem):
    last = flex(8, control(SP), 16) if flexible else row(8, 16)
    made = table(3, [Function(START, 16, [fre, last], flexible=flexible)])

    assert problem in made.rows(next(made.fdes()))[0].problem
    assert made.row_at(START) is None
    assert made.row_at(START + 8).cfa == reg(SP, 16)
