"""SFrame and CFI rows of AArch64 and s390x recover the caller from stacks of both byte orders.

Each row is assembled, decoded, translated and applied; the result is the CFA and the caller's sp, fp and pc.
Fact sheet sections 2.3 and 2.4; the bytes of real assemblers are in `test_vectors.py`.
"""

from struct import pack

import pytest

from sfsample.core.arch import AARCH64, AARCH64_BE, AMD64, S390X
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import StopReason
from sfsample.formats.dwarf.eh_frame import EhFrame
from sfsample.formats.sframe import ABIS, SFrameTable
from sfsample.unwind.row import UnwindRow, apply_row
from sfsample.unwind.steppers.cfi import to_row as row_of_cfi
from sfsample.unwind.steppers.sframe import to_row
from tests.builders import sframe_builder as b
from tests.builders.eh_frame_builder import (
    REMEMBER_STATE,
    RESTORE_STATE,
    EhFrameBuilder,
    advance_loc,
    def_cfa,
    def_cfa_offset,
    offset,
)
from tests.builders.sframe_builder import Function, control, flex, row, section

START, ADDRESS, STACK = 0x1000, 0x2000, 0x7000_0000
CALLER, CALLERS_FP = 0x40_1234, STACK + 0x800
SIGNED = 0x00AB_0000_0040_1234  # CALLER with an authentication code above bit 47
X29, X30, XSP, XPC = 29, 30, 31, 32
R11, R14, R15, RPC, F0, F2 = 11, 14, 15, 65, 16, 17
AARCH64_BOTH = pytest.mark.parametrize("abi", [b.AARCH64_LE, b.AARCH64_BE])


def memory_of(abi: int, words: dict[int, int]) -> BytesMemory:
    """Return a stack of 0x1000 bytes with `words` by offset from STACK."""
    order = ABIS[abi].arch.byteorder
    data = bytearray(0x1000)
    for at, value in words.items():
        data[at : at + 8] = value.to_bytes(8, order)
    return BytesMemory(STACK, bytes(data), order)


def unwind_row(fre: b.Row, abi: int, version: int = 3, *, flexible: bool = False, flags=None) -> UnwindRow:
    data = section(
        version, [Function(START, 0x20, [fre], flexible=flexible)], address=ADDRESS, abi=abi, flags=flags
    )
    table = SFrameTable(data, ADDRESS)
    found = table.row_at(START)
    assert found is not None
    return to_row(found, table)


def step(fre: b.Row, abi: int, registers: dict[int, int], words: dict[int, int], version: int = 3, **options):
    """Return (CFA - STACK, the caller's registers), or why the walk stops."""
    arch = ABIS[abi].arch
    result = apply_row(unwind_row(fre, abi, version, **options), registers, memory_of(abi, words), arch)
    return result if isinstance(result, StopReason) else (result.cfa - STACK, result.registers)


# -- AArch64

A64 = {XPC: START, XSP: STACK + 0x100, X29: STACK + 0x140, X30: CALLER}


@AARCH64_BOTH
@pytest.mark.parametrize("version", [1, 2, 3])
def test_aarch64_leaf_returns_to_x30(abi, version):
    cfa, caller = step(row(0, 0), abi, A64, {}, version)

    assert cfa == 0x100
    assert caller == {XSP: STACK + 0x100, X29: A64[X29], XPC: CALLER}


@AARCH64_BOTH
def test_aarch64_row_may_save_only_the_return_address(abi):
    cfa, caller = step(row(0, 32, -24), abi, A64, {0x108: CALLER})

    assert cfa == 0x120
    assert caller == {XSP: STACK + 0x120, X29: A64[X29], XPC: CALLER}


@AARCH64_BOTH
@pytest.mark.parametrize(("base", "cfa"), [("sp", 0x120), ("fp", 0x160)])
def test_aarch64_row_saves_return_address_and_frame_pointer(abi, base, cfa):
    found, caller = step(row(0, 32, -24, -32, base=base), abi, A64, {cfa - 24: CALLER, cfa - 32: CALLERS_FP})

    assert found == cfa
    assert caller == {XSP: STACK + cfa, X29: CALLERS_FP, XPC: CALLER}


@AARCH64_BOTH
def test_aarch64_signed_return_addresses_are_stripped(abi):
    """The return address is on the stack, or still in x30 between `paciasp` and the push."""
    _, caller = step(row(0, 32, -24, -32, mangled=True), abi, A64, {0x108: SIGNED, 0x100: CALLERS_FP})
    assert caller[XPC] == CALLER
    _, caller = step(row(0, 0, mangled=True), abi, {**A64, X30: SIGNED}, {})
    assert caller[XPC] == CALLER


