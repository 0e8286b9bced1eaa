"""Each operation of a DWARF expression gives its value, and invalid expressions give None."""

import pytest

from sfsample.core.memory import BytesMemory
from sfsample.formats.dwarf.expression import evaluate
from tests.builders.eh_frame_builder import sleb, uleb

BASE = 0x7000
MEMORY = BytesMemory(BASE, bytes(range(0x80, 0x90)))
REGISTERS = {7: BASE, 16: 0x101B, 40: 5}
WORD = 1 << 64


def value(expression, initial=None, registers=REGISTERS, memory=MEMORY, byteorder="little"):
    return evaluate(bytes(expression), registers, memory, byteorder, initial)


def lit(number: int) -> bytes:
    return bytes([0x30 + number])


def consts(number: int) -> bytes:
    return b"\x11" + sleb(number)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lit(0), 0),
        (lit(31), 31),
        (b"\x03" + bytes(range(1, 9)), 0x0807060504030201),  # DW_OP_addr
        (b"\x08\xff", 0xFF),  # DW_OP_const1u
        (b"\x09\xff", WORD - 1),
        (b"\x0a\xfe\xff", 0xFFFE),
        (b"\x0b\xfe\xff", WORD - 2),
        (b"\x0c\xfe\xff\xff\xff", 0xFFFFFFFE),
        (b"\x0d\xfe\xff\xff\xff", WORD - 2),
        (b"\x0e\xfe" + b"\xff" * 7, WORD - 2),
        (b"\x0f\xfe" + b"\xff" * 7, WORD - 2),  # DW_OP_const8s
        (b"\x10" + uleb(300), 300),  # DW_OP_constu
        (consts(-300), WORD - 300),
        (b"\x10" + uleb(WORD - 1), WORD - 1),
        (consts(-(1 << 63)), 1 << 63),
    ],
)
def test_constant_operation_pushes_its_operand(expression, expected):
    assert value(expression) == expected


def test_constant_has_the_byte_order_of_the_target():
    assert value(b"\x0a\x12\x34", byteorder="big") == 0x1234


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (b"\x77" + sleb(8), BASE + 8),  # DW_OP_breg7
        (b"\x77" + sleb(-8), BASE - 8),
        (b"\x92" + uleb(40) + sleb(-6), WORD - 1),  # DW_OP_bregx
    ],
)
def test_register_operation_adds_its_offset(expression, expected):
    assert value(expression) == expected


def test_register_plus_offset_wraps_at_64_bits():
    assert value(b"\x77\x01", registers={7: WORD - 1}) == 0


@pytest.mark.parametrize(
    ("operation", "a", "b", "expected"),
    [
        (0x1A, 12, 10, 8),  # DW_OP_and
        (0x21, 12, 10, 14),  # DW_OP_or
        (0x27, 12, 10, 6),  # DW_OP_xor
        (0x22, -1, 2, 1),  # DW_OP_plus
        (0x1C, 1, 2, -1),  # DW_OP_minus
        (0x1E, -3, 5, -15),  # DW_OP_mul
        (0x1B, -7, 2, -3),  # DW_OP_div: towards zero
        (0x1B, 7, -2, -3),
        (0x1B, -7, -2, 3),
        (0x1B, -(1 << 63), -1, 1 << 63),
        (0x1D, 7, 4, 3),  # DW_OP_mod: unsigned
        (0x1D, -1, 16, 15),
        (0x24, 1, 63, 1 << 63),  # DW_OP_shl
        (0x24, 1, 64, 0),
        (0x24, 1, -1, 0),
        (0x25, -1, 60, 15),  # DW_OP_shr
        (0x25, -1, 64, 0),
        (0x26, -16, 2, -4),  # DW_OP_shra
        (0x26, -16, -1, -1),
        (0x26, 16, 64, 0),
        (0x29, 3, 3, 1),  # DW_OP_eq
        (0x2E, 3, 3, 0),  # DW_OP_ne
        (0x2A, -1, 1, 0),  # DW_OP_ge: signed
        (0x2A, 1, 1, 1),
        (0x2B, 1, 1, 0),  # DW_OP_gt
        (0x2C, -1, 1, 1),  # DW_OP_le
        (0x2D, 1, -1, 0),  # DW_OP_lt
    ],
)
def test_binary_operation_gives_its_result(operation, a, b, expected):
    assert value(consts(a) + consts(b) + bytes([operation])) == expected % WORD


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (consts(-5) + b"\x19", 5),  # DW_OP_abs
        (lit(5) + b"\x1f", WORD - 5),  # DW_OP_neg
        (lit(5) + b"\x20", WORD - 6),  # DW_OP_not
        (lit(5) + b"\x23" + uleb(300), 305),  # DW_OP_plus_uconst
        (lit(1) + lit(2) + b"\x12\x22", 4),  # DW_OP_dup
        (lit(1) + lit(2) + b"\x13", 1),  # DW_OP_drop
        (lit(1) + lit(2) + b"\x14", 1),  # DW_OP_over
        (lit(1) + lit(2) + lit(3) + b"\x15\x02", 1),  # DW_OP_pick
        (lit(5) + lit(2) + b"\x16\x1c", WORD - 3),  # DW_OP_swap
        (lit(1) + lit(2) + lit(3) + b"\x17", 2),  # DW_OP_rot: 1 2 3 -> 3 1 2
        (lit(1) + lit(2) + lit(3) + b"\x17\x13", 1),
        (lit(1) + lit(2) + lit(3) + b"\x17\x13\x13", 3),
        (lit(1) + b"\x96", 1),  # DW_OP_nop
    ],
)
def test_stack_operation_gives_its_result(expression, expected):
    assert value(expression) == expected


