"""`.eh_frame`: each case of the standard, and each way to be damaged, as readable bytes."""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import CfaRule, CfiRow, CfiRule, EhFrame, eh_frame_address
from tests.builders.eh_frame_builder import (
    ABSPTR,
    ALIGNED,
    AMD64_START,
    DATAREL,
    FUNCREL,
    INDIRECT,
    NOP,
    OMIT,
    PCREL,
    REMEMBER_STATE,
    RESTORE_STATE,
    SDATA2,
    SDATA4,
    SDATA8,
    SIGNED,
    SLEB128,
    TEXTREL,
    UDATA2,
    UDATA4,
    UDATA8,
    ULEB128,
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

VADDR, HDR_VADDR = 0x2000, 0x1F00
START, SIZE = 0x1000, 0x100
RA = CfiRule("offset", -8)


def one_function(program=b"", start=START, size=SIZE, **cie) -> EhFrame:
    section = EhFrameBuilder(VADDR, cie.pop("byteorder", "little"))
    program_of_cie = cie.pop("program_of_cie", AMD64_START)
    section.fde(section.cie(program_of_cie, **cie), start, size, program)
    return EhFrame(section.terminated(), VADDR, section.byteorder)


def rows(program, **cie):
    eh_frame = one_function(program, **cie)
    [fde] = eh_frame.fdes()
    return [(location - START, row.cfa, row.rules) for location, row in eh_frame.rows(fde)]


def last_row(program, **cie) -> CfiRow:
    row = one_function(program, **cie).row_at(START + SIZE - 1)
    assert row is not None
    return row


def rule(program, register, **cie):
    return last_row(program, **cie).rules.get(register)


# The row at one address.


def test_the_row_of_each_address_of_a_function():
    program = advance_loc(1) + def_cfa_offset(16) + offset(6, 2) + advance_loc(3) + def_cfa_register(6)
    eh_frame = one_function(program)

    entry = CfiRow(CfaRule(7, 8), {16: RA}, 16, signal=False)
    pushed = CfiRow(CfaRule(7, 16), {16: RA, 6: CfiRule("offset", -16)}, 16, signal=False)
    assert eh_frame.row_at(START) == entry
    assert [eh_frame.row_at(START + n) for n in (1, 2, 3)] == [pushed] * 3
    assert (
        eh_frame.row_at(START + 4) == eh_frame.row_at(START + SIZE - 1) == pushed._replace(cfa=CfaRule(6, 16))
    )


@pytest.mark.parametrize("vaddr", [0, START - 1, START + SIZE, 1 << 63, (1 << 64) - 1])
def test_an_address_outside_has_no_row(vaddr):
    assert one_function().row_at(vaddr) is None


def test_a_row_can_be_changed_without_changing_the_next_answer():
    eh_frame = one_function()
    row = eh_frame.row_at(START)
    assert row is not None
    row.rules.clear()

    assert eh_frame.row_at(START) == CfiRow(CfaRule(7, 8), {16: RA}, 16, signal=False)


def test_rows_of_a_function_do_not_share_their_rules():
    first, second = rows(advance_loc(4) + offset(3, 2))

    assert first == (0, CfaRule(7, 8), {16: RA})
    assert second == (4, CfaRule(7, 8), {16: RA, 3: CfiRule("offset", -16)})


def test_a_function_of_nops_has_the_row_of_its_cie():
    assert rows(NOP * 5) == [(0, CfaRule(7, 8), {16: RA})]


# Each instruction.


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
def test_advances_are_factored(advance, to):
    assert [location for location, _, _ in rows(advance)] == [0, to]
    assert [location for location, _, _ in rows(advance, code_align=4)] == [0, 4 * to]


def test_set_loc_is_encoded_like_the_start():
    program = b"\x01" + (START + 0x20).to_bytes(8, "little")

    assert [location for location, _, _ in rows(program, encoding=ABSPTR)] == [0, 0x20]


def test_set_loc_counts_from_its_own_field():
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
        (offset(3, 2), CfiRule("offset", -16)),
        (b"\x05" + uleb(3) + uleb(2), CfiRule("offset", -16)),  # DW_CFA_offset_extended
        (b"\x11" + uleb(3) + sleb(-2), CfiRule("offset", 16)),  # DW_CFA_offset_extended_sf
        (b"\x14" + uleb(3) + uleb(2), CfiRule("val_offset", -16)),  # DW_CFA_val_offset
        (b"\x15" + uleb(3) + sleb(-2), CfiRule("val_offset", 16)),  # DW_CFA_val_offset_sf
        (b"\x2f" + uleb(3) + uleb(2), CfiRule("offset", 16)),  # DW_CFA_GNU_negative_offset_extended
        (b"\x09" + uleb(3) + uleb(8), CfiRule("register", 8)),  # DW_CFA_register
        (b"\x07" + uleb(3), CfiRule("undefined")),  # DW_CFA_undefined
        (b"\x08" + uleb(3), CfiRule("same")),  # DW_CFA_same_value
        (b"\x10" + uleb(3) + block(b"\x77\x10"), CfiRule("expression", 0, b"\x77\x10")),  # DW_CFA_expression
        (b"\x16" + uleb(3) + block(b"\x77\x10"), CfiRule("val_expression", 0, b"\x77\x10")),
    ],
)
def test_register_rules(instruction, expected):
    assert rule(instruction, 3) == expected
    assert last_row(instruction).rules[16] == RA


