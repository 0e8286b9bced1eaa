"""SFrame sections: complete sections of five assemblers, and one invented section for each statement.

`data/sframe-vectors.json` holds sections of binutils 2.40 to 2.47.50 (AMD64, AArch64 of both byte orders,
s390x), each with every function and row as decoded by hand and by the matching readelf.
"""

import json
from pathlib import Path

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.sframe.section import HEADER_SIZE, Flag, SFrameTable, read_tables
from tests.builders.sframe_builder import (
    AARCH64_BE,
    AARCH64_LE,
    AMD64,
    FDE_SIZE,
    FRAME_POINTER,
    PCREL,
    S390X,
    SORTED,
    Function,
    control,
    flex,
    row,
    section,
)

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "sframe-vectors.json").read_text())
SP, FP, R10 = 7, 6, 10
ADDRESS, START = 0x2000, 0x1000
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


def reg(number: int, offset: int = 0) -> Rule:
    return Rule(number, offset, deref=False)


def at_reg(number: int, offset: int) -> Rule:
    return Rule(number, offset, deref=True)


def slot(offset: int) -> Rule:
    return Rule(CFA, offset, deref=True)


def vector(name: str) -> SFrameTable:
    found = next(v for v in VECTORS if v["name"] == name)
    return SFrameTable(bytes.fromhex(found["hex"]), found["section_addr"])


def table(version: int, functions: list[Function], **options) -> SFrameTable:
    return SFrameTable(section(version, functions, address=ADDRESS, **options), ADDRESS)


def only_rows(version: int, *rows, size: int = 0x20, abi: int = AMD64, flexible: bool = False, **options):
    """Return the decoded rows of a section with one function."""
    made = table(version, [Function(START, size, list(rows), flexible=flexible)], abi=abi, **options)
    [fde] = made.fdes()
    return made.rows(fde)


def rules(fre) -> tuple[Rule | None, Rule | None, Rule | None]:
    assert fre.problem is None
    return fre.cfa, fre.ra, fre.fp


# -- whole sections


@pytest.mark.parametrize("expected", VECTORS, ids=lambda v: v["name"])
def test_vector(expected):
    section_bytes = bytes.fromhex(expected["hex"])
    made = SFrameTable(section_bytes, expected["section_addr"])

    assert (made.version, int(made.flags), made.byteorder) == (
        expected["version"], expected["flags"], expected["byteorder"])  # fmt: skip
    assert (made.fixed_ra, made.used) == (expected["fixed_ra"], expected["used"])
    fdes = list(made.fdes())
    assert made.problems == []
    assert len(fdes) == made.num_fdes == len(expected["fdes"])
    assert made.num_fres == sum(len(f["rows"]) for f in expected["fdes"])
    shift = 5 if made.version == 3 else 0  # ours counts from the first row, the vector from the attribute
    for fde, wanted in zip(fdes, expected["fdes"], strict=True):
        assert (fde.start, fde.size, fde.fre_off - shift) == (
            wanted["start"], wanted["size"], wanted["fre_off"])  # fmt: skip
        assert (fde.info, fde.info2) == (wanted["info"], wanted["info2"])
        assert fde.rep_size == wanted["rep_size"] or made.version == 1
        rows = made.rows(fde)
        assert [(r.start, r.info, list(r.words)) for r in rows] == [
            (r["start"], r["info"], r["signed"]) for r in wanted["rows"]]  # fmt: skip
        width = {0: 8, 1: 16, 2: 32}
        assert [[w & (1 << width[r.info >> 5 & 3]) - 1 for w in r.words] for r in rows] == [
            r["unsigned"] for r in wanted["rows"]]  # fmt: skip
        assert [r.problem for r in rows] == [None] * len(rows)


@pytest.mark.parametrize("expected", VECTORS, ids=lambda v: v["name"])
def test_every_address_of_a_vector_finds_its_function(expected):
    made = SFrameTable(bytes.fromhex(expected["hex"]), expected["section_addr"])
    for wanted in expected["fdes"]:
        for address in (wanted["start"], wanted["start"] + wanted["size"] - 1):
            found = made.find(address)
            assert found is not None
            assert (found.start, found.size) == (wanted["start"], wanted["size"])


