"""SFrame sections of real assemblers have the functions and rows that readelf shows.

`data/sframe-vectors.json` holds sections of binutils 2.40 to 2.47.50 (AMD64, AArch64 of both byte orders,
s390x), each with every function and row as decoded by hand and by the matching readelf.
"""

import pytest

from sfsample.core.rule import Rule
from sfsample.formats.sframe import Flag, SFrameTable
from tests.builders.sframe_tables import (
    FP,
    R10,
    SP,
    VECTORS,
    at_reg,
    reg,
    rules,
    slot,
    vector,
)


@pytest.mark.parametrize("expected", VECTORS, ids=lambda v: v["name"])
def test_vector_has_the_expected_functions_and_rows(expected):
    section_bytes = bytes.fromhex(expected["hex"])
    made = SFrameTable(section_bytes, expected["section_addr"])

    assert (made.version, int(made.flags), made.byteorder) == (
        expected["version"], expected["flags"], expected["byteorder"])  # fmt: skip
    assert (made.fixed_ra, made.used) == (expected["fixed_ra"], expected["used"])
    fdes = list(made.fdes())
    assert made.problems == []
    assert len(fdes) == made.num_fdes == len(expected["fdes"])
    assert made.num_fres == sum(len(f["rows"]) for f in expected["fdes"])
    # fre_off counts from the first row; in the vectors of V3, from the attribute of 5 bytes before it
    shift = 5 if made.version == 3 else 0
    for fde, function in zip(fdes, expected["fdes"], strict=True):
        assert (fde.start, fde.size, fde.fre_off - shift) == (
            function["start"], function["size"], function["fre_off"])  # fmt: skip
        assert (fde.info, fde.info2) == (function["info"], function["info2"])
        assert fde.rep_size == function["rep_size"] or made.version == 1
        rows = made.rows(fde)
        assert [(r.start, r.info, list(r.words)) for r in rows] == [
            (r["start"], r["info"], r["signed"]) for r in function["rows"]]  # fmt: skip
        width = {0: 8, 1: 16, 2: 32}
        assert [[w & (1 << width[r.info >> 5 & 3]) - 1 for w in r.words] for r in rows] == [
            r["unsigned"] for r in function["rows"]]  # fmt: skip
        assert [r.problem for r in rows] == [None] * len(rows)


@pytest.mark.parametrize("expected", VECTORS, ids=lambda v: v["name"])
def test_first_and_last_address_of_a_function_find_it(expected):
    made = SFrameTable(bytes.fromhex(expected["hex"]), expected["section_addr"])
    for function in expected["fdes"]:
        for address in (function["start"], function["start"] + function["size"] - 1):
            found = made.find(address)
            assert found is not None
            assert (found.start, found.size) == (function["start"], function["size"])


def test_vectors_cover_all_versions_and_abis():
    assert len(VECTORS) == 17
    assert {(v["version"], v["abi"]) for v in VECTORS} == {(1, 3), (2, 3), (3, 1), (3, 2), (3, 3), (3, 4)}


@pytest.mark.parametrize("name", ["a-v1", "a-v2", "a-v3"])
def test_program_has_the_same_rows_in_every_version(name):
    """The C program of fact sheet 5.1."""
    made = vector(name)

    def cfa(vaddr: int) -> Rule | None:
        fre = made.row_at(vaddr)
        return fre and fre.cfa

    assert [cfa(a) for a in (0x1050, 0x1053, 0x1054, 0x106E, 0x106F, 0x1070)] == [
        reg(SP, 8), reg(SP, 8), reg(SP, 16), reg(SP, 16), reg(SP, 8), None]  # fmt: skip
    assert [cfa(a) for a in (0x1160, 0x1164, 0x1165, 0x116F, 0x1170)] == [
        reg(SP, 8), reg(SP, 8), None, None, reg(SP, 8)]  # fmt: skip
    stubs = [None, reg(SP, 16), reg(SP, 24), reg(SP, 8), reg(SP, 8), reg(SP, 16)]
    left_out = [None] * 6  # rows of stubs of V1 may be wrong
    assert [cfa(a) for a in (0x101F, 0x1020, 0x1026, 0x1030, 0x103A, 0x103B)] == (
        left_out if name == "a-v1" else stubs)  # fmt: skip
    assert cfa(0x1040) == (None if name == "a-v1" else reg(SP, 8))  # .plt.got, wrong in the file


