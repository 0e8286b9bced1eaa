"""The frame pointer chain, for code that no table describes (JIT, hand-written assembly).

Law: a convention, not information, so every row is a guess: the unwinder accepts it only if the caller's
frame lies above and the return address follows a call.  In a prologue or a leaf function it may skip the
caller; that is the price of having no table.
"""

from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

# AMD64 psABI section 3.2.2: push %rbp; mov %rsp,%rbp leaves the caller's rbp at rbp, the RA at rbp+8.
_AMD64_ROW = UnwindRow(
    cfa=Rule(6, 16, deref=False),
    ra=Rule(CFA, -8, deref=True),
    registers=((6, Rule(CFA, -16, deref=True)),),
    guess=True,
)


class FramePointerStepper:
    """Steps anywhere, by convention."""

    found = Found.FRAME_POINTER

    def row_at(self, frame: Frame, module: Module | None) -> UnwindRow | None:  # noqa: ARG002 - protocol
        """Return the one row that there is."""
        return _AMD64_ROW
