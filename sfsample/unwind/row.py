"""Defines `UnwindRow`, the rules that every stepper gives, and `apply_row`, which executes the rules.

From an SFrame row to a caller, step 4 of 4: `apply_row` computes the CFA, the return address and the caller's
registers from an `UnwindRow`, the frame's registers and memory.  `rule_cache.py` is faster for plain rows.

Invariant: a register that no rule recovers is absent from the caller, never stale (tests/unwind/test_row.py).
Source: DWARF 5 section 6.4.1 for the rules; SFrame, frame pointers and signal frames are special cases.
"""

from typing import NamedTuple

from sfsample.core.arch import Arch, ByteOrder
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import GO_REGISTERS, GOROUTINE_LOW, Registers
from sfsample.core.stack import StopReason
from sfsample.formats.dwarf.expression import evaluate

_MASK64 = (1 << 64) - 1
_WORD = 8  # bytes


class UnwindRow(NamedTuple):
    """The rules that lead from a frame to its caller.  Registers are DWARF numbers; `Rule` defines a value.

    A register of the caller is known only if `registers` or `kept` has it, or if it is pc or sp.
    Caller's sp = cfa + arch.sp_adjust, unless `registers` has a rule for sp.
    """

    cfa: Rule  # cfa = register + offset, the word at that address, or an expression over registers
    ra: Rule | None  # caller's pc = value; None: the ABI or the table says that there is no caller
    registers: tuple[tuple[int, Rule], ...] = ()  # (register, rule): caller's register = value
    kept: tuple[int, ...] = ()  # caller's register = this frame's register, which is unchanged
    signal: bool = False  # True: a signal interrupted the caller, so its pc is exact
    guess: bool = False  # True: the row may be wrong, so the return address must follow a call
    mangled: bool = False  # True: caller's pc = value & arch.ra_mask (a signed return address: AArch64 PAC)
    switches: bool = False  # True: the caller's frame lies on another stack
    on_goroutine: "UnwindRow | None" = None  # Go: row to use instead if sp lies in the goroutine's stack


OUTERMOST = UnwindRow(Rule(CFA, 0, deref=False), None)


def entry_row(arch: Arch) -> UnwindRow:
    """Return the row for the first instruction of any function."""
    pushed = arch.pushed_ra
    return UnwindRow(
        cfa=Rule(arch.sp, arch.entry_cfa, deref=False),
        ra=Rule(arch.ra, 0, deref=False) if pushed is None else Rule(CFA, pushed, deref=True),
        kept=tuple(sorted(arch.callee_saved)),
    )


class Caller(NamedTuple):
    """The result of a step: the CFA of the frame, and the registers of its caller (by DWARF number)."""

    cfa: int
    registers: Registers


def apply_row(row: UnwindRow, registers: Registers, memory: Memory, arch: Arch) -> Caller | StopReason:
    """Execute `row`, whose `ra` is not None, on a frame's registers, or return the reason why this failed."""
    cfa = _value(row.cfa, 0, registers, memory, arch)
    if isinstance(cfa, StopReason):
        return cfa
    assert row.ra is not None  # noqa: S101 - `StepperChain` ends a walk at a row without a caller
    ra = _value(row.ra, cfa, registers, memory, arch)
    if isinstance(ra, StopReason):
        return ra
    caller = {number: registers[number] for number in row.kept if number in registers}
    caller[arch.sp] = cfa + arch.sp_adjust & _MASK64
    if GOROUTINE_LOW in registers:
        caller |= {number: registers[number] for number in GO_REGISTERS if number in registers}
    for number, rule in row.registers:
        value = _value(rule, cfa, registers, memory, arch)
        if not isinstance(value, StopReason):
            caller[number] = value
    caller[arch.pc] = ra & arch.ra_mask if row.mangled else ra
    return Caller(cfa, caller)


def first_missing(row: UnwindRow, registers: Registers, memory: Memory, arch: Arch) -> int | None:
    """Return the first address that `apply_row` reads and that `memory` lacks, or None."""
    misses = _Misses()
    apply_row(row, registers, PiecewiseMemory(memory, misses), arch)
    return misses.first


