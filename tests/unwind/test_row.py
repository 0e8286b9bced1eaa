"""`apply_row` executes each kind of rule; a register without a value stays absent."""

import pytest

from sfsample.core.arch import AMD64, S390X
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import StopReason
from sfsample.unwind.row import Caller, UnwindRow, apply_row, with_popped_words

RBX, FP, SP, PC = 3, 6, 7, 16
BASE = 0x7000
MEMORY = BytesMemory(
    BASE, b"".join((0xAB00 + i).to_bytes(8, "little") for i in range(8))
)  # 0xab00 ... 0xab07
REGISTERS = {PC: 0x1000, SP: BASE, FP: BASE + 0x20}
CFA_IS_SP_16, RA_SLOT = Rule(SP, 16, deref=False), Rule(CFA, -8, deref=True)

BREG_SP_16, BREG_RBX_0, LIT8_PLUS, MINUS_8 = b"\x77\x10", b"\x73\x00", b"\x38\x22", b"\x38\x1c"


def apply(cfa=CFA_IS_SP_16, ra=RA_SLOT, *, registers=(), kept=(), state=REGISTERS):
    return apply_row(UnwindRow(cfa, ra, registers, kept), state, MEMORY, AMD64)


def test_apply_row_of_usual_frame():
    assert apply() == Caller(BASE + 16, {SP: BASE + 16, PC: 0xAB01})


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(FP, 0x18, deref=False), BASE + 0x38),
        (Rule(FP, -0x20, deref=True), 0xAB00),
        (Rule(SP, 0, deref=False, expression=BREG_SP_16), BASE + 16),
        (Rule(SP, 0, deref=True, expression=BREG_SP_16), 0xAB02),
    ],
)
def test_apply_row_computes_cfa(rule, expected):
    state = apply(rule, Rule(FP, 0, deref=False))

    assert state.cfa == expected
    assert state.registers[SP] == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(CFA, -16, deref=True), 0xAB00),
        (Rule(CFA, -16, deref=False), BASE),
        (Rule(RBX, 0, deref=False), 77),
        (Rule(FP, 8, deref=True), 0xAB05),
        (Rule(CFA, 0, deref=True, expression=MINUS_8), 0xAB01),  # the CFA is on the expression's stack
        (Rule(CFA, 0, deref=False, expression=LIT8_PLUS), BASE + 24),
    ],
)
def test_apply_row_computes_return_address_and_registers(rule, expected):
    caller = apply(ra=rule, registers=((12, rule),), state={**REGISTERS, RBX: 77})

    assert caller.registers[PC] == expected
    assert caller.registers[12] == expected


def test_register_without_rule_is_absent():
    state = {**REGISTERS, RBX: 1, 12: 2, 13: 3}

    assert apply(kept=(RBX, 14), state=state).registers == {SP: BASE + 16, PC: 0xAB01, RBX: 1}


def test_rules_read_registers_of_frame_not_of_caller():
    swapped = ((RBX, Rule(12, 0, deref=False)), (12, Rule(RBX, 0, deref=False)))
    caller = apply(registers=swapped, state={**REGISTERS, RBX: 1, 12: 2})

    assert (caller.registers[RBX], caller.registers[12]) == (2, 1)


def test_rule_for_sp_overrides_cfa():
    assert apply(registers=((SP, Rule(CFA, 32, deref=False)),)).registers[SP] == BASE + 48


def test_unrecoverable_register_is_absent_and_others_are_kept():
    beyond, unknown = Rule(CFA, 0x1000, deref=True), Rule(13, 0, deref=False)

    assert apply(registers=((RBX, beyond), (12, unknown))) == apply()


def test_addresses_wrap_at_64_bits():
    caller = apply(Rule(SP, -BASE - 8, deref=False), Rule(SP, 0, deref=True))

    assert caller.cfa == (1 << 64) - 8


def test_s390x_sp_is_below_cfa():
    row = UnwindRow(Rule(15, 160, deref=False), Rule(14, 0, deref=False))
    caller = apply_row(row, {15: 0x8000, 14: 0x1234, 65: 0x1000}, MEMORY, S390X)

    assert caller == Caller(0x80A0, {15: 0x8000, 65: 0x1234})


@pytest.mark.parametrize(
    ("cfa", "ra", "why"),
    [
        (Rule(RBX, 8, deref=False), RA_SLOT, StopReason.REGISTER_UNKNOWN),
        (CFA_IS_SP_16, Rule(RBX, 0, deref=False), StopReason.REGISTER_UNKNOWN),
        (Rule(SP, -8, deref=True), RA_SLOT, StopReason.BAD_MEMORY),
        (Rule(SP, 0x1000, deref=False), RA_SLOT, StopReason.BAD_MEMORY),
        (Rule(SP, 0, deref=False, expression=BREG_RBX_0), RA_SLOT, StopReason.REGISTER_UNKNOWN),
        (CFA_IS_SP_16, Rule(CFA, 0, deref=True, expression=BREG_RBX_0), StopReason.REGISTER_UNKNOWN),
        (Rule(SP, 0, deref=False, expression=b"\x06"), RA_SLOT, StopReason.BAD_MEMORY),  # deref of nothing
        (Rule(SP, 0, deref=False, expression=b"\x30\x06"), RA_SLOT, StopReason.BAD_MEMORY),  # deref of 0
    ],
)
def test_apply_row_returns_reason_of_failure(cfa, ra, why):
    assert apply(cfa, ra) is why


def test_last_word_of_copy_can_be_read():
    last = Rule(SP, 56, deref=True)
    assert apply(ra=last).registers[PC] == 0xAB07
    assert apply(ra=last._replace(offset=57)) is StopReason.BAD_MEMORY


@pytest.mark.parametrize(
    ("code_cfa", "kept", "rbx"),
    [
        (Rule(SP, 8, deref=False), (RBX, FP), 77),
        (Rule(SP, 8, deref=False), (FP,), None),  # the code may still change rbx: saved in the red zone
        (Rule(SP, 16, deref=False), (RBX, FP), None),  # table and code disagree about the frame
    ],
)
def test_popped_word_is_taken_from_register_that_code_keeps(code_cfa, kept, rbx):
    """At the return, the table says that rbx is saved at CFA-16, which lies below sp and outside the copy."""
    table_row = UnwindRow(Rule(SP, 8, deref=False), RA_SLOT, ((RBX, Rule(CFA, -16, deref=True)),), (FP,))
    code_row = UnwindRow(code_cfa, RA_SLOT, kept=kept, guess=True)
    registers = {**REGISTERS, RBX: 77}
    assert RBX not in apply_row(table_row, registers, MEMORY, AMD64).registers
    memory = with_popped_words(MEMORY, table_row, code_row, registers, AMD64)

    assert apply_row(table_row, registers, memory, AMD64).registers.get(RBX) == rbx