@pytest.mark.parametrize("undo", [restore(3), b"\x06" + uleb(3)])
def test_restore_goes_back_to_the_cie(undo):
    same = AMD64_START + b"\x08" + uleb(3)

    assert rule(offset(3, 2) + undo, 3) is None
    assert rule(offset(3, 2) + undo, 3, program_of_cie=same) == CfiRule("same")
    assert rule(undo, 3) is None


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (def_cfa(6, 16), CfaRule(6, 16)),
        (def_cfa_register(6), CfaRule(6, 8)),
        (def_cfa_offset(200), CfaRule(7, 200)),
        (b"\x12" + uleb(6) + sleb(-2), CfaRule(6, 16)),  # DW_CFA_def_cfa_sf
        (b"\x13" + sleb(-3), CfaRule(7, 24)),  # DW_CFA_def_cfa_offset_sf
        (def_cfa_expression(b"\x77\x08"), CfaRule(7, 8, b"\x77\x08")),
        (def_cfa_expression(b"\x77\x08") + def_cfa(6, 16), CfaRule(6, 16)),
        (def_cfa_expression(b"\x77\x08") + def_cfa_register(6), CfaRule(6, 8)),
        (def_cfa_expression(b"\x77\x08") + b"\x12" + uleb(6) + sleb(-2), CfaRule(6, 16)),
    ],
)
def test_cfa_rules(instruction, expected):
    assert last_row(instruction).cfa == expected


def test_restore_state_restores_rules_and_cfa():
    inside = def_cfa(6, 16) + offset(3, 2) + b"\x07" + uleb(16)

    assert rows(REMEMBER_STATE + inside + advance_loc(1) + RESTORE_STATE)[-1] == (1, CfaRule(7, 8), {16: RA})


def test_states_nest_and_a_remembered_one_is_a_copy():
    program = REMEMBER_STATE + offset(3, 2) + REMEMBER_STATE + offset(6, 3)
    program += RESTORE_STATE + advance_loc(1) + RESTORE_STATE + advance_loc(1)

    assert [sorted(rules) for _, _, rules in rows(program)] == [[3, 16], [16], [16]]


@pytest.mark.parametrize("skipped", [b"\x2e" + uleb(300), b"\x2d", b"\x2c", NOP])
def test_instructions_that_say_nothing_about_the_row(skipped):
    assert rows(skipped + def_cfa_offset(16)) == [(0, CfaRule(7, 16), {16: RA})]


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
def test_a_damaged_program(program, what):
    section = EhFrameBuilder(VADDR)
    cie = section.cie(encoding=ABSPTR)
    padding = -(21 + len(program)) % 4  # so that the builder's own padding does not repair it
    at = section.fde(cie, START, SIZE, NOP * padding + program)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    with pytest.raises(FormatError, match=what) as failure:
        eh_frame.row_at(START + SIZE - 1)
    assert failure.value.section == ".eh_frame"
    assert at <= failure.value.offset <= len(section.data)


def test_damage_behind_the_address_does_not_matter():
    assert one_function(advance_loc(4) + b"\x3f").row_at(START) is not None


