"""A call through a null pointer.

Law: answers only where no code can be: an exact pc in the page at address 0, which Linux does not map.  The
call has left its return address where calls leave it, and nothing has run since.
"""

from functools import cache

from sfsample.arch import Arch
from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

_PAGE = 4096


@cache
def _row(arch: Arch) -> UnwindRow:
    pushed = arch.pushed_ra
    return UnwindRow(
        cfa=Rule(arch.sp, arch.entry_cfa, deref=False),
        ra=Rule(arch.ra, 0, deref=False) if pushed is None else Rule(CFA, pushed, deref=True),
        kept=tuple(sorted(arch.callee_saved)),
        guess=True,
    )


class NullCallStepper:
    """Steps from pc 0 to the function that called through the null pointer."""

    found = Found.NULL_CALL

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row of a function's first instruction, where there is no function."""
        return _row(arch) if module is None and frame.exact and frame.pc < _PAGE else None
