"""A call through a null pointer.

Law: answers only where no code can be: an exact pc in the page at address 0, which Linux does not map.  The
call has pushed its return address and nothing has run since, so the return address is at sp.
"""

from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

_PAGE = 4096
_AMD64_ROW = UnwindRow(
    cfa=Rule(7, 8, deref=False),
    ra=Rule(CFA, -8, deref=True),
    kept=(3, 6, 12, 13, 14, 15),
    guess=True,
)


class NullCallStepper:
    """Steps from pc 0 to the function that called through the null pointer."""

    found = Found.NULL_CALL

    def row_at(self, frame: Frame, module: Module | None) -> UnwindRow | None:
        """Return the row of a function's first instruction, where there is no function."""
        return _AMD64_ROW if module is None and frame.exact and frame.pc < _PAGE else None