def test_a_cie_may_leave_the_cfa_to_its_fdes():
    assert last_row(def_cfa(7, 8), program_of_cie=NOP).cfa == CfaRule(7, 8)
    with pytest.raises(FormatError, match="no instruction defines the CFA"):
        last_row(NOP, program_of_cie=NOP)
    with pytest.raises(FormatError, match="without a CFA register"):
        last_row(def_cfa_offset(8), program_of_cie=NOP)


# CIEs.


@pytest.mark.parametrize("version", [1, 3, 4])
def test_cie_versions(version):
    assert last_row(offset(3, 2), version=version).rules == {16: RA, 3: CfiRule("offset", -16)}


def test_the_return_address_column_may_be_a_leb_since_version_3():
    assert last_row(b"", version=3, ra_register=300).ra_register == 300


@pytest.mark.parametrize(
    ("augmentation", "data"),
    [
        (b"zR", bytes([ABSPTR])),
        (b"zPLR", bytes([INDIRECT | PCREL | SDATA4]) + bytes(4) + bytes([PCREL | SDATA4, ABSPTR])),
        (b"zPLRSB", bytes([UDATA8]) + bytes(8) + bytes([OMIT, ABSPTR])),
        (b"zPR", bytes([OMIT, ABSPTR])),
        (b"zRP", bytes([ABSPTR, SLEB128, 0x80, 0x01])),
        (b"zR?P", bytes([ABSPTR]) + b"anything"),
    ],
)
def test_augmentations(augmentation, data):
    row = last_row(def_cfa_offset(16), augmentation=augmentation, augmentation_data=data, encoding=ABSPTR)

    assert row == CfiRow(CfaRule(7, 16), {16: RA}, 16, signal=b"S" in augmentation)


def test_an_aligned_personality_is_skipped_with_its_padding():
    section = EhFrameBuilder(VADDR)
    # length 4, id 4, version 1, "zPR\0" 4, factors 2, RA 1, data length 1, encoding 1: next is at 18 -> 24
    data = bytes([ALIGNED]) + bytes(6) + bytes(8) + bytes([ABSPTR])
    cie = section.cie(augmentation=b"zPR", augmentation_data=data, encoding=ABSPTR)
    section.fde(cie, START, SIZE)

    assert EhFrame(section.terminated(), VADDR, "little").find(START) is not None


def test_no_augmentation_means_absolute_pointers():
    assert last_row(def_cfa_offset(16), augmentation=b"", encoding=ABSPTR).cfa == CfaRule(7, 16)


def test_gcc_2_has_a_pointer_after_eh():
    row = last_row(def_cfa_offset(16), augmentation=b"eh", encoding=ABSPTR, eh_data=bytes(8))

    assert row.cfa == CfaRule(7, 16)


def test_the_lsda_is_skipped():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(), START, SIZE, def_cfa_offset(16), lsda=b"\x3f\x3f\x3f\x3f")
    row = EhFrame(section.terminated(), VADDR, "little").row_at(START)

    assert row is not None
    assert row.cfa == CfaRule(7, 16)


def test_addresses_of_four_bytes():
    section = EhFrameBuilder(VADDR)
    cie = section.cie(version=4, address_size=4, encoding=ABSPTR)
    section.fde(cie, START, SIZE, address_size=4)

    assert EhFrame(section.terminated(), VADDR, "little").find(START) is not None


@pytest.mark.parametrize(
    ("cie", "what"),
    [
        ({"version": 2}, "version 2"),
        ({"version": 5}, "version 5"),
        ({"version": 4, "address_size": 3}, "addresses of 3 bytes"),
        ({"version": 4, "segment_size": 4}, "segments of 4"),
        ({"augmentation": b"R"}, "augmentation b'R'"),
        ({"augmentation_data": b""}, "ends inside"),
        ({"program_of_cie": b"\x3f"}, "unknown instruction"),
        ({"program_of_cie": NOP * 5000}, "not a CIE"),
    ],
)
def test_a_damaged_cie_costs_its_fdes_only(cie, what):
    section = EhFrameBuilder(VADDR)
    bad = section.cie(
        cie.get("program_of_cie", AMD64_START), **{k: v for k, v in cie.items() if k != "program_of_cie"}
    )
    good = section.cie()
    lost = [section.fde(bad, 0x1000, 0x10), section.fde(bad, 0x1010, 0x10)]
    section.fde(good, 0x1020, 0x10)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert [fde.start for fde in eh_frame.fdes()] == [0x1020]
    assert list(eh_frame.damaged) == lost
    with pytest.raises(FormatError, match=what):
        raise eh_frame.damaged[lost[0]]
    with pytest.raises(FormatError, match=what):
        EhFrame(section.terminated(), VADDR, "little", section.hdr(), HDR_VADDR).row_at(0x1000)


