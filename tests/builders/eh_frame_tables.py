"""Gives `.eh_frame` tables of one or two functions, and their rows."""

from sfsample.core.rule import CFA, Rule
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.dwarf.eh_frame import EhFrame
from tests.builders.eh_frame_builder import (
    AMD64_START,
    EhFrameBuilder,
)

VADDR, HDR_VADDR = 0x2000, 0x1F00
START, SIZE = 0x1000, 0x100
RA = Rule(CFA, -8, deref=True)


def one_function(program=b"", start=START, size=SIZE, **cie) -> EhFrame:
    """Return a table of one function; `cie` are arguments of `EhFrameBuilder.cie`, or byteorder."""
    section = EhFrameBuilder(VADDR, cie.pop("byteorder", "little"))
    program_of_cie = cie.pop("program_of_cie", AMD64_START)
    section.fde(section.cie(program_of_cie, **cie), start, size, program)
    return EhFrame(section.terminated(), VADDR, section.byteorder)


def rows(program, **cie):
    """Return (offset in the function, CFA rule, register rules) of each row."""
    eh_frame = one_function(program, **cie)
    [fde] = eh_frame.fdes()
    return [(location - START, row.cfa, row.rules) for location, row in eh_frame.rows(fde)]


def last_row(program, **cie) -> CfiRow:
    """Return the row at the last address of the function."""
    row = one_function(program, **cie).row_at(START + SIZE - 1)
    assert row is not None
    return row


def two_functions() -> EhFrameBuilder:
    """Return a section of two functions, of which the second starts below the first."""
    section = EhFrameBuilder(VADDR)
    cie = section.cie()
    section.fde(cie, START + SIZE, SIZE)
    section.fde(cie, START, SIZE)
    return section
