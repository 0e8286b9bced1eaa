"""Call frame instructions: the program of a CIE and an FDE -> rows.

Law: an instruction means what DWARF 5 section 6.4.2 says; where a producer's extension is known (GNU, MIPS,
AArch64) it is named, and an opcode that is not known is a `FormatError`, never skipped.  A register that
no instruction mentions is absent from a row.  Work is bounded by the length of the program.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sfsample.formats.dwarf.reader import DwarfReader

# A row that needs more is not one: AMD64 has 130 numbered registers, a signal frame lists at most all.
_MAX_RULES = 256
_MAX_STATES = 64  # nested DW_CFA_remember_state; compilers use one


class CfiRule(NamedTuple):
    """How one register of the caller is recovered (DWARF 5 section 6.4.1)."""

    kind: Literal["offset", "val_offset", "register", "expression", "val_expression", "undefined", "same"]
    value: int = 0  # offset from the CFA in bytes, or a register number
    expression: bytes = b""


class CfaRule(NamedTuple):
    """The CFA: register + offset, or the expression when there is one."""

    register: int
    offset: int
    expression: bytes = b""


class CfiRow(NamedTuple):
    """What holds from one address of a function to the next row's."""

    cfa: CfaRule
    rules: dict[int, CfiRule]  # by DWARF register; one that is not mentioned is absent
    ra_register: int  # the column that stands for the return address
    signal: bool  # augmentation 'S': the caller was interrupted, its pc is exact
    ra_signed: bool = False  # AArch64: the return address carries an authentication code here


class Cie(NamedTuple):
    """A common information entry: what the FDEs of one kind share."""

    offset: int
    code_align: int  # code_alignment_factor
    data_align: int  # data_alignment_factor
    ra_register: int  # return_address_register
    encoding: int  # augmentation 'R': DW_EH_PE of an FDE's addresses
    address_size: int
    sized: bool  # augmentation 'z': FDEs have augmentation data, with its length before it
    signal: bool
    cfa: CfaRule | None  # after the initial instructions, which may leave it to the FDE
    rules: dict[int, CfiRule]  # same; shared by all its FDEs, so never changed
    ra_signed: bool = False  # same


_UNDEFINED = CfiRule("undefined")
_SAME = CfiRule("same")


