"""Each call frame instruction changes the row as the standard says; damaged programs raise FormatError."""

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.dwarf.eh_frame import EhFrame
from tests.builders.eh_frame_builder import (
    ABSPTR,
    AMD64_START,
    NOP,
    REMEMBER_STATE,
    RESTORE_STATE,
    EhFrameBuilder,
    advance_loc,
    block,
    def_cfa,
    def_cfa_expression,
    def_cfa_offset,
    def_cfa_register,
    offset,
    restore,
    sleb,
    uleb,
)
from tests.builders.eh_frame_tables import (
    RA,
    SIZE,
    START,
    VADDR,
    last_row,
    one_function,
    rows,
)


def rule(program, register, **cie):
    return last_row(program, **cie).rules.get(register, "absent")


def test_row_at_follows_the_program_address_by_address():
    program = advance_loc(1) + def_cfa_offset(16) + offset(6, 2) + advance_loc(3) + def_cfa_register(6)
    eh_frame = one_function(program)

    entry = CfiRow(Rule(7, 8, deref=False), {16: RA}, 16, signal=False)
    pushed = CfiRow(Rule(7, 16, deref=False), {16: RA, 6: Rule(CFA, -16, deref=True)}, 16, signal=False)
    assert eh_frame.row_at(START) == entry
    assert [eh_frame.row_at(START + n) for n in (1, 2, 3)] == [pushed] * 3
    assert (
        eh_frame.row_at(START + 4)
        == eh_frame.row_at(START + SIZE - 1)
        == pushed._replace(cfa=Rule(6, 16, deref=False))
    )


@pytest.mark.parametrize("vaddr", [0, START - 1, START + SIZE, 1 << 63, (1 << 64) - 1])
def test_address_outside_the_function_has_no_row(vaddr):
    assert one_function().row_at(vaddr) is None


def test_row_at_returns_a_copy():
    eh_frame = one_function()
    row = eh_frame.row_at(START)
    assert row is not None
    row.rules.clear()

    assert eh_frame.row_at(START) == CfiRow(Rule(7, 8, deref=False), {16: RA}, 16, signal=False)


def test_rows_of_a_function_do_not_share_rules():
    first, second = rows(advance_loc(4) + offset(3, 2))

    assert first == (0, Rule(7, 8, deref=False), {16: RA})
    assert second == (4, Rule(7, 8, deref=False), {16: RA, 3: Rule(CFA, -16, deref=True)})


def test_function_of_nops_has_the_row_of_its_cie():
    assert rows(NOP * 5) == [(0, Rule(7, 8, deref=False), {16: RA})]


@pytest.mark.parametrize(
    ("advance", "to"),
    [
        (advance_loc(0x3F), 0x3F),
        (b"\x02\xf0", 0xF0),  # DW_CFA_advance_loc1
        (b"\x03\x34\x12", 0x1234),  # DW_CFA_advance_loc2
        (b"\x04\x78\x56\x34\x12", 0x12345678),  # DW_CFA_advance_loc4
        (b"\x1d\x08\x07\x06\x05\x04\x03\x02\x01", 0x0102030405060708),  # DW_CFA_MIPS_advance_loc8
    ],
)
def test_advance_is_multiplied_by_the_code_alignment(advance, to):
    assert [location for location, _, _ in rows(advance)] == [0, to]
    assert [location for location, _, _ in rows(advance, code_align=4)] == [0, 4 * to]


def test_set_loc_has_the_pointer_encoding_of_the_cie():
    program = b"\x01" + (START + 0x20).to_bytes(8, "little")

    assert [location for location, _, _ in rows(program, encoding=ABSPTR)] == [0, 0x20]


def test_pcrel_set_loc_counts_from_its_own_field():
    section = EhFrameBuilder(VADDR)
    at = section.fde(section.cie(), START, SIZE, bytes(5))
    field = at + 4 + 4 + 8 + 1 + 1  # length, id, start and size, augmentation length, opcode
    section.data[field - 1 : field + 4] = b"\x01" + (START + 0x20 - VADDR - field).to_bytes(
        4, "little", signed=True
    )
    eh_frame = EhFrame(section.terminated(), VADDR, "little")
    [fde] = eh_frame.fdes()

    assert [location - START for location, _ in eh_frame.rows(fde)] == [0, 0x20]


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (offset(3, 2), Rule(CFA, -16, deref=True)),
        (b"\x05" + uleb(3) + uleb(2), Rule(CFA, -16, deref=True)),  # DW_CFA_offset_extended
        (b"\x11" + uleb(3) + sleb(-2), Rule(CFA, 16, deref=True)),  # DW_CFA_offset_extended_sf
        (b"\x14" + uleb(3) + uleb(2), Rule(CFA, -16, deref=False)),  # DW_CFA_val_offset
        (b"\x15" + uleb(3) + sleb(-2), Rule(CFA, 16, deref=False)),  # DW_CFA_val_offset_sf
        (b"\x2f" + uleb(3) + uleb(2), Rule(CFA, 16, deref=True)),  # DW_CFA_GNU_negative_offset_extended
        (b"\x09" + uleb(3) + uleb(8), Rule(8, 0, deref=False)),  # DW_CFA_register
        (b"\x07" + uleb(3), None),  # DW_CFA_undefined
        (b"\x08" + uleb(3), Rule(3, 0, deref=False)),  # DW_CFA_same_value
        (
            b"\x10" + uleb(3) + block(b"\x77\x10"),
            Rule(CFA, 0, deref=True, expression=b"\x77\x10"),
        ),  # DW_CFA_expression
        (b"\x16" + uleb(3) + block(b"\x77\x10"), Rule(CFA, 0, deref=False, expression=b"\x77\x10")),
    ],
)
def test_instruction_sets_the_register_rule(instruction, expected):
    assert rule(instruction, 3) == expected
    assert last_row(instruction).rules[16] == RA


