"""Steps from a function that has not touched its stack, in code without tables (assembly, musl, stripped Go).

It guesses that the word at sp is the return address.  The unwinder accepts it (`UnwindRow.called`) if the
call before that address leads to the function that the pc lies in, or to a linkage stub.  This stepper is
asked before the frame pointer, which would skip the caller.
"""

from sfsample.core.arch import AMD64, Arch
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow, entry_row

_ROW = entry_row(AMD64)._replace(guess=True, called=True)


class LeafStepper:
    """Steps from the innermost frame, on x86-64."""

    found = Found.LEAF

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row of a function's first instruction."""
        may_be_leaf = module is not None and frame.exact and arch.machine == AMD64.machine
        return _ROW if may_be_leaf else None
