"""Translates CFI rows, of `.eh_frame` and `.debug_frame`, to unwind rows.

A callee-saved register without a rule is unchanged, as the ABIs say; any other register without a rule is
unknown.  A damaged FDE gives no row, and its module notes that in `problems`.
"""

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import CfiRow, CfiRule, EhFrame, RowRange
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import PcRange, only_this_pc


class EhFrameStepper:
    """Steps where the module's `.eh_frame` covers the pc."""

    found = Found.EH_FRAME

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the CFI row at the frame's pc."""
        return None if module is None else _row_at(module.eh_frame, frame, module, arch)

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return the addresses of the row."""
        try:
            current = module.eh_frame.row_range_at(module.vaddr(frame.pc)) if module.eh_frame else None
        except FormatError:  # `row_at` has noted it
            current = None
        if current is None:
            return only_this_pc(frame)
        return module.address(current.start), module.address(current.end)


class DebugFrameStepper:
    """Steps where the module's `.debug_frame` covers the pc."""

    found = Found.DEBUG_FRAME

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the CFI row at the frame's pc."""
        return None if module is None else _row_at(module.debug_frame, frame, module, arch)


def _row_at(table: EhFrame | None, frame: Frame, module: Module, arch: Arch) -> UnwindRow | None:
    if table is None or module.image.machine != arch.machine:
        return None
    try:
        current = table.row_range_at(module.vaddr(frame.lookup_pc))
    except FormatError as damage:
        module.note_damage(damage)
        return None
    return None if current is None else to_row(_next_if_late(table, current) or current.row, arch)


def _next_if_late(table: EhFrame, current: RowRange) -> CfiRow | None:
    """Return the next row if it describes words that the caller has pushed, so that it is true here already.

    glibc's _dl_runtime_resolve on AArch64: its table describes the words that the stub has pushed one
    instruction late.
    """
    if current.row.ra_register in current.row.rules:
        return None
    try:
        following = table.row_range_at(current.end)
    except FormatError:  # of another function, whose own look-up notes it
        return None
    if following is None or following.row.cfa != current.row.cfa:
        return None
    return following.row if _is_pushed_before(following.row) else None


def _is_pushed_before(row: CfiRow) -> bool:
    """Return whether the return address lies at the CFA or above: then the caller has put it there."""
    ra = row.rules.get(row.ra_register)
    return ra is not None and ra.kind == "offset" and ra.value >= 0 and not row.signal


def to_row(row: CfiRow, arch: Arch) -> UnwindRow:
    """Translate one CFI row."""
    # not CFA, so an expression starts with an empty stack
    base = arch.sp if row.cfa.expression else row.cfa.register
    cfa = Rule(base, row.cfa.offset, deref=False, expression=row.cfa.expression)
    registers = []
    kept = set(arch.callee_saved)
    for number, rule in row.rules.items():
        kept.discard(number)
        translated = _rule(number, rule)
        if translated is not None and number != row.ra_register:
            registers.append((number, translated))
    if _is_pushed_before(row):
        # glibc's _dl_runtime_resolve on AArch64: its CFA leaves out the two words that the stub has pushed
        above = row.rules[row.ra_register].value + 8
        registers.append((arch.sp, Rule(CFA, above, deref=False)))
    return UnwindRow(
        cfa, _return_address(row), tuple(registers), tuple(kept), signal=row.signal, mangled=row.ra_signed
    )


def _return_address(row: CfiRow) -> Rule | None:
    rule = row.rules.get(row.ra_register)
    if rule is None:  # still in its register (a leaf function on AArch64)
        return Rule(row.ra_register, 0, deref=False)
    return _rule(row.ra_register, rule)


def _rule(number: int, rule: CfiRule) -> Rule | None:
    match rule.kind:
        case "offset":
            return Rule(CFA, rule.value, deref=True)
        case "val_offset":
            return Rule(CFA, rule.value, deref=False)
        case "register":
            return Rule(rule.value, 0, deref=False)
        case "expression":
            return Rule(CFA, 0, deref=True, expression=rule.expression)
        case "val_expression":
            return Rule(CFA, 0, deref=False, expression=rule.expression)
        case "same":
            return Rule(number, 0, deref=False)
        case "undefined":
            return None
