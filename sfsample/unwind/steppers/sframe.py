"""SFrame rows as unwind rows.

Law: translates, decides nothing.  SFrame recovers pc, sp and fp; every other register is unknown in the
caller.  A damaged function is "not mine", and its module says so in `problems`.
"""

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.sframe.section import SFrameFre, SFrameTable
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import EVERYWHERE, PcRange, here

_OUTERMOST = UnwindRow(Rule(CFA, 0, deref=False), None)


class SFrameStepper:
    """Steps where the module's SFrame table covers the pc."""

    found = Found.SFRAME

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:  # noqa: ARG002 - the table knows
        """Return the row of the first table that has one."""
        if module is None:
            return None
        vaddr = module.vaddr(frame.lookup_pc)
        for table in module.sframe.covering(vaddr):
            try:
                fre = table.row_at(vaddr)
            except FormatError as damage:
                module.lose(damage)
                continue
            if fre is not None:
                return to_row(fre, table)
        return None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Say that a module has no tables."""
        return here(frame) if module.sframe else EVERYWHERE


def to_row(fre: SFrameFre, table: SFrameTable) -> UnwindRow:
    """Translate one usable row of `table`."""
    if fre.cfa is None:
        return _OUTERMOST
    arch = table.abi.arch
    if fre.ra is not None:
        ra = fre.ra
    elif table.abi.tracks_ra:
        ra = Rule(arch.ra, 0, deref=False)
    else:
        ra = Rule(CFA, table.fixed_ra, deref=True)
    registers = () if fre.fp is None else ((arch.fp, fre.fp),)
    kept = (arch.fp,) if fre.fp is None else ()
    return UnwindRow(fre.cfa, ra, registers, kept, signal=fre.signal, mangled=fre.mangled_ra)