@AARCH64_BOTH
def test_aarch64_rows_without_the_mark_are_not_stripped(abi):
    _, caller = step(row(0, 32, -24), abi, A64, {0x108: SIGNED})

    assert caller[XPC] == SIGNED


def test_stripping_an_unsigned_user_address_changes_nothing():
    for arch in (AARCH64, AARCH64_BE):
        assert CALLER & arch.ra_mask == CALLER
        assert 0xFFFF_FFFF_FFFF & arch.ra_mask == 0xFFFF_FFFF_FFFF


def test_aarch64_mask_of_a_process_replaces_the_default():
    """With 39-bit addresses NT_ARM_PAC_MASK is 0x007fff8000000000."""
    arch = AARCH64._replace(ra_mask=~0x007F_FF80_0000_0000)
    row_ = UnwindRow(Rule(XSP, 0, deref=False), Rule(X30, 0, deref=False), mangled=True)
    signed = CALLER | 0x0012_3480_0000_0000
    found = apply_row(row_, {**A64, X30: signed}, memory_of(b.AARCH64_LE, {}), arch)

    assert not isinstance(found, StopReason)
    assert found.registers[XPC] == CALLER


def test_mangled_bit_is_ignored_on_other_machines():
    high = 0xFFFF_8000_0040_1234
    amd64 = {AMD64.pc: START, AMD64.sp: STACK + 0x100}
    assert step(row(0, 8, mangled=True), b.AMD64, amd64, {0x100: high})[1][AMD64.pc] == high
    s390x = {RPC: START, R15: STACK + 0x100, R14: high}
    assert step(row(0, 0, mangled=True), b.S390X, s390x, {})[1][RPC] == high
    assert AMD64.ra_mask == S390X.ra_mask == (1 << 64) - 1


@AARCH64_BOTH
def test_aarch64_leaf_row_of_a_caller_needs_an_unknown_register(abi):
    """SFrame recovers only pc, sp and fp, so x30 of a caller is unknown."""
    _, caller = step(row(0, 32, -24, -32), abi, A64, {0x108: CALLER, 0x100: CALLERS_FP})

    assert step(row(0, 0), abi, caller, {}) is StopReason.REGISTER_UNKNOWN


@AARCH64_BOTH
def test_aarch64_words_have_2_or_4_bytes(abi):
    cfa, caller = step(row(0, 0x400, -0x300, -0x308), abi, A64, {0x200: CALLER, 0x1F8: CALLERS_FP})
    assert (cfa, caller[XPC], caller[X29]) == (0x500, CALLER, CALLERS_FP)
    cfa, caller = step(row(0, 70000, -69400), abi, A64, {0x100 + 600: CALLER})
    assert (cfa, caller[XPC]) == (0x100 + 70000, CALLER)


@AARCH64_BOTH
def test_aarch64_row_without_words_is_outermost(abi):
    assert unwind_row(row(0), abi).ra is None


# -- s390x

S390 = {RPC: START, R15: STACK + 0x100, R11: STACK + 0x140, R14: CALLER, F0: 0x40_4444, F2: CALLERS_FP}
ERRATA_1 = {"version": 2, "flags": b.SORTED | b.PCREL}


@pytest.mark.parametrize("version", [2, 3])
def test_s390x_leaf_returns_to_r14(version):
    """The word is 0: the CFA is 160 above sp, and the caller's sp is the CFA - 160."""
    cfa, caller = step(row(0, 0), b.S390X, S390, {}, version)

    assert cfa == 0x1A0
    assert caller == {R15: STACK + 0x100, R11: S390[R11], RPC: CALLER}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("base", "cfa"), [("sp", 0x248), ("fp", 0x288)])
def test_s390x_only_cfa_offsets_are_scaled(version, base, cfa):
    """The word 21 is 21 * 8 + 160 = 328."""
    saved = {cfa - 48: CALLER, cfa - 72: CALLERS_FP}
    found, caller = step(row(0, 21, -48, -72, base=base), b.S390X, S390, saved, version)

    assert found == cfa
    assert caller == {R15: STACK + cfa - 160, R11: CALLERS_FP, RPC: CALLER}


@pytest.mark.parametrize("version", [2, 3])
def test_s390x_row_may_save_only_the_frame_pointer(version):
    """An RA word of 0 is a placeholder: the return address is still in r14."""
    _, caller = step(row(0, 21, 0, -72), b.S390X, S390, {0x248 - 72: CALLERS_FP}, version)

    assert caller == {R15: STACK + 0x1A8, R11: CALLERS_FP, RPC: CALLER}


