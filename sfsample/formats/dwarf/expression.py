"""Evaluates DWARF expressions in call frame information.  The result is a number, or None: unknown.

A value is unknown if a register is unknown, memory cannot be read, the expression's stack is too short, or an
operation is not allowed in CFI (DWARF 5 section 6.4.2).  Every value is a 64-bit word.  Only abs, div, shra
and the comparisons treat words as signed (section 2.5.1.4, "generic type").

Invariant: `evaluate` never raises and always ends (tests/properties/test_eh_frame_properties.py).
Source: DWARF 5 section 2.5.1.
"""

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from sfsample.core.arch import ByteOrder
from sfsample.core.memory import Memory
from sfsample.errors import FormatError
from sfsample.formats.dwarf.reader import DwarfReader

_MAX_OPERATIONS = 1000  # operations of one evaluation; the expression for a PLT has 11
_MAX_STACK_DEPTH = 64  # values
_T = TypeVar("_T")
_WORD = (1 << 64) - 1
_SIGN = 1 << 63

_CONSTANTS = {  # opcode -> bytes, signed
    0x03: (8, False),  # DW_OP_addr
    0x08: (1, False), 0x09: (1, True), 0x0A: (2, False), 0x0B: (2, True),  # DW_OP_const1u, 1s, 2u, 2s
    0x0C: (4, False), 0x0D: (4, True), 0x0E: (8, False), 0x0F: (8, True),  # DW_OP_const4u, 4s, 8u, 8s
}  # fmt: skip


def _signed(value: int) -> int:
    return value - ((value & _SIGN) << 1)


def _div(a: int, b: int) -> int:
    """Divide signed values, rounding towards zero as C does."""
    quotient = abs(_signed(a)) // abs(_signed(b))
    return quotient if (a ^ b) & _SIGN == 0 else -quotient


_BINARY: dict[int, Callable[[int, int], int]] = {  # operands: second value of the stack, top of the stack
    0x1A: operator.and_,  # DW_OP_and
    0x1B: _div,  # DW_OP_div
    0x1C: operator.sub,  # DW_OP_minus
    0x1D: operator.mod,  # DW_OP_mod
    0x1E: operator.mul,  # DW_OP_mul
    0x21: operator.or_,  # DW_OP_or
    0x22: operator.add,  # DW_OP_plus
    0x24: lambda a, b: a << b if b < 64 else 0,  # DW_OP_shl
    0x25: lambda a, b: a >> b if b < 64 else 0,  # DW_OP_shr
    0x26: lambda a, b: _signed(a) >> min(b, 63),  # DW_OP_shra
    0x27: operator.xor,  # DW_OP_xor
    0x29: lambda a, b: a == b,  # DW_OP_eq
    0x2A: lambda a, b: _signed(a) >= _signed(b),  # DW_OP_ge
    0x2B: lambda a, b: _signed(a) > _signed(b),  # DW_OP_gt
    0x2C: lambda a, b: _signed(a) <= _signed(b),  # DW_OP_le
    0x2D: lambda a, b: _signed(a) < _signed(b),  # DW_OP_lt
    0x2E: lambda a, b: a != b,  # DW_OP_ne
}

_UNARY: dict[int, Callable[[int], int]] = {
    0x19: lambda a: abs(_signed(a)),  # DW_OP_abs
    0x1F: operator.neg,  # DW_OP_neg
    0x20: operator.invert,  # DW_OP_not
}


class _NoValueError(Exception):
    """Raised if the value is unknown.  `evaluate` catches this error."""