# FDEs: pointer encodings, lengths.


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("application", [ABSPTR, PCREL])
@pytest.mark.parametrize(
    "form", [ABSPTR, ULEB128, UDATA2, UDATA4, UDATA8, SIGNED, SLEB128, SDATA2, SDATA4, SDATA8]
)
def test_pointer_encodings(application, form, byteorder):
    start = 0x3000 if application == PCREL else START  # above the section: an unsigned distance can say it
    eh_frame = one_function(start=start, encoding=application | form, byteorder=byteorder)

    [fde] = eh_frame.fdes()
    assert (fde.start, fde.size) == (start, SIZE)


def test_an_aligned_pointer_is_absolute_after_padding():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(encoding=ALIGNED), START, SIZE, def_cfa_offset(16))
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert [(fde.start, fde.size) for fde in eh_frame.fdes()] == [(START, SIZE)]


@pytest.mark.parametrize(
    "encoding",
    [OMIT, INDIRECT | PCREL | SDATA4, TEXTREL | UDATA4, FUNCREL | UDATA4, DATAREL | UDATA4, 0x05, 0x60],
)
def test_a_start_that_cannot_be_known(encoding):
    section = EhFrameBuilder(VADDR)
    cie = section.cie(encoding=ABSPTR, augmentation_data=bytes([encoding]))
    section.fde(cie, START, SIZE)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert list(eh_frame.fdes()) == []
    assert [str(error) for error in eh_frame.damaged.values()]


def test_a_pcrel_start_wraps_around():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(), (1 << 64) - 0x100 & (1 << 64) - 1, 0x10)

    [fde] = EhFrame(section.terminated(), VADDR, "little").fdes()
    assert fde.start == (1 << 64) - 0x100


def test_discarded_functions_relocated_to_zero_are_harmless():
    section = EhFrameBuilder(VADDR)
    cie = section.cie()
    section.fde(cie, 0, 0)
    section.fde(cie, 0, 0x10)
    section.fde(cie, START, SIZE)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert eh_frame.row_at(START) is not None
    assert eh_frame.row_at(0x20) is None


def test_extended_lengths_keep_a_four_byte_id():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(extended=True), START, SIZE, def_cfa_offset(16), extended=True)
    row = EhFrame(section.terminated(), VADDR, "little").row_at(START)

    assert row is not None
    assert row.cfa == CfaRule(7, 16)


def test_a_negative_size_is_damage():
    section = EhFrameBuilder(VADDR)
    at = section.fde(section.cie(), START, -4)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert eh_frame.find(START) is None
    assert list(eh_frame.damaged) == [at]


# The walk.


def two_functions() -> EhFrameBuilder:
    section = EhFrameBuilder(VADDR)
    cie = section.cie()
    section.fde(cie, START + SIZE, SIZE)
    section.fde(cie, START, SIZE)
    return section


def test_the_walk_ends_at_the_terminator_or_with_the_bytes():
    data = bytes(two_functions().data)

    for tail in (b"", bytes(4), bytes(4) + b"\xff" * 100, b"\xff\xff\xff"):
        eh_frame = EhFrame(data + tail, VADDR, "little")
        assert [fde.start for fde in eh_frame.fdes()] == [START + SIZE, START]
        assert eh_frame.damaged == {}


@pytest.mark.parametrize(
    "length", [b"\x03\0\0\0", b"\0\0\0\x10", b"\xff\xff\xff\xff" + b"\xff" * 8, b"\xff\xff\xff\xff\0"]
)
def test_a_bad_length_ends_the_walk(length):
    data = bytes(two_functions().data)
    eh_frame = EhFrame(data + length + bytes(3), VADDR, "little")

    assert len(list(eh_frame.fdes())) == 2
    assert list(eh_frame.damaged) == [len(data)]