class CfiMachine:
    """The registers of the interpreter: the row as it stands, and what it can go back to."""

    __slots__ = ("_states", "cfa", "cie", "ra_signed", "rules")

    def __init__(self, cie: Cie) -> None:
        self.cie = cie
        self.rules = dict(cie.rules)
        self.cfa = cie.cfa
        self.ra_signed = cie.ra_signed
        self._states: list[tuple[CfaRule | None, dict[int, CfiRule], bool]] = []

    def row(self, program: DwarfReader) -> CfiRow:
        """Return the row as it stands."""
        if self.cfa is None:
            raise program.damaged(0, "no instruction defines the CFA")
        rules = self._copy_rules(program)
        return CfiRow(self.cfa, rules, self.cie.ra_register, self.cie.signal, self.ra_signed)

    def run(self, program: DwarfReader, location: int) -> Iterator[int]:
        """Execute.  Before each advance yield where it leads: the row as it stands holds up to there.

        The opcodes with an operand in their low six bits make up most programs, so they come first.
        """
        cie, pos, end = self.cie, 0, len(program.data)
        while pos < end:
            opcode = program.data[pos]
            pos += 1
            operand = opcode & 0x3F
            match opcode >> 6:
                case 1:  # DW_CFA_advance_loc
                    location += operand * cie.code_align
                    yield location
                case 2:  # DW_CFA_offset
                    value, pos = program.uleb128(pos)
                    self.rules[operand] = CfiRule("offset", value * cie.data_align)
                case 3:  # DW_CFA_restore
                    self._restore(operand)
                case _ if opcode <= 0x04 or opcode == 0x1D:
                    target, pos = self._advance(opcode, program, pos, location)
                    if target is not None:
                        location = target
                        yield location
                case _:
                    pos = self._execute(opcode, program, pos)

    def _advance(self, opcode: int, program: DwarfReader, pos: int, location: int) -> tuple[int | None, int]:
        """Return the new location of an advance (None for a nop) and the next position."""
        if opcode == 0x00:  # DW_CFA_nop
            return None, pos
        if opcode == 0x01:  # DW_CFA_set_loc
            target, end = program.pointer(pos, self.cie.encoding)
            if target < location:
                raise program.damaged(pos, "DW_CFA_set_loc goes back")
            return target, end
        # DW_CFA_advance_loc1, _loc2, _loc4, DW_CFA_MIPS_advance_loc8
        size = 8 if opcode == 0x1D else 1 << (opcode - 2)
        return location + program.integer(pos, size) * self.cie.code_align, pos + size

    def _execute(self, opcode: int, program: DwarfReader, pos: int) -> int:
        """Execute an instruction that does not advance; return the next position."""
        match opcode:
            case 0x0A:  # DW_CFA_remember_state
                self._remember(program, pos)
            case 0x0B:  # DW_CFA_restore_state
                self._recall(program, pos)
            case 0x2C | 0x2D:
                # DW_CFA_AARCH64_negate_ra_state(_with_pc): from here on the return address is signed, or is
                # no longer.  DW_CFA_GNU_window_save has the second number on SPARC, which we do not unwind.
                self.ra_signed = not self.ra_signed
            case 0x2E:  # DW_CFA_GNU_args_size: matters to whoever resumes at a landing pad
                _, pos = program.uleb128(pos)
            case 0x0C | 0x0D | 0x0E | 0x0F | 0x12 | 0x13:
                pos = self._define_cfa(opcode, program, pos)
            case _:
                register, end = program.uleb128(pos)
                pos = self._define_rule(opcode, register, program, end)
        return pos

    def _define_cfa(self, opcode: int, program: DwarfReader, pos: int) -> int:
        """DWARF 5 section 6.4.2.2.

        A new offset leaves an expression in force and a new register ends it, as libgcc and readelf do.
        """
        register, offset, expression = self.cfa or (-1, 0, b"")
        match opcode:
            case 0x0E:  # DW_CFA_def_cfa_offset
                offset, pos = program.uleb128(pos)
            case 0x0D:  # DW_CFA_def_cfa_register
                register, pos = program.uleb128(pos)
                expression = b""
            case 0x0C:  # DW_CFA_def_cfa
                register, pos = program.uleb128(pos)
                offset, pos = program.uleb128(pos)
                expression = b""
            case 0x12:  # DW_CFA_def_cfa_sf
                register, pos = program.uleb128(pos)
                offset, pos = self._factored(program, pos)
                expression = b""
            case 0x13:  # DW_CFA_def_cfa_offset_sf
                offset, pos = self._factored(program, pos)
            case _:  # DW_CFA_def_cfa_expression
                expression, pos = self._expression(program, pos)
        if register < 0 and not expression:
            raise program.damaged(pos, "an offset without a CFA register")
        self.cfa = CfaRule(register, offset, expression)
        return pos

    def _define_rule(self, opcode: int, register: int, program: DwarfReader, pos: int) -> int:
        """DWARF 5 section 6.4.2.3: every one of these has the register as its first operand."""
        match opcode:
            case 0x05:  # DW_CFA_offset_extended
                value, pos = program.uleb128(pos)
                rule = CfiRule("offset", value * self.cie.data_align)
            case 0x06:  # DW_CFA_restore_extended
                self._restore(register)
                return pos
            case 0x07:  # DW_CFA_undefined
                rule = _UNDEFINED
            case 0x08:  # DW_CFA_same_value
                rule = _SAME
            case 0x09:  # DW_CFA_register
                value, pos = program.uleb128(pos)
                rule = CfiRule("register", value)
            case 0x10:  # DW_CFA_expression
                expression, pos = self._expression(program, pos)
                rule = CfiRule("expression", 0, expression)
            case 0x11:  # DW_CFA_offset_extended_sf
                value, pos = self._factored(program, pos)
                rule = CfiRule("offset", value)
            case 0x14:  # DW_CFA_val_offset
                value, pos = program.uleb128(pos)
                rule = CfiRule("val_offset", value * self.cie.data_align)
            case 0x15:  # DW_CFA_val_offset_sf
                value, pos = self._factored(program, pos)
                rule = CfiRule("val_offset", value)
            case 0x16:  # DW_CFA_val_expression
                expression, pos = self._expression(program, pos)
                rule = CfiRule("val_expression", 0, expression)
            case 0x2F:  # DW_CFA_GNU_negative_offset_extended
                value, pos = program.uleb128(pos)
                rule = CfiRule("offset", -value * self.cie.data_align)
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
        """Go back to what the CIE's initial instructions said, which may be nothing."""
        rule = self.cie.rules.get(register)
        if rule is None:
            self.rules.pop(register, None)
        else:
            self.rules[register] = rule

    def _remember(self, program: DwarfReader, pos: int) -> None:
        if len(self._states) >= _MAX_STATES:
            raise program.damaged(pos, "too many remembered states")
        self._states.append((self.cfa, self._copy_rules(program), self.ra_signed))

    def _recall(self, program: DwarfReader, pos: int) -> None:
        """Go back to the remembered row, its CFA and signing state included: compilers rely on that."""
        if not self._states:
            raise program.damaged(pos, "DW_CFA_restore_state without a remembered state")
        self.cfa, self.rules, self.ra_signed = self._states.pop()

    def _copy_rules(self, program: DwarfReader) -> dict[int, CfiRule]:
        if len(self.rules) > _MAX_RULES:
            raise program.damaged(0, f"rules for {len(self.rules)} registers")
        return dict(self.rules)