def test_vectors_are_all_there():
    assert len(VECTORS) == 17
    assert {(v["version"], v["abi"]) for v in VECTORS} == {(1, 3), (2, 3), (3, 1), (3, 2), (3, 3), (3, 4)}


@pytest.mark.parametrize("name", ["a-v1", "a-v2", "a-v3"])
def test_one_program_in_three_versions(name):
    """The C program of fact sheet 5.1: the same answers whatever the encoding."""
    made = vector(name)

    def cfa(vaddr: int) -> Rule | None:
        fre = made.row_at(vaddr)
        return fre and fre.cfa

    assert [cfa(a) for a in (0x1050, 0x1053, 0x1054, 0x106E, 0x106F, 0x1070)] == [
        reg(SP, 8), reg(SP, 8), reg(SP, 16), reg(SP, 16), reg(SP, 8), None]  # fmt: skip
    assert [cfa(a) for a in (0x1160, 0x1164, 0x1165, 0x116F, 0x1170)] == [
        reg(SP, 8), reg(SP, 8), None, None, reg(SP, 8)]  # fmt: skip
    assert [cfa(a) for a in (0x101F, 0x1020, 0x1026, 0x1030, 0x103A, 0x103B)] == [
        None, reg(SP, 16), reg(SP, 24), reg(SP, 8), reg(SP, 8), reg(SP, 16)]  # fmt: skip
    assert cfa(0x1040) == (None if name == "a-v1" else reg(SP, 8))  # .plt.got, wrong in the file


def test_v2_errata_1_resolves_starts_from_their_fields():
    data = bytes.fromhex(
        "e2de02050300f800060000000a0000001e0000000000000078000000eceeffff100000000f0000000200000000000000"
        "e8eeffff10000000150000000200000010100000e4eeffff080000001b0000000100000010080000e0eeffff20000000"
        "060000000300000000000000dcefffff05000000000000000100000000000000d8efffff100000000300000001000000"
        "000000000003080003080003080403101f03080003100603180003080b0310000310"
    )
    made = SFrameTable(data, 0x2118)

    assert made.flags == Flag.FDE_SORTED | Flag.FDE_FUNC_START_PCREL
    assert [f.start for f in made.fdes()] == [0x1020, 0x1030, 0x1040, 0x1050, 0x1160, 0x1170]


# -- rules of each kind of row (fact sheet 5.2 to 5.4)


def test_flexible_and_special_rows_of_amd64():
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


def test_signal_functions():
    made = vector("cfi-sid")
    with_row, without = made.find(0x40102B), made.find(0x401035)

    assert with_row.signal
    assert made.row_at(0x40102B).signal
    assert without.signal
    assert without.num_fres == 0
    assert made.row_at(0x401035) is None  # the ABI's layout is for another stepper


def test_aarch64_of_both_byte_orders():
    [_, pushed, framed, _] = vector("be-sid").rows(next(vector("be-sid").fdes()))
    assert rules(pushed) == (reg(31, 32), slot(-24), slot(-32))
    assert rules(framed) == (reg(29, 32), slot(-24), slot(-32))
    data = bytes.fromhex(
        "dee20205010000000000000100000004000000100000000000000014ffffff9400000014000000000000000400000000"
        "000300040720e8e0080620e8e0100300"
    )
    older = SFrameTable(data, 0x400100)
    [fde] = older.fdes()
    assert (fde.start, fde.size, older.abi.name) == (0x4000B0, 20, "AARCH64_BE")
    assert [r.cfa for r in older.rows(fde)] == [reg(31, 0), reg(31, 32), reg(29, 32), reg(31, 0)]
    assert rules(older.rows(fde)[0])[1] is None  # still in x30


def test_aarch64_return_addresses_that_are_signed():
    made = vector("libpacb-sid.so")
    fde = next(f for f in made.fdes() if f.num_fres == 5)

    assert fde.pauth_b
    assert [r.mangled_ra for r in made.rows(fde)] == [False, True, True, True, False]
    assert rules(made.rows(fde)[1]) == (reg(31, 0), None, None)
    assert rules(made.rows(fde)[2]) == (reg(31, 16), slot(-8), slot(-16))
    assert not any(f.pauth_b for f in vector("libpac-sid.so").fdes())


def test_aarch64_ra_saved_without_fp():
    [fre] = only_rows(2, row(0, 32, -24), abi=AARCH64_LE)

    assert rules(fre) == (reg(31, 32), slot(-24), None)