@pytest.mark.parametrize("distance", [4, 0x10000, 0xFFFFFFFF])
def test_an_fde_whose_cie_is_elsewhere(distance):
    section = two_functions()
    at = section.fde(0, START + 2 * SIZE, SIZE)
    section.data[at + 4 : at + 8] = distance.to_bytes(4, "little")
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert len(list(eh_frame.fdes())) == 2
    assert list(eh_frame.damaged) == [at]


def test_an_empty_section_covers_nothing():
    for data in (b"", bytes(4), b"\0\0"):
        assert EhFrame(data, VADDR, "little").row_at(START) is None


def test_memoryviews_do():
    section = two_functions()
    eh_frame = EhFrame(memoryview(section.data), VADDR, "little", memoryview(section.hdr()), HDR_VADDR)

    assert eh_frame.row_at(START) == one_function().row_at(START)


# The header.


def with_hdr(section: EhFrameBuilder, **hdr) -> EhFrame:
    table = section.hdr(HDR_VADDR, **hdr)
    return EhFrame(section.terminated(), VADDR, section.byteorder, table, HDR_VADDR)


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize(
    "encoding",
    [DATAREL | SDATA4, DATAREL | SDATA8, DATAREL | SDATA2, PCREL | SDATA4, ABSPTR, UDATA2, UDATA4, UDATA8],
)
def test_the_table_is_searched_in_any_fixed_encoding(encoding, byteorder):
    section = EhFrameBuilder(VADDR, byteorder)
    cie = section.cie()
    for start in (0x1400, 0x1000, 0x1200):
        section.fde(cie, start, 0x80)
    eh_frame = with_hdr(section, encoding=encoding)

    assert eh_frame._table is not None
    for start in (0x1000, 0x1200, 0x1400):
        for vaddr in (start, start + 0x7F):
            found = eh_frame.find(vaddr)
            assert found is not None
            assert found.start == start
        assert eh_frame.find(start - 1) is None
        assert eh_frame.find(start + 0x80) is None
    assert eh_frame._index is None


@pytest.mark.parametrize(
    "hdr",
    [
        {"encoding": OMIT},
        {"count_encoding": OMIT},
        {"version": 2},
        {"encoding": DATAREL | SLEB128},
        {"encoding": 0x07},
        {"count": 1000},
    ],
)
def test_without_a_usable_table_the_section_is_walked(hdr):
    eh_frame = with_hdr(two_functions(), **hdr)

    assert eh_frame._table is None
    assert eh_frame.row_at(START + SIZE) == one_function().row_at(START)
    assert eh_frame.find(START - 1) is None


def test_an_empty_or_cut_header_is_no_header():
    section = two_functions()
    whole = section.hdr(HDR_VADDR)
    for size in range(len(whole)):
        eh_frame = EhFrame(section.terminated(), VADDR, "little", whole[:size], HDR_VADDR)
        assert eh_frame.find(START) is not None


def test_an_empty_table_covers_nothing():
    assert with_hdr(EhFrameBuilder(VADDR)).find(START) is None


@pytest.mark.parametrize("target", [0, 1 << 20, -0x10000])
def test_a_table_entry_that_leads_nowhere(target):
    """Offset 0 is the CIE; the others are outside."""
    section = two_functions()
    section.fdes = [(START, target)]

    with pytest.raises(FormatError, match="does not lead to an FDE") as failure:
        with_hdr(section).row_at(START)
    assert failure.value.section == ".eh_frame_hdr"


def test_a_table_entry_that_leads_to_another_function():
    section = two_functions()
    section.fdes = [(START, section.fdes[0][1])]

    assert with_hdr(section).row_at(START) is None


@pytest.mark.parametrize("pointer_encoding", [PCREL | SDATA4, ABSPTR, DATAREL | SDATA4, UDATA4])
def test_eh_frame_address(pointer_encoding):
    hdr = two_functions().hdr(HDR_VADDR, pointer_encoding=pointer_encoding)

    assert eh_frame_address(hdr, HDR_VADDR, "little") == VADDR


@pytest.mark.parametrize(
    "hdr", [b"", b"\x01", b"\x02\x1b\x03\x3b" + bytes(8), b"\x01\xff\x03\x3b" + bytes(8)]
)
def test_eh_frame_address_of_a_damaged_header(hdr):
    with pytest.raises(FormatError) as failure:
        eh_frame_address(hdr, HDR_VADDR, "little")
    assert failure.value.section == ".eh_frame_hdr"
    assert 0 <= failure.value.offset <= len(hdr)
