"""Translates CFI rows, of `.eh_frame` and `.debug_frame`, to unwind rows.

A callee-saved register without a rule is unchanged, as the ABIs say.  Any other register without a rule is
unknown.  A damaged FDE gives no row, and the module notes the damage in `problems`.
"""

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.dwarf.eh_frame import EhFrame, RowRange
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import PcRange, only_this_pc


class CfiStepper:
    """Steps from code that `.eh_frame` covers; with `debug`, from code that `.debug_frame` covers."""

    def __init__(self, *, debug: bool = False) -> None:
        self.found = Found.DEBUG_FRAME if debug else Found.EH_FRAME
        self._debug = debug

    def _table(self, module: Module) -> EhFrame | None:
        return module.tables.debug_frame if self._debug else module.tables.eh_frame

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the CFI row at the frame's pc."""
        table = self._table(module) if module else None
        if module is None or table is None or module.image.machine != arch.machine:
            return None
        try:
            current = table.row_range_at(module.vaddr(frame.lookup_pc))
        except FormatError as damage:
            module.note_damage(damage)
            return None
        return None if current is None else to_row(_next_if_late(table, current) or current.row, arch)

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return the addresses for which the row is valid."""
        table = self._table(module)
        try:
            current = table.row_range_at(module.vaddr(frame.pc)) if table else None
        except FormatError:  # damage that `row_at` has noted
            current = None
        if current is None:
            return only_this_pc(frame)
        return module.address(current.start), module.address(current.end)


def _next_if_late(table: EhFrame, current: RowRange) -> CfiRow | None:
    """Return the next row if it is already valid here, because it describes words that the caller has pushed.

    In glibc's _dl_runtime_resolve (AArch64), the row for the PLT stub's pushes is one instruction late.
    """
    if current.row.ra_register in current.row.rules:
        return None
    try:
        following = table.row_range_at(current.end)
    except FormatError:  # damage of another function, which a look-up in that function notes
        return None
    if following is None or following.row.cfa != current.row.cfa:
        return None
    return following.row if _pushed_at(following.row) is not None else None


def _pushed_at(row: CfiRow) -> int | None:
    """Return the offset of the return address from the CFA; None: the caller has not pushed the address."""
    ra = row.rules.get(row.ra_register)
    if ra is None or ra.base != CFA or not ra.deref or ra.expression or row.signal:
        return None
    return ra.offset if ra.offset >= 0 else None


def to_row(row: CfiRow, arch: Arch) -> UnwindRow:
    """Return the unwind row for a CFI row."""
    # with a base other than CFA, an expression starts with an empty stack
    cfa = row.cfa._replace(base=arch.sp) if row.cfa.expression else row.cfa
    in_register = Rule(row.ra_register, 0, deref=False)  # rule for a leaf function on AArch64
    registers = [(n, rule) for n, rule in row.rules.items() if rule is not None and n != row.ra_register]
    pushed_at = _pushed_at(row)
    if pushed_at is not None:
        # glibc's _dl_runtime_resolve on AArch64: the CFA lies below the two words that the stub has pushed
        registers.append((arch.sp, Rule(CFA, pushed_at + 8, deref=False)))
    return UnwindRow(
        cfa,
        row.rules.get(row.ra_register, in_register),
        tuple(registers),
        kept=tuple(arch.callee_saved - row.rules.keys()),
        signal=row.signal,
        mangled=row.ra_signed,
    )