def test_s390x_row_may_save_only_the_return_address():
    _, caller = step(row(0, 21, -48), b.S390X, S390, {0x248 - 48: CALLER})

    assert caller == {R15: STACK + 0x1A8, R11: S390[R11], RPC: CALLER}


def test_s390x_words_before_v3_name_registers():
    """0x21 is register 16 (f0), 0x23 is 17 (f2): a leaf that keeps them in floating-point registers."""
    _, caller = step(row(0, 0, 0x21, 0x23), b.S390X, S390, {}, **ERRATA_1)

    assert caller == {R15: STACK + 0x100, R11: CALLERS_FP, RPC: 0x40_4444}


def test_s390x_flexible_rules_of_v3_name_registers():
    """The same leaf, as 2.47.50 writes it: `79 00 81 00 89 00`."""
    words = control(R15), 0, control(F0) - 256, 0, control(F2) - 256, 0
    _, caller = step(flex(0, *words), b.S390X, S390, {}, flexible=True)

    assert caller == {R15: STACK + 0x100, R11: CALLERS_FP, RPC: 0x40_4444}


def test_s390x_flexible_cfa_on_another_register_is_scaled():
    cfa, caller = step(flex(0, control(1), 2), b.S390X, {**S390, 1: STACK + 0x300}, {}, flexible=True)

    assert cfa == 0x300 + 16 + 160
    assert caller[RPC] == CALLER


def test_s390x_flexible_rules_name_stack_slots():
    words = control(R15), 0, control(None, deref=True), -48, control(R11, deref=True), 8
    saved = {0x1A0 - 48: CALLER, 0x148: CALLERS_FP}
    _, caller = step(flex(0, *words), b.S390X, S390, saved, flexible=True)

    assert caller == {R15: STACK + 0x100, R11: CALLERS_FP, RPC: CALLER}


@pytest.mark.parametrize(
    ("fre", "options"),
    [
        (row(0, 0), {}),  # r14
        (row(0, 0, 0x21), ERRATA_1),  # f0
        (flex(0, control(R15), 0, control(F0) - 256, 0), {"flexible": True}),
        (flex(0, control(1), 0), {"flexible": True}),
    ],
)
def test_s390x_register_rule_of_a_caller_needs_an_unknown_register(fre, options):
    _, caller = step(row(0, 21, -48, -72), b.S390X, S390, {0x248 - 48: CALLER, 0x248 - 72: CALLERS_FP})

    assert step(fre, b.S390X, caller, {}, **options) is StopReason.REGISTER_UNKNOWN


def test_s390x_unknown_register_of_the_fp_rule_loses_only_the_frame_pointer():
    known = {number: value for number, value in S390.items() if number != F2}
    _, caller = step(row(0, 0, 0x21, 0x23), b.S390X, known, {}, **ERRATA_1)

    assert caller == {R15: STACK + 0x100, RPC: 0x40_4444}


def test_s390x_large_frame_is_scaled():
    """`43 ... 00 00 c3 64`: 50020 * 8 + 160."""
    fre = unwind_row(row(0, 50020, -48), b.S390X)

    assert fre.cfa == Rule(R15, 400320, deref=False)
    assert fre.ra == Rule(CFA, -48, deref=True)


# -- AMD64 rules by register (V3)

AMD = {16: START, 7: STACK + 0x100, 6: STACK + 0x140, 0: CALLER, 10: STACK + 0x200}


@pytest.mark.parametrize(
    ("words", "saved", "expected"),
    [
        ((control(7), 8, control(0), 0), {}, {7: STACK + 0x108, 6: AMD[6], 16: CALLER}),
        ((control(10), 0, 0, control(6, deref=True), 0), {0x1F8: CALLER, 0x140: CALLERS_FP},
         {7: STACK + 0x200, 6: CALLERS_FP, 16: CALLER}),
        ((control(6, deref=True), -8), {0x138: STACK + 0x300, 0x2F8: CALLER},
         {7: STACK + 0x300, 6: AMD[6], 16: CALLER}),
        ((control(7), 8, control(None, deref=True), -24), {0x108 - 24: CALLER},
         {7: STACK + 0x108, 6: AMD[6], 16: CALLER}),
        ((control(7), 8, 0, control(0), 0), {0x100: 0x40_9999}, {7: STACK + 0x108, 6: CALLER, 16: 0x40_9999}),
    ],
    ids=["RA in rax", "CFA on r10", "CFA at *(rbp-8)", "RA in an unusual slot", "FP in rax"],
)  # fmt: skip
def test_amd64_flexible_row_recovers_the_caller(words, saved, expected):
    assert step(flex(0, *words), b.AMD64, AMD, saved, flexible=True)[1] == expected