class _Evaluation(NamedTuple):
    code: DwarfReader
    registers: Mapping[int, int]
    memory: Memory
    initial: int | None
    stack: list[int]

    def run(self) -> int:
        """Execute the expression, and return the value on top of the stack at the end."""
        pos, end = 0, len(self.code.data)
        for _ in range(_MAX_OPERATIONS + 1):
            if pos == end:
                return self.stack[-1]
            pos = self._step(self.code.data[pos], pos + 1)
            if len(self.stack) > _MAX_STACK_DEPTH or not 0 <= pos <= end:
                raise _NoValueError
        raise _NoValueError

    def _step(self, opcode: int, pos: int) -> int:
        if 0x30 <= opcode <= 0x4F:  # DW_OP_lit0..31
            self.stack.append(opcode - 0x30)
        elif 0x70 <= opcode <= 0x8F:  # DW_OP_breg0..31
            pos = self._register_plus(opcode - 0x70, pos)
        elif opcode in _BINARY:
            top = self.stack.pop()
            self.stack[-1] = _BINARY[opcode](self.stack[-1], top) & _WORD
        elif opcode in _UNARY:
            self.stack[-1] = _UNARY[opcode](self.stack[-1]) & _WORD
        elif opcode in _CONSTANTS:
            size, signed = _CONSTANTS[opcode]
            self.stack.append(self.code.integer(pos, size, signed) & _WORD)
            pos += size
        else:
            pos = self._other(opcode, pos)
        return pos

    def _register_plus(self, register: int, pos: int) -> int:
        offset, pos = self.code.sleb128(pos)
        self.stack.append((self.registers[register] + offset) & _WORD)
        return pos

    def _other(self, opcode: int, pos: int) -> int:
        stack, code = self.stack, self.code
        match opcode:
            case 0x06:  # DW_OP_deref
                stack.append(self._required(self.memory.word(stack.pop())))
            case 0x10:  # DW_OP_constu
                value, pos = code.uleb128(pos)
                stack.append(value)
            case 0x11:  # DW_OP_consts
                value, pos = code.sleb128(pos)
                stack.append(value & _WORD)
            case 0x12:  # DW_OP_dup
                stack.append(stack[-1])
            case 0x13:  # DW_OP_drop
                stack.pop()
            case 0x14:  # DW_OP_over
                stack.append(stack[-2])
            case 0x15:  # DW_OP_pick
                stack.append(stack[-1 - code.u8(pos)])
                pos += 1
            case 0x16:  # DW_OP_swap
                stack[-2], stack[-1] = stack[-1], stack[-2]
            case 0x17:  # DW_OP_rot moves the top value below the next two values
                stack[-3], stack[-2], stack[-1] = stack[-1], stack[-3], stack[-2]
            case 0x23:  # DW_OP_plus_uconst
                value, pos = code.uleb128(pos)
                stack[-1] = (stack[-1] + value) & _WORD
            case 0x28:  # DW_OP_bra
                target = pos + 2 + code.integer(pos, 2, signed=True)
                pos = target if stack.pop() else pos + 2
            case 0x2F:  # DW_OP_skip
                pos += 2 + code.integer(pos, 2, signed=True)
            case 0x92:  # DW_OP_bregx
                register, pos = code.uleb128(pos)
                pos = self._register_plus(register, pos)
            case 0x94:  # DW_OP_deref_size
                address, size = stack.pop(), code.u8(pos)
                data = self.memory.read(address, size) if 1 <= size <= 8 else None
                stack.append(int.from_bytes(self._required(data), code.byteorder))
                pos += 1
            case 0x96:  # DW_OP_nop
                pass
            case 0x9C:  # DW_OP_call_frame_cfa: the CFA, which is the initial value for a register's rule
                stack.append(self._required(self.initial) & _WORD)
            case _:
                raise _NoValueError
        return pos

    def _required(self, value: _T | None) -> _T:
        if value is None:
            raise _NoValueError
        return value


def evaluate(
    expression: bytes, registers: Mapping[int, int], memory: Memory, byteorder: ByteOrder, initial: int | None
) -> int | None:
    """Return the value of `expression`; None: the value is unknown.

    `initial` is the value on the stack at the start.  For the rule of a register, this is the CFA.  For the
    rule of the CFA, `initial` is None, and the stack is empty.
    """
    code = DwarfReader("DWARF expression", expression, 0, byteorder)
    stack = [] if initial is None else [initial & _WORD]
    try:
        return _Evaluation(code, registers, memory, initial, stack).run()
    except (_NoValueError, FormatError, LookupError, ZeroDivisionError):
        # LookupError: a register is unknown, or the stack is too short
        return None
