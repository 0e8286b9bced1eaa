"""Computes rows: executes the call frame instructions of a CIE and of an FDE.

An unknown opcode raises `FormatError`, because the size of its operands is unknown.

Source: DWARF 5 section 6.4.2; extensions of GNU, MIPS and AArch64 are named where they are decoded.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sfsample.core.rule import CFA, Rule
from sfsample.formats.dwarf.reader import DwarfReader

_MAX_RULES = 256  # rules of one row; a signal frame may have a rule for all 130 registers of AMD64
_NO_REGISTER = -1  # register number of a CFA that is an expression
_MAX_STATES = 64  # remembered states; compilers remember one state
# DW_CFA_advance_loc1, _loc2, _loc4, DW_CFA_MIPS_advance_loc8: opcode -> bytes of the operand
_ADVANCES = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}

# Key: DWARF number of a register.  Value: rule for the caller's register (DWARF 5 section 6.4.1); None: the
# register cannot be recovered ("undefined").  A register that no instruction mentions is absent.
Rules = dict[int, Rule | None]


class CfiRow(NamedTuple):
    """The rules for the caller, valid from one address of a function up to the address of the next row."""

    cfa: Rule
    rules: Rules
    ra_register: int  # column of the return address
    signal: bool  # augmentation 'S': the caller was interrupted, so its pc is exact
    ra_signed: bool = False  # AArch64: the return address has an authentication code here


class Cie(NamedTuple):
    """A common information entry: the fields that several FDEs share."""

    offset: int
    code_align: int  # code_alignment_factor
    data_align: int  # data_alignment_factor
    ra_register: int  # return_address_register
    encoding: int  # augmentation 'R': DW_EH_PE of an FDE's addresses
    sized: bool  # augmentation 'z': each FDE has the length of its augmentation data, then the data
    signal: bool  # augmentation 'S'
    cfa: Rule | None  # CFA after the initial instructions; None: the FDE must define the CFA
    rules: Rules  # rules after the initial instructions; FDEs share this dict, which never changes
    ra_signed: bool = False  # value after the initial instructions


class CfiMachine:
    """The interpreter, with the current row and the remembered rows."""

    __slots__ = ("_states", "cfa", "cie", "ra_signed", "rules")

    def __init__(self, cie: Cie) -> None:
        self.cie = cie
        self.rules = dict(cie.rules)
        self.cfa = cie.cfa
        self.ra_signed = cie.ra_signed
        self._states: list[tuple[Rule | None, Rules, bool]] = []

    def row(self, program: DwarfReader) -> CfiRow:
        """Return the current row.  Raises FormatError if the row has no CFA, or too many rules."""
        if self.cfa is None:
            raise program.damaged(0, "no instruction defines the CFA")
        cie, rules = self.cie, self._copy_rules(program)
        return CfiRow(self.cfa, rules, cie.ra_register, cie.signal, self.ra_signed)

    def run(self, program: DwarfReader, location: int) -> Iterator[int]:
        """Execute the program, and yield each new location; the current row is valid below that location."""
        cie, pos, end = self.cie, 0, len(program.data)
        while pos < end:
            opcode = program.data[pos]
            pos += 1
            operand = opcode & 0x3F
            match opcode >> 6:  # the most frequent opcodes come first; their operand has six bits
                case 1:  # DW_CFA_advance_loc
                    location += operand * cie.code_align
                    yield location
                case 2:  # DW_CFA_offset
                    value, pos = program.uleb128(pos)
                    self.rules[operand] = Rule(CFA, value * cie.data_align, deref=True)
                case 3:  # DW_CFA_restore
                    self._restore(operand)
                case _ if opcode in _ADVANCES:
                    location += program.integer(pos, _ADVANCES[opcode]) * cie.code_align
                    pos += _ADVANCES[opcode]
                    yield location
                case _ if opcode == 0x01:  # DW_CFA_set_loc
                    target, after = program.pointer(pos, cie.encoding)
                    if target < location:
                        raise program.damaged(pos, "DW_CFA_set_loc goes back")
                    location, pos = target, after
                    yield location
                case _ if opcode:  # 0: DW_CFA_nop
                    pos = self._execute(opcode, program, pos)

    def _execute(self, opcode: int, program: DwarfReader, pos: int) -> int:
        """Execute an instruction that keeps the location; return the position of the next instruction."""
        match opcode:
            case 0x0A:  # DW_CFA_remember_state
                if len(self._states) >= _MAX_STATES:
                    raise program.damaged(pos, "too many remembered states")
                self._states.append((self.cfa, self._copy_rules(program), self.ra_signed))
            case 0x0B:  # DW_CFA_restore_state, for the CFA, rules and signing state
                if not self._states:
                    raise program.damaged(pos, "DW_CFA_restore_state without a remembered state")
                self.cfa, self.rules, self.ra_signed = self._states.pop()
            case 0x2C | 0x2D:
                # DW_CFA_AARCH64_negate_ra_state(_with_pc): signing of the return address begins or ends here.
                # On SPARC, which sfsample does not unwind, opcode 0x2d is DW_CFA_GNU_window_save.
                self.ra_signed = not self.ra_signed
            case 0x2E:  # DW_CFA_GNU_args_size, for exception handling only
                _, pos = program.uleb128(pos)
            case 0x0C | 0x0D | 0x0E | 0x0F | 0x12 | 0x13:
                pos = self._define_cfa(opcode, program, pos)
            case _:
                register, end = program.uleb128(pos)
                pos = self._define_rule(opcode, register, program, end)
        return pos

    def _define_cfa(self, opcode: int, program: DwarfReader, pos: int) -> int:
        """Execute an instruction of DWARF 5 section 6.4.2.2; return the position of the next instruction.

        As in libgcc and readelf, a new offset keeps the expression; a new register removes the expression.
        """
        register, offset, _, expression = self.cfa or (_NO_REGISTER, 0, False, b"")
        if opcode in (0x0C, 0x0D, 0x12):  # DW_CFA_def_cfa, _register, _sf
            register, pos = program.uleb128(pos)
            expression = b""
        if opcode in (0x0C, 0x0E):  # DW_CFA_def_cfa, _offset
            offset, pos = program.uleb128(pos)
        elif opcode in (0x12, 0x13):  # DW_CFA_def_cfa_sf, _offset_sf
            offset, pos = self._factored(program, pos)
        elif opcode == 0x0F:  # DW_CFA_def_cfa_expression
            expression, pos = self._expression(program, pos)
        if register == _NO_REGISTER and not expression:
            raise program.damaged(pos, "an offset without a CFA register")
        self.cfa = Rule(register, offset, deref=False, expression=expression)
        return pos

    def _define_rule(self, opcode: int, register: int, program: DwarfReader, pos: int) -> int:
        """Execute an instruction of DWARF 5 section 6.4.2.3, whose first operand is `register`."""
        rule: Rule | None
        match opcode:
            case 0x05 | 0x14:  # DW_CFA_offset_extended, DW_CFA_val_offset
                value, pos = program.uleb128(pos)
                rule = Rule(CFA, value * self.cie.data_align, deref=opcode == 0x05)
            case 0x06:  # DW_CFA_restore_extended
                self._restore(register)
                return pos
            case 0x07:  # DW_CFA_undefined
                rule = None
            case 0x08:  # DW_CFA_same_value
                rule = Rule(register, 0, deref=False)
            case 0x09:  # DW_CFA_register
                value, pos = program.uleb128(pos)
                rule = Rule(value, 0, deref=False)
            case 0x11 | 0x15:  # DW_CFA_offset_extended_sf, DW_CFA_val_offset_sf
                value, pos = self._factored(program, pos)
                rule = Rule(CFA, value, deref=opcode == 0x11)
            case 0x10 | 0x16:  # DW_CFA_expression, DW_CFA_val_expression
                expression, pos = self._expression(program, pos)
                rule = Rule(CFA, 0, deref=opcode == 0x10, expression=expression)
            case 0x2F:  # DW_CFA_GNU_negative_offset_extended
                value, pos = program.uleb128(pos)
                rule = Rule(CFA, -value * self.cie.data_align, deref=True)
            case _:
                raise program.damaged(pos, f"unknown instruction {opcode:#04x}")
        self.rules[register] = rule
        return pos

    def _factored(self, program: DwarfReader, pos: int) -> tuple[int, int]:
        value, end = program.sleb128(pos)
        return value * self.cie.data_align, end

    def _expression(self, program: DwarfReader, pos: int) -> tuple[bytes, int]:
        size, pos = program.uleb128(pos)
        if size == 0:
            raise program.damaged(pos, "empty expression")
        return program.block(pos, size)

    def _restore(self, register: int) -> None:
        if register in self.cie.rules:
            self.rules[register] = self.cie.rules[register]
        else:
            self.rules.pop(register, None)

    def _copy_rules(self, program: DwarfReader) -> Rules:
        if len(self.rules) > _MAX_RULES:
            raise program.damaged(0, f"rules for {len(self.rules)} registers")
        return dict(self.rules)