def test_v2_errata_1_start_counts_from_its_field():
    data = bytes.fromhex(
        "e2de02050300f800060000000a0000001e0000000000000078000000eceeffff100000000f0000000200000000000000"
        "e8eeffff10000000150000000200000010100000e4eeffff080000001b0000000100000010080000e0eeffff20000000"
        "060000000300000000000000dcefffff05000000000000000100000000000000d8efffff100000000300000001000000"
        "000000000003080003080003080403101f03080003100603180003080b0310000310"
    )
    made = SFrameTable(data, 0x2118)

    assert made.flags == Flag.FDE_SORTED | Flag.FDE_FUNC_START_PCREL
    assert [f.start for f in made.fdes()] == [0x1020, 0x1030, 0x1040, 0x1050, 0x1160, 0x1170]


def test_amd64_flexible_and_special_rows_have_the_expected_rules():
    made = vector("cfi-sid")

    def at(start: int) -> list:
        fde = made.find(start)
        assert fde is not None
        return [(r.start, *rules(r)) for r in made.rows(fde)]

    assert at(0x401000) == [(0, None, None, None)]  # _start: outermost
    assert made.row_at(0x401003).cfa is None
    assert at(0x401008)[1:3] == [(1, reg(SP, 16), None, slot(-16)), (4, reg(FP, 16), None, slot(-16))]
    assert at(0x40100F) == [
        (0x00, reg(SP, 8), None, None),
        (0x05, reg(R10), None, None),
        (0x11, reg(R10), None, at_reg(FP, 0)),
        (0x13, at_reg(FP, -8), None, at_reg(FP, 0)),
        (0x16, reg(R10), None, at_reg(FP, 0)),
        (0x1B, reg(SP, 8), None, at_reg(FP, 0)),
    ]
    assert made.find(0x40100F).fde_type == 1
    assert at(0x40102B) == [(0, reg(SP, 8), None, None)]
    assert at(0x40103E)[1] == (7, reg(SP, 74568), None, None)
    assert at(0x40104E)[1] == (7, reg(SP, 264), None, None)
    assert at(0x401189) == [(0, reg(SP, 8), None, None), (1, reg(SP, 0), reg(0), None)]
    assert (0x03, reg(SP, 8), None, reg(0)) in at(0x40118D)
    assert at(0x401195) == [(0, reg(SP, 8), slot(-24), None), (1, reg(SP, 8), None, None)]
    assert [start for start, *_ in at(0x401197)] == [0, 1, 70002]


def test_signal_function_without_rows_has_no_row():
    made = vector("cfi-sid")
    with_row, without = made.find(0x40102B), made.find(0x401035)

    assert with_row.signal
    assert made.row_at(0x40102B).signal
    assert without.signal
    assert without.num_fres == 0
    assert made.row_at(0x401035) is None  # the ABI defines the layout


def test_aarch64_rows_of_both_byte_orders_have_the_expected_rules():
    [_, pushed, framed, _] = vector("be-sid").rows(next(vector("be-sid").fdes()))
    assert rules(pushed) == (reg(31, 32), slot(-24), slot(-32))
    assert rules(framed) == (reg(29, 32), slot(-24), slot(-32))
    data = bytes.fromhex(
        "dee20205010000000000000100000004000000100000000000000014ffffff9400000014000000000000000400000000"
        "000300040720e8e0080620e8e0100300"
    )
    v2 = SFrameTable(data, 0x400100)
    [fde] = v2.fdes()
    assert (fde.start, fde.size, v2.abi.name) == (0x4000B0, 20, "AARCH64_BE")
    assert [r.cfa for r in v2.rows(fde)] == [reg(31, 0), reg(31, 32), reg(29, 32), reg(31, 0)]
    assert rules(v2.rows(fde)[0])[1] is None  # still in x30


def test_aarch64_rows_state_where_the_return_address_is_signed():
    made = vector("libpacb-sid.so")
    fde = next(f for f in made.fdes() if f.num_fres == 5)

    assert fde.pauth_b
    assert [r.mangled_ra for r in made.rows(fde)] == [False, True, True, True, False]
    assert rules(made.rows(fde)[1]) == (reg(31, 0), None, None)
    assert rules(made.rows(fde)[2]) == (reg(31, 16), slot(-8), slot(-16))
    assert not any(f.pauth_b for f in vector("libpac-sid.so").fdes())