def test_s390x_registers_in_words_and_scaled_offsets():
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


def test_s390x_flexible_rows_scale_the_cfa_only():
    made = vector("s390leaf-sid")
    leaf = next(f for f in made.fdes() if f.fde_type == 1 and f.num_fres == 5)

    assert [rules(r) for r in made.rows(leaf)][:3] == [
        (reg(15, 160), None, None),
        (reg(15, 160), reg(16), None),
        (reg(15, 160), reg(16), reg(17)),
    ]
    [based_on_r1] = only_rows(3, flex(0, control(1), 0), abi=S390X, flexible=True)
    assert rules(based_on_r1) == (reg(1, 160), None, None)


def test_s390x_has_registers_in_default_words_before_v3_only():
    [fre] = only_rows(3, row(0, 0, 0x21), abi=S390X)
    assert "register-encoded" in fre.problem
    [fre] = only_rows(2, row(0, 0, 0x41), abi=S390X)  # register 32 is none
    assert "register-encoded" in fre.problem


def test_flexible_rules_that_are_absent():
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


def test_control_words_are_unsigned():
    [fre] = only_rows(3, flex(0, 0x81 - 0x100, -128), flexible=True)

    assert rules(fre) == (reg(16, -128), None, None)


def test_outermost():
    assert rules(only_rows(3, row(0))[0]) == (None, None, None)
    assert rules(only_rows(3, flex(0), flexible=True)[0]) == (None, None, None)
    assert rules(only_rows(2, row(0), flags=SORTED | PCREL)[0]) == (None, None, None)
    no_rows = table(3, [Function(START, 8, [])])
    assert rules(no_rows.row_at(START)) == (None, None, None)


def test_functions_without_rows_mean_nothing_before_v3():
    assert table(1, [Function(START, 8, [])]).row_at(START) is None
    assert table(2, [Function(START, 8, [])]).row_at(START) is None


@pytest.mark.parametrize("version", [1, 2])
def test_empty_rows_are_damage_before_errata_2(version):
    made = table(version, [Function(START, 8, [row(0), row(4, 16)])])

    assert made.row_at(START) is None
    assert made.row_at(START + 4).cfa == reg(SP, 16)
    assert "without words" in made.rows(next(made.fdes()))[0].problem