@pytest.mark.parametrize("words", [(control(10), 0), (control(7), 8, control(0), 0)])
def test_amd64_register_rule_of_a_caller_needs_an_unknown_register(words):
    _, caller = step(row(0, 8), b.AMD64, AMD, {0x100: CALLER})

    assert step(flex(0, *words), b.AMD64, caller, {}, flexible=True) is StopReason.REGISTER_UNKNOWN


def test_amd64_frame_pointer_rule_holds_in_a_caller():
    _, caller = step(row(0, 8), b.AMD64, AMD, {0x100: CALLER})
    words = control(6, deref=True), -8
    saved = {0x138: STACK + 0x300, 0x2F8: CALLER}

    assert step(flex(0, *words), b.AMD64, caller, saved, flexible=True)[1][16] == CALLER


# -- the same from .eh_frame

NEGATE_RA_STATE, NEGATE_RA_STATE_WITH_PC = b"\x2d", b"\x2c"


def cfi_rows(program: bytes, byteorder: str = "little", *, start: bytes = b"") -> list:
    built = EhFrameBuilder(ADDRESS, byteorder)
    cie = built.cie(def_cfa(XSP, 0) + start, ra_register=X30)
    built.fde(cie, START, 0x40, program)
    made = EhFrame(built.terminated(), ADDRESS, byteorder)
    [fde] = made.fdes()
    return [row_ for _, row_ in made.rows(fde)]


PACIASP = (
    advance_loc(4) + NEGATE_RA_STATE
    + advance_loc(4) + def_cfa_offset(32) + offset(X29, 4) + offset(X30, 3)
    + advance_loc(4) + REMEMBER_STATE + def_cfa_offset(0)
    + advance_loc(4) + NEGATE_RA_STATE
    + advance_loc(4) + RESTORE_STATE
)  # fmt: skip


def test_cfi_states_where_the_return_address_is_signed():
    """`paciasp` runs after 4 bytes and `autiasp` after 16; code after a return has the state before it."""
    assert [r.ra_signed for r in cfi_rows(PACIASP)] == [False, True, True, True, False, True]


def test_cfi_negate_ra_state_with_pc_is_understood():
    assert [r.ra_signed for r in cfi_rows(advance_loc(4) + NEGATE_RA_STATE_WITH_PC)] == [False, True]


def test_cie_may_begin_with_a_signed_return_address():
    assert [r.ra_signed for r in cfi_rows(advance_loc(4) + NEGATE_RA_STATE, start=NEGATE_RA_STATE)] == [
        True,
        False,
    ]


@AARCH64_BOTH
def test_cfi_and_sframe_recover_the_same_caller(abi):
    arch = ABIS[abi].arch
    memory = memory_of(abi, {0x108: SIGNED, 0x100: CALLERS_FP})
    rows = cfi_rows(PACIASP, arch.byteorder)
    pushed = row_of_cfi(rows[2], arch)
    assert pushed.mangled
    assert not row_of_cfi(rows[0], arch).mangled
    by_cfi = apply_row(pushed, A64, memory, arch)
    by_sframe = apply_row(unwind_row(row(0, 32, -24, -32, mangled=True), abi), A64, memory, arch)

    assert by_cfi == by_sframe
    assert by_cfi.registers == {XSP: STACK + 0x120, X29: CALLERS_FP, XPC: CALLER}


def test_real_signed_function_states_where_the_return_address_is_signed():
    """gas 2.47.50, `-mbranch-protection=pac-ret+b-key`: attribute `0500 20 00 00`, fact sheet 5.3."""
    fres = bytes.fromhex("0500200000000300048300088710f8f01883001c0300")
    index = pack("<qII", START - ADDRESS - 28, 0x20, 0)
    header = pack("<HBBBbbBIIIII", 0xDEE2, 3, 5, b.AARCH64_LE, 0, 0, 0, 1, 5, len(fres), 0, 16)
    table = SFrameTable(header + index + fres, ADDRESS)
    marks = {at: to_row(table.row_at(START + at), table).mangled for at in (0, 4, 8, 0x18, 0x1C)}

    assert marks == {0: False, 4: True, 8: True, 0x18: True, 0x1C: False}
    framed = to_row(table.row_at(START + 8), table)
    words = {0x108: SIGNED, 0x100: CALLERS_FP}
    found = apply_row(framed, {**A64, XSP: STACK + 0x100}, memory_of(b.AARCH64_LE, words), AARCH64)
    assert (found.cfa, found.registers[XPC], found.registers[X29]) == (STACK + 0x110, CALLER, CALLERS_FP)