def test_deref_reads_a_word_or_the_stated_size():
    assert value(b"\x77\x08\x06") == 0x8F8E8D8C8B8A8988
    assert value(b"\x77\x01\x94\x02") == 0x8281
    assert value(b"\x77\x01\x94\x02", byteorder="big") == 0x8182


def test_branch_and_skip_continue_at_their_target():
    branch = b"\x28\x01\x00" + lit(7) + lit(9)  # over lit7 when the top is not zero

    assert value(lit(1) + lit(5) + branch) == 9
    assert value(lit(0) + branch + b"\x13") == 7
    assert value(lit(4) + b"\x2f\x01\x00" + lit(7)) == 4  # DW_OP_skip to the end


def test_loop_that_ends_has_a_value():
    count_down = lit(20) + lit(1) + b"\x1c" + b"\x12\x28\xfa\xff"  # lit20; lit1, minus, dup, bra -6

    assert value(count_down) == 0


def test_initial_value_is_on_the_stack():
    assert value(b"\x23\x08", initial=100) == 108
    assert value(b"", initial=100) == 100
    assert value(lit(1) + b"\x9c", initial=100) == 100  # DW_OP_call_frame_cfa
    assert value(b"", initial=-1) == WORD - 1


def test_plt_expression_of_linkers_gives_the_cfa():
    """CFA is rsp + 8, and 8 more behind the push, which is the 11th byte of a 16-byte entry."""
    plt = b"\x77\x08\x80\x00" + lit(15) + b"\x1a" + lit(11) + b"\x2a" + lit(3) + b"\x24\x22"

    assert value(plt, registers={7: BASE, 16: 0x101A}) == BASE + 8
    assert value(plt, registers={7: BASE, 16: 0x101B}) == BASE + 16


@pytest.mark.parametrize(
    "expression",
    [
        b"",
        b"\x76\x00",  # an unknown register
        b"\x92\x20\x00",
        b"\x77\x09\x06",  # a word that is partly outside the memory
        lit(0) + b"\x06",
        b"\x77\x00\x94\x00",  # no size, too great a size
        b"\x77\x00\x94\x09",
        b"\x1a",  # stack underflow, of every arity
        lit(1) + b"\x22",
        b"\x1f",
        b"\x12",
        b"\x13",
        lit(1) + b"\x13",
        lit(1) + b"\x14",
        lit(1) + b"\x15\x01",
        lit(1) + b"\x16",
        lit(1) + lit(2) + b"\x17",
        b"\x23\x01",
        b"\x28\x00\x00",
        lit(1) + lit(0) + b"\x1b",  # division by zero
        lit(1) + lit(0) + b"\x1d",
        b"\x0e\x01",  # operands cut off
        b"\x77",
        b"\x77\x80",
        b"\x10" + b"\x80" * 20,
        lit(1) + b"\x15",
        lit(1) + b"\x28\x01",
        lit(1) + b"\x2f\x01\x00",  # branches out of the expression
        lit(1) + b"\x2f\xf0\xff",
        lit(1) + b"\x2f\xfd\xff",  # endless loop
        lit(1) * 65,  # stack too deep
        b"\x12\x2f\xfc\xff",
        b"\x50",  # DW_OP_reg0 names a place, not a value
        b"\x91\x00",  # DW_OP_fbreg
        b"\x9c",  # DW_OP_call_frame_cfa in the CFA's own expression
        b"\x18",
        b"\x00",
        b"\xff",
    ],
)
def test_invalid_expression_has_no_value(expression):
    assert value(expression) is None


def test_stack_holds_64_values():
    assert value(lit(1) * 64) == 1


def test_expression_may_execute_1000_operations():
    assert value(lit(1) + b"\x96" * 999) == 1
    assert value(lit(1) + b"\x96" * 1000) is None