@pytest.mark.parametrize(
    ("fre", "flexible", "why"),
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
def test_a_row_that_makes_no_sense_costs_that_row(fre, flexible, why):
    last = flex(8, control(SP), 16) if flexible else row(8, 16)
    made = table(3, [Function(START, 16, [fre, last], flexible=flexible)])

    assert why in made.rows(next(made.fdes()))[0].problem
    assert made.row_at(START) is None
    assert made.row_at(START + 8).cfa == reg(SP, 16)


# -- look-up


@VERSIONS
def test_rows_hold_up_to_the_next(version):
    made = table(version, [Function(START, 16, [row(0, 8), row(1, 16), row(4, 24), row(4, 32)])])

    offsets = [made.row_at(START + i).cfa.offset for i in (0, 1, 3, 4, 15)]
    assert offsets == [8, 16, 16, 32, 32]  # of two rows with one start the last wins
    assert made.row_at(START - 1) is None
    assert made.row_at(START + 16) is None


@VERSIONS
def test_nothing_holds_before_the_first_row(version):
    made = table(version, [Function(START, 16, [row(4, 8)])])

    assert made.row_at(START + 3) is None
    assert made.row_at(START + 4).cfa == reg(SP, 8)


@VERSIONS
def test_a_row_at_the_end_of_its_function_is_never_in_force(version):
    made = table(version, [Function(START, 16, [row(0, 8), row(16, 99)])])

    assert {made.row_at(START + i).cfa.offset for i in range(16)} == {8}
    assert made.row_at(START + 16) is None


@VERSIONS
def test_start_offsets_of_each_width(version):
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
def test_words_of_each_width(version):
    fres = only_rows(version, row(0, 8), row(1, 1000, -1000), row(2, 1 << 20, -(1 << 20)))

    assert [r.cfa.offset for r in fres] == [8, 1000, 1 << 20]
    assert [r.fp and r.fp.offset for r in fres] == [None, -1000, -(1 << 20)]


@VERSIONS
def test_masked_rows_repeat(version):
    made = table(version, [Function(START, 0x40, [row(0, 8), row(11, 16)], repeat=16)])

    assert [made.row_at(START + i).cfa.offset for i in (0, 10, 11, 15, 16, 27, 63)] == [
        8, 8, 16, 16, 8, 16, 16]  # fmt: skip
    assert made.row_at(START + 0x40) is None


@pytest.mark.parametrize("version", [2, 3])
def test_a_masked_function_without_a_block_size_says_nothing(version):
    made = table(version, [Function(START, 0x40, [row(0, 8)], info=0x10)])

    assert made.row_at(START) is None


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("version", [2, 3])
def test_plt_got_is_repaired(version, block):
    """ld 2.44-2.47.50 write sp+16 for slots that are entered with sp+8; `rows` still shows that."""
    made = table(version, [Function(START, 4 * block, [row(0, 16)], repeat=block)])

    assert made.row_at(START + block + 2).cfa == reg(SP, 8)
    assert made.rows(next(made.fdes()))[0].cfa == reg(SP, 16)


def test_other_single_rows_of_plts_are_not_repaired():
    plt_sec = table(3, [Function(START, 64, [row(0, 8)], repeat=16)])
    assert plt_sec.row_at(START + 20).cfa == reg(SP, 8)
    unmasked = table(3, [Function(START, 64, [row(0, 16)])])
    assert unmasked.row_at(START + 20).cfa == reg(SP, 16)
    odd = table(3, [Function(START, 64, [row(0, 16, base="fp")], repeat=16)])
    assert odd.row_at(START + 20).cfa == reg(FP, 16)


@VERSIONS
def test_functions_of_no_size_hide_nothing(version):
    fp8 = [row(0, 8)]
    functions = [Function(START, 16, [row(0, 24)])] + [Function(START + 4, 0, fp8)] * 3
    made = table(version, functions)

    assert made.row_at(START + 3).cfa.offset == 24
    assert made.row_at(START + 4).cfa.offset == 24
    assert made.row_at(START + 15).cfa.offset == 24


def test_functions_of_no_size_are_stepped_over_a_limited_number_of_times():
    functions = [Function(START, 16, [row(0, 24)])] + [Function(START + 4, 0, [])] * 1000
    made = table(3, functions)

    assert made.row_at(START + 4) is None


def test_damage_in_a_function_of_no_size_hides_nothing():
    functions = [Function(START, 16, [row(0, 24)]), Function(START + 4, 0, [], fre_off=1 << 20)]

    assert table(3, functions).row_at(START + 5).cfa.offset == 24


@VERSIONS
def test_functions_that_share_a_start_keep_their_own_rows(version):
    made = table(version, [Function(START, 0, [row(0, 8)]), Function(START, 16, [row(0, 24)])])

    assert [made.rows(f)[0].cfa.offset for f in made.fdes()] == [8, 24]
    assert made.row_at(START).cfa.offset == 24


@VERSIONS
def test_rows_are_decoded_once(version):
    made = table(version, [Function(START, 16, [row(0, 8)])])

    assert made.row_at(START) is made.row_at(START + 1)


@VERSIONS
def test_an_unsorted_table_is_sorted(version):
    flags = PCREL if version == 3 else 0
    functions = [Function(START + at, 16, [row(0, at + 8)]) for at in (0x300, 0x100, 0, 0x200)]
    made = table(version, functions, flags=flags)

    assert [made.row_at(START + at + 5).cfa.offset for at in (0, 0x100, 0x200, 0x300)] == [
        8, 0x108, 0x208, 0x308]  # fmt: skip
    assert made.row_at(START - 1) is None
    assert [f.start - START for f in made.fdes()] == [0x300, 0x100, 0, 0x200]


@VERSIONS
def test_a_table_that_lies_about_its_order_never_gives_a_wrong_function(version):
    functions = [Function(START + at, size, [row(0, 8)], repeat=16)
                 for at, size in ((0x300, 16), (0, 0), (0x200, 16), (0x10, 0))]  # fmt: skip
    made = table(version, functions)

    for vaddr in range(START - 0x20, START + 0x400):
        found = made.find(vaddr)
        assert found is None or found.start <= vaddr < found.start + found.size


@VERSIONS
def test_addresses_wrap(version):
    """A start below the section of a file at address 0 is a negative field, and addresses have 64 bits."""
    high = (1 << 64) - 0x100
    made = SFrameTable(section(version, [Function(high - (1 << 64), 16, [row(0, 8)])], address=0x100), 0x100)

    assert next(made.fdes()).start == high
    assert made.row_at(high + 1).cfa == reg(SP, 8)


def test_an_empty_table():
    assert table(3, []).find(START) is None
    assert table(3, [], flags=PCREL).find(START) is None


# -- what start fields are relative to


def test_v3_starts_relative_to_the_section():
    """Without the flag V3 starts count from the section, the specification says; no tool writes that."""
    made = table(3, [Function(START, 16, [row(0, 8)])], flags=SORTED)

    assert next(made.fdes()).start == START
    assert not made.pcrel


@pytest.mark.parametrize("version", [1, 2])
def test_concatenating_linkers_leave_field_relative_starts_without_the_flag(version):
    """mold: the flag is clear, yet only field + raw lies in code."""
    code = [(0x1780, 0x1790)]
    functions = [Function(0x1780, 16, [row(0, 8)])]
    data = section(version, functions, address=0x590, flags=0, field_relative=True)

    blind = SFrameTable(data, 0x590)
    assert next(blind.fdes()).start == 0x1780 - HEADER_SIZE  # what readelf prints
    seeing = SFrameTable(data, 0x590, executable=code)
    assert next(seeing.fdes()).start == 0x1780
    assert len(seeing.problems) == 1
    assert seeing.row_at(0x1780).cfa == reg(SP, 8)


@pytest.mark.parametrize("version", [1, 2])
def test_where_both_meanings_lie_in_code_the_specification_decides(version):
    data = section(version, [Function(START, 16, [row(0, 8)])])
    made = SFrameTable(data, ADDRESS, executable=[(0, 0x10000)])

    assert next(made.fdes()).start == START
    assert made.problems == []


def test_only_some_starts_of_a_long_table_are_looked_at():
    functions = [Function(START + 16 * i, 16, [row(0, 8)]) for i in range(100)]
    data = section(2, functions, address=0x8000, flags=0, field_relative=True)
    made = SFrameTable(data, 0x8000, executable=[(START, START + 1600)])

    assert [f.start for f in made.fdes()] == [f.start for f in functions]


# -- several tables in one section


def concatenated(*tables: bytes) -> bytes:
    return b"".join(t + bytes(-len(t) % 8) for t in tables)


def test_tables_that_a_linker_concatenated():
    first = section(2, [Function(0x1000, 16, [row(0, 8)])], flags=PCREL, address=ADDRESS)
    second_address = ADDRESS + len(concatenated(first))
    second = section(3, [Function(0x1010, 16, [row(0, 24)])], address=second_address)
    tables = read_tables(concatenated(first, second), ADDRESS)

    assert [t.version for t in tables] == [2, 3]
    assert [t.address for t in tables] == [ADDRESS, second_address]
    assert [next(t.fdes()).start for t in tables] == [0x1000, 0x1010]
    assert [t.problems for t in tables] == [[], []]


def test_what_follows_the_last_table_is_not_read():
    """GNU ld states too many bytes for PT_GNU_SFRAME when there are PLT rows; the rest is zero."""
    data = section(3, [Function(START, 16, [row(0, 8)])])

    [made] = read_tables(data + bytes(50), ADDRESS)
    assert made.used == len(data)
    assert len(read_tables(data + b"something else", ADDRESS)) == 1


def test_an_unusable_later_table_is_a_problem_of_the_one_before():
    first = section(3, [Function(START, 16, [row(0, 8)])])
    [made] = read_tables(concatenated(first, section(3, [], version=9)), ADDRESS)

    [problem] = made.problems
    assert f"at {len(concatenated(first)):#x}" in problem
    assert "version 9" in problem
    assert made.row_at(START).cfa == reg(SP, 8)


def test_an_unusable_first_table_is_a_format_error():
    with pytest.raises(FormatError):
        read_tables(b"", ADDRESS)


# -- headers


def test_the_auxiliary_header_is_skipped():
    for version in (1, 2, 3):
        made = table(version, [Function(START, 16, [row(0, 8)])], aux=b"future use")
        assert made.row_at(START).cfa == reg(SP, 8)
        assert made.fde_base == HEADER_SIZE + 10


def test_space_before_the_function_table():
    data = bytearray(section(3, [], fdeoff=4, freoff=4)) + bytes(4)

    assert SFrameTable(data, ADDRESS).fde_base == HEADER_SIZE + 4


def test_other_fixed_slots_of_the_return_address():
    assert table(3, [], fixed_ra=-16).fixed_ra == -16


def test_the_frame_pointer_flag_is_a_hint_that_is_ignored():
    assert table(2, [], flags=SORTED | FRAME_POINTER).flags & Flag.FRAME_POINTER


GOOD = [Function(START, 16, [row(0, 8)])]
REFUSALS = {
    "empty": (b"", 0, "0 bytes"),
    "one byte short of a header": (section(3, [])[:27], 0, "27 bytes"),
    "zeros": (bytes(28), 0, "magic"),
    "other magic": (b"\xe2\xdf" + section(3, [])[2:], 0, "magic"),
    "version 0": (section(3, GOOD, version=0), 2, "version 0"),
    "version 4": (section(3, GOOD, version=4), 2, "version 4"),
    "version 255": (section(3, GOOD, version=255), 2, "version 255"),
    "flag 4 in V1": (section(1, GOOD, flags=5), 3, "flags 0x5"),
    "flag 8 in V2": (section(2, GOOD, flags=9), 3, "flags 0x9"),
    "flag 2 in V3": (section(3, GOOD, flags=7), 3, "flags 0x7"),
    "ABI 0": (section(3, GOOD, abi=0), 4, "ABI 0"),
    "ABI 5": (section(3, GOOD, abi=5), 4, "ABI 5"),
    "ABI of the other byte order": (
        section(3, GOOD)[:4] + bytes([AARCH64_BE]) + section(3, GOOD)[5:], 4, "AARCH64_BE in little-endian"),
    "fixed FP": (section(3, GOOD, fixed_fp=-16), 5, "fixed FP offset -16"),
    "no fixed RA on AMD64": (section(3, GOOD, fixed_ra=0), 6, "fixed RA offset 0"),
    "positive fixed RA": (section(3, GOOD, fixed_ra=8), 6, "fixed RA offset 8"),
    "odd fixed RA": (section(3, GOOD, fixed_ra=-7), 6, "fixed RA offset -7"),
    "fixed RA where it is tracked": (
        section(3, GOOD, abi=AARCH64_LE, fixed_ra=-8), 6, "fixed RA offset -8 for AARCH64_LE"),
    "auxiliary header past the end": (section(3, GOOD, aux_len=255), 16, "claims"),
    "FDE table past the end": (section(3, GOOD, fdeoff=1 << 31), 8, "1 FDEs need 16 bytes"),
    "overlap of the areas": (section(3, GOOD, freoff=0), 8, "have 0"),
    "OxCaml's 21-byte entries": (section(3, GOOD, freoff=21), 8, "have 21"),
    "too many FDEs": (section(3, GOOD, num_fdes=0xFFFFFFFF), 8, "4294967295 FDEs"),
    "as many FDEs as an offset can reach": (
        section(3, GOOD, num_fdes=0x0FFFFFFF, freoff=0xFFFFFFF0), 16, "claims"),
    "FREs past the end": (section(3, GOOD, fre_len=100), 16, "claims 144 bytes of the 52"),
    "FREs that wrap": (section(3, GOOD, fre_len=0xFFFFFFFF), 16, "claims"),
    "cut short": (section(3, GOOD)[:-1], 16, "claims 52 bytes of the 51"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "offset", "what"), REFUSALS.values(), ids=REFUSALS)
def test_a_header_is_refused(data, offset, what):
    with pytest.raises(FormatError) as refusal:
        SFrameTable(data, ADDRESS)

    assert (refusal.value.section, refusal.value.offset) == (".sframe", offset)
    assert what in refusal.value.what


def test_the_file_must_be_of_the_same_machine():
    data = section(3, GOOD)

    assert SFrameTable(data, ADDRESS, machine=(62, "little")).num_fdes == 1
    for other in ((183, "little"), (62, "big")):
        with pytest.raises(FormatError) as refusal:
            SFrameTable(data, ADDRESS, machine=other)
        assert refusal.value.offset == 4


def test_a_wrong_total_of_rows_is_harmless():
    assert table(3, GOOD, num_fres=77).row_at(START).cfa == reg(SP, 8)


# -- damage to one function costs that function

FRE_BASE = {version: HEADER_SIZE + 2 * FDE_SIZE[version] for version in (1, 2, 3)}
BAD = Function(START, 16, [row(0, 8), row(4, 16)])
DAMAGE = {
    "rows outside the area": BAD._replace(fre_off=1 << 31),
    "last row outside the area": BAD._replace(num_fres=7),
    "more rows than fit": BAD._replace(num_fres=0xFFFF),
    "FRE type 3": BAD._replace(info=3),
    "FRE type 15": BAD._replace(info=15),
    "rows that go back": BAD._replace(rows=[row(4, 8), row(0, 16)]),
    "word size 3": BAD._replace(rows=[row(0, 8)._replace(mangled=True, count=0x30 | 1)]),
}


@VERSIONS
@pytest.mark.parametrize("bad", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_function_costs_only_itself(version, bad):
    made = table(version, [bad, Function(START + 16, 16, [row(0, 24)])])

    with pytest.raises(FormatError) as damage:
        made.row_at(START)
    assert damage.value.section == ".sframe"
    assert damage.value.offset >= FRE_BASE[version]
    assert made.row_at(START + 16).cfa == reg(SP, 24)


def test_words_that_end_outside_the_area():
    made = table(3, [Function(START, 16, [row(0, 8), row(4, 8, count=6)])])

    with pytest.raises(FormatError, match="row ends outside") as damage:
        made.row_at(START)
    assert damage.value.offset == HEADER_SIZE + FDE_SIZE[3] + 5 + 3 + 2


def test_a_row_that_begins_outside_the_area():
    """The count fits by the smallest row, but the rows before were longer."""
    made = table(3, [Function(START, 16, [row(0, 8, -16, width=4)], num_fres=3)])

    with pytest.raises(FormatError, match="row outside the FRE area"):
        made.row_at(START)


@pytest.mark.parametrize("version", [1, 2])
def test_a_count_of_rows_in_the_thousand_millions_is_refused_at_once(version):
    made = table(version, [BAD._replace(num_fres=0xFFFFFFFF)])

    with pytest.raises(FormatError, match="4294967295 rows do not fit"):
        made.row_at(START)


def test_a_reserved_function_type_says_nothing():
    made = table(3, [BAD._replace(info2=2), Function(START + 16, 16, [row(0, 24)])])

    with pytest.raises(FormatError, match="FDE type 2"):
        made.row_at(START)
    assert made.row_at(START + 16).cfa == reg(SP, 24)


def test_an_attribute_outside_the_area_costs_that_function():
    made = table(3, [Function(START, 16, [], fre_off=1 << 20), Function(START + 16, 16, [row(0, 24)])])

    with pytest.raises(FormatError, match="attribute outside") as damage:
        made.row_at(START)
    assert damage.value.offset == FRE_BASE[3] + (1 << 20)
    assert made.row_at(START + 16).cfa == reg(SP, 24)
    assert [f.start for f in made.fdes()] == [START + 16]
    assert len(made.problems) == 1


def test_an_attribute_may_end_with_the_area_and_not_after_it():
    functions = [Function(START, 16, []), Function(START + 16, 16, [row(0, 8)], fre_off=0)]  # 5 + 5 + 3 bytes
    shared = [functions[0], functions[1]._replace(fre_off=8)]
    beyond = [functions[0], functions[1]._replace(fre_off=9)]

    assert table(3, functions).row_at(START + 16).cfa is None  # the first function's: outermost
    assert next(iter(table(3, shared).fdes())).num_fres == 0
    assert table(3, shared).find(START + 16) is not None
    with pytest.raises(FormatError, match="attribute outside"):
        table(3, beyond).find(START + 16)


def test_bits_that_mean_nothing_are_ignored():
    """Info bit 6, and bit 7 before V3, are unused; rep_size of a function that does not repeat as well."""
    for version in (1, 2):
        made = table(version, [Function(START, 16, [row(0, 8)], info=0xC0, repeat=16)])
        assert made.row_at(START + 9).cfa == reg(SP, 8)
        assert not next(made.fdes()).signal
    made = table(3, [Function(START, 16, [row(0, 8)], info=0x40, info2=0xE0)])
    assert made.row_at(START).cfa == reg(SP, 8)
    assert not made.row_at(START).signal
