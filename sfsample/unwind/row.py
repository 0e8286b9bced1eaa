"""The common currency of all steppers, `UnwindRow`, and the one function that executes it.

Law: `apply_row` is the only code that computes a CFA, a return address or a caller's register.  It reads
registers and memory and nothing else.  A register that no rule recovers is absent afterwards, never stale.

Source: DWARF 5 section 6.4.1 for the rules; SFrame, frame pointers and signal frames are special cases.
"""

from typing import NamedTuple

from sfsample.core.arch import Arch, ByteOrder
from sfsample.core.memory import Memory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import Registers
from sfsample.core.stack import StopReason
from sfsample.formats.dwarf.expression import evaluate

_MASK64 = (1 << 64) - 1


class UnwindRow(NamedTuple):
    """How to get from a frame to its caller.

    `ra` None: the ABI or the table says that there is no caller.  `registers` are (DWARF number, rule);
    `kept` are registers whose value the function has not changed; every other one becomes unknown.
    `signal`: the caller was interrupted, so its pc is exact.  `guess`: convention, not information.
    `mangled`: the return address carries an authentication code (AArch64 PAC), which is taken off.
    `sp_known` False: the CFA is a lower bound, so the caller's sp is unknown.
    `called`: a guess that is believed only if the call at the return address leads to this function.
    `slides`: how many words the CFA may be moved up until the row is believed.
    """

    cfa: Rule
    ra: Rule | None
    registers: tuple[tuple[int, Rule], ...] = ()
    kept: tuple[int, ...] = ()
    signal: bool = False
    guess: bool = False
    mangled: bool = False
    sp_known: bool = True
    called: bool = False
    slides: int = 0


class Caller(NamedTuple):
    """The result of a step: CFA of the frame stepped from, and the registers of the one stepped to."""

    cfa: int
    registers: Registers


class _Known(Registers):
    """Registers that remember having been asked for one that is not there."""

    missed = False

    def __missing__(self, number: int) -> int:
        self.missed = True
        raise KeyError(number)


def apply_row(row: UnwindRow, registers: Registers, memory: Memory, arch: Arch) -> Caller | StopReason:
    """Execute `row` (whose `ra` is not None) on a frame's registers."""
    cfa = _value(row.cfa, 0, registers, memory, arch)
    if isinstance(cfa, StopReason):
        return cfa
    assert row.ra is not None  # noqa: S101 - our own invariant: outermost rows are not applied
    ra = _value(row.ra, cfa, registers, memory, arch)
    if isinstance(ra, StopReason):
        return ra
    caller = {number: registers[number] for number in row.kept if number in registers}
    if row.sp_known:
        caller[arch.sp] = cfa + arch.sp_adjust & _MASK64
    for number, rule in row.registers:
        value = _value(rule, cfa, registers, memory, arch)
        if not isinstance(value, StopReason):
            caller[number] = value
    caller[arch.pc] = ra & arch.ra_mask if row.mangled else ra
    return Caller(cfa, caller)


class _Noting:
    """Memory that remembers the first word that was asked for and is not there."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.missing: int | None = None

    @property
    def byteorder(self) -> ByteOrder:
        return self._memory.byteorder

    def word(self, address: int) -> int | None:
        value = self._memory.word(address)
        if value is None and self.missing is None:
            self.missing = address
        return value

    def read(self, address: int, size: int) -> bytes | None:
        data = self._memory.read(address, size)
        if data is None and self.missing is None:
            self.missing = address
        return data


def first_missing(row: UnwindRow, registers: Registers, memory: Memory, arch: Arch) -> int | None:
    """Return the address for want of which `apply_row` says BAD_MEMORY."""
    noting = _Noting(memory)
    apply_row(row, registers, noting, arch)
    return noting.missing


def _value(rule: Rule, cfa: int, registers: Registers, memory: Memory, arch: Arch) -> int | StopReason:
    base, offset, deref, expression = rule
    if expression:
        # DWARF 5, 6.4.2.3: the CFA is pushed first, except where the expression gives the CFA itself
        known = _Known(registers)
        address = evaluate(expression, known, memory, arch.byteorder, None if base != CFA else cfa)
        if address is None:
            return StopReason.REGISTER_UNKNOWN if known.missed else StopReason.BAD_MEMORY
    elif base == CFA:
        address = cfa + offset & _MASK64
    elif base in registers:
        address = registers[base] + offset & _MASK64
    else:
        return StopReason.REGISTER_UNKNOWN
    if not deref:
        return address
    word = memory.word(address)
    return StopReason.BAD_MEMORY if word is None else word