@pytest.mark.parametrize("undo", [restore(3), b"\x06" + uleb(3)])
def test_restore_sets_the_rule_of_the_cie(undo):
    same = AMD64_START + b"\x08" + uleb(3)

    assert rule(offset(3, 2) + undo, 3) == "absent"
    assert rule(offset(3, 2) + undo, 3, program_of_cie=same) == Rule(3, 0, deref=False)
    assert rule(undo, 3) == "absent"


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (def_cfa(6, 16), Rule(6, 16, deref=False)),
        (def_cfa_register(6), Rule(6, 8, deref=False)),
        (def_cfa_offset(200), Rule(7, 200, deref=False)),
        (b"\x12" + uleb(6) + sleb(-2), Rule(6, 16, deref=False)),  # DW_CFA_def_cfa_sf
        (b"\x13" + sleb(-3), Rule(7, 24, deref=False)),  # DW_CFA_def_cfa_offset_sf
        (def_cfa_expression(b"\x77\x08"), Rule(7, 8, deref=False, expression=b"\x77\x08")),
        (def_cfa_expression(b"\x77\x08") + def_cfa(6, 16), Rule(6, 16, deref=False)),
        (def_cfa_expression(b"\x77\x08") + def_cfa_register(6), Rule(6, 8, deref=False)),
        (def_cfa_expression(b"\x77\x08") + b"\x12" + uleb(6) + sleb(-2), Rule(6, 16, deref=False)),
    ],
)
def test_instruction_sets_the_cfa_rule(instruction, expected):
    assert last_row(instruction).cfa == expected


def test_restore_state_restores_rules_and_cfa():
    inside = def_cfa(6, 16) + offset(3, 2) + b"\x07" + uleb(16)

    assert rows(REMEMBER_STATE + inside + advance_loc(1) + RESTORE_STATE)[-1] == (
        1,
        Rule(7, 8, deref=False),
        {16: RA},
    )


def test_remembered_states_nest_and_are_copies():
    program = REMEMBER_STATE + offset(3, 2) + REMEMBER_STATE + offset(6, 3)
    program += RESTORE_STATE + advance_loc(1) + RESTORE_STATE + advance_loc(1)

    assert [sorted(rules) for _, _, rules in rows(program)] == [[3, 16], [16], [16]]


@pytest.mark.parametrize("skipped", [b"\x2e" + uleb(300), b"\x2d", b"\x2c", NOP])
def test_other_instructions_do_not_change_the_row(skipped):
    assert rows(skipped + def_cfa_offset(16)) == [(0, Rule(7, 16, deref=False), {16: RA})]


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (b"\x3f\x00", "unknown instruction"),
        (b"\x17\x00", "unknown instruction"),
        (b"\x3f", "ends inside"),
        (RESTORE_STATE, "without a remembered state"),
        (REMEMBER_STATE * 65, "too many remembered states"),
        (b"\x0e\x80\x80\x80", "ends inside"),
        (b"\x0e" + b"\x80" * 12, "longer than 64 bits"),
        (b"\x0f\x00", "empty expression"),
        (b"\x0f\x7f\x77", "do not fit"),
        (b"\x04\x01", "ends inside"),
        (b"\x01" + bytes(8), "goes back"),
        (b"".join(b"\x08" + uleb(n) for n in range(300)), "registers"),
    ],
)
def test_damaged_program_raises_format_error(program, what):
    section = EhFrameBuilder(VADDR)
    cie = section.cie(encoding=ABSPTR)
    padding = -(21 + len(program)) % 4  # without padding by the builder, which would repair the program
    at = section.fde(cie, START, SIZE, NOP * padding + program)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    with pytest.raises(FormatError, match=what) as raised:
        eh_frame.row_at(START + SIZE - 1)
    assert raised.value.section == ".eh_frame"
    assert at <= raised.value.offset <= len(section.data)


def test_damage_after_the_address_is_ignored():
    assert one_function(advance_loc(4) + b"\x3f").row_at(START) is not None


def test_cie_may_leave_the_cfa_to_its_fdes():
    assert last_row(def_cfa(7, 8), program_of_cie=NOP).cfa == Rule(7, 8, deref=False)
    with pytest.raises(FormatError, match="no instruction defines the CFA"):
        last_row(NOP, program_of_cie=NOP)
    with pytest.raises(FormatError, match="without a CFA register"):
        last_row(def_cfa_offset(8), program_of_cie=NOP)