def with_popped_words(
    memory: Memory, table_row: UnwindRow, code_row: UnwindRow, registers: Registers, arch: Arch
) -> Memory:
    """Return `memory` with words that the innermost function has popped, and that `table_row` reads.

    A popped word lies below sp, and a copy that begins at sp (perf_event_open(2)) lacks it.  The table may
    refer to the word until the return.  The register still has the value of the word if no instruction from
    the pc to the return changes the register (`code_row.kept`).  Otherwise word and register may differ:
    code may save a register below sp, in the red zone, and then change the register.
    """
    caller, by_code = (apply_row(row, registers, memory, arch) for row in (table_row, code_row))
    if isinstance(caller, StopReason) or isinstance(by_code, StopReason) or caller.cfa != by_code.cfa:
        return memory
    words = [
        BytesMemory(caller.cfa + rule.offset, registers[number].to_bytes(8, arch.byteorder), arch.byteorder)
        for number, rule in table_row.registers
        if rule.base == CFA and rule.deref and not rule.expression
        if number in code_row.kept and number in registers and number not in caller.registers
    ]
    pieces = memory.pieces if isinstance(memory, PiecewiseMemory) else (memory,)
    return PiecewiseMemory(*pieces, *words) if words else memory


class _Misses:
    """A last piece of memory, without bytes, which notes the first address that all other pieces lack."""

    byteorder: ByteOrder = "little"
    first: int | None = None

    def word(self, address: int) -> None:
        self.first = address if self.first is None else self.first

    def read(self, address: int, size: int) -> None:  # noqa: ARG002 - the protocol
        self.word(address)


class _RegistersUsed(Registers):
    """Registers that remember whether an absent register was read."""

    missed = False

    def __missing__(self, number: int) -> int:
        self.missed = True
        raise KeyError(number)


def _value(rule: Rule, cfa: int, registers: Registers, memory: Memory, arch: Arch) -> int | StopReason:
    base, offset, deref, expression = rule
    if expression:
        # DWARF 5, 6.4.2.3: the CFA is pushed first, unless the expression gives the CFA itself
        used = _RegistersUsed(registers)
        address = evaluate(expression, used, memory, arch.byteorder, None if base != CFA else cfa)
        if address is None:
            return StopReason.REGISTER_UNKNOWN if used.missed else StopReason.BAD_MEMORY
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


# -- plain rows


class PlainRow(NamedTuple):
    """The usual kind of row, which `rule_cache.py` executes quickly.  All offsets are multiples of 8 bytes.

    The CFA counts from sp or fp; return address and caller's fp are aligned words on the stack.
    """

    by_fp: bool  # True: CFA = fp + cfa; False: CFA = sp + cfa
    cfa: int
    ra: int  # return address = word at CFA + ra
    fp: int | None  # caller's fp = word at CFA + fp; None: caller's fp = this frame's fp
    found: str  # label of the caller's frame
    guess: bool
    row: UnwindRow  # row that was translated


def plain_row_of(row: UnwindRow, found: str, arch: Arch) -> PlainRow | None:
    """Return the plain row for `row`; None if `row` is not plain."""
    registers = dict(row.registers)
    cfa, ra, fp = row.cfa, row.ra, registers.get(arch.fp)
    if arch.sp in registers or arch.sp_adjust:
        return None
    signed = row.mangled and arch.ra_mask != _MASK64
    if signed or row.signal or row.on_goroutine is not None:
        return None
    if cfa.deref or cfa.expression or cfa.base not in (arch.sp, arch.fp) or cfa.offset % _WORD:
        return None
    if ra is None or not _is_slot(ra) or ra.offset < -_WORD:
        return None
    if not (arch.fp in row.kept if fp is None else _is_slot(fp)):
        return None
    by_fp = cfa.base == arch.fp
    if not by_fp and cfa.offset <= 0:
        return None  # no progress up the stack
    return PlainRow(by_fp, cfa.offset, ra.offset, fp.offset if fp else None, found, row.guess, row)


def _is_slot(rule: Rule) -> bool:
    return rule.base == CFA and rule.deref and not rule.expression and rule.offset % _WORD == 0
