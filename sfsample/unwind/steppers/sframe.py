"""Translates SFrame rows to unwind rows.

From an SFrame row to a caller, step 3 of 4: `SFrameStepper.row_at` looks the pc up in the SFrame tables of
the module (`formats/sframe`), and `to_row` turns the FRE into an `UnwindRow`, which `row.apply_row` executes.

SFrame recovers pc, sp and fp.  Every other register of the caller is unknown.  A damaged function gives no
row, and the module notes the damage in `problems`.
"""

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.sframe import SFrameFre, SFrameTable
from sfsample.modules.module import Module
from sfsample.unwind.row import OUTERMOST, UnwindRow
from sfsample.unwind.stepper import ALL_PCS, PcRange, only_this_pc


class SFrameStepper:
    """Steps from code that an SFrame table of the module covers."""

    found = Found.SFRAME

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:  # noqa: ARG002 - the protocol
        """Return the row of the first table that covers the pc and has a row there."""
        if module is None:
            return None
        vaddr = module.vaddr(frame.lookup_pc)
        for table in module.tables.sframe.covering(vaddr):
            try:
                fre = table.row_at(vaddr)
            except FormatError as damage:
                module.note_damage(damage)
                continue
            if fre is not None:
                return to_row(fre, table)
        return None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return only the pc.  Without SFrame, the answer is always None, so return all addresses."""
        return only_this_pc(frame) if module.tables.sframe else ALL_PCS


def to_row(fre: SFrameFre, table: SFrameTable) -> UnwindRow:
    """Return the unwind row for a row of `table`."""
    if fre.cfa is None:
        return OUTERMOST
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
