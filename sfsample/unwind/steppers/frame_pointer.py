"""Follows the chain of frame pointers, for code that no table describes (JIT compilers, assembly).

A frame pointer is a convention that code need not follow, so every row is a guess: the unwinder accepts it
only if the caller's frame lies above and the return address follows a call.  In a prologue or a leaf function
the step may skip the caller; without a table that cannot be seen.

Source: AMD64 psABI section 3.2.2 (push %rbp; mov %rsp,%rbp: the pair of words ends the frame); AAPCS64
section 6.4.6 (the pair may lie anywhere in the frame).  On AArch64 too it is taken to end the frame, as gdb
does: GCC puts it at the other end, but writes tables; JIT compilers and LLVM put it there.
"""

from functools import cache

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow


@cache
def _row(arch: Arch) -> UnwindRow | None:
    if not arch.frame_records:
        return None
    return UnwindRow(
        cfa=Rule(arch.fp, 16, deref=False),
        ra=Rule(CFA, -8, deref=True),
        registers=((arch.fp, Rule(CFA, -16, deref=True)),),
        guess=True,
        mangled=True,
    )


class FramePointerStepper:
    """Steps from any code, by convention."""

    found = Found.FRAME_POINTER

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:  # noqa: ARG002 - protocol
        """Return the row of the architecture; None if it has no such convention (s390x)."""
        return _row(arch)
