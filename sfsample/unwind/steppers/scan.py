"""Takes the first word on the stack that looks like a return address, if the user asks for that last resort.

Every row is a guess; what the unwinder accepts may be left over from a call that has returned long ago.

Source: s390x ELF ABI, "The Stack Frame" (r14 at 112 of an area of 160 bytes); AAPCS64 section 6.4.6.
"""

from functools import cache

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

_MAX_FRAME_WORDS = 160  # larger frames are not found; most are smaller


@cache
def _row(arch: Arch) -> UnwindRow:
    """Return the row whose return address is the word at sp.

    Where a call pushes it, the caller's sp is the address above it.  s390x saves r14 at a fixed place in the
    caller's frame.  AArch64 saves x30 next to fp, anywhere in the frame, so the caller's sp stays unknown.
    """
    pushed = arch.pushed_ra is not None
    slot = -48 if arch.sp_adjust else -8
    pair = arch.frame_records and not arch.record_ends_frame
    return UnwindRow(
        cfa=Rule(arch.sp, -slot, deref=False),
        ra=Rule(CFA, slot, deref=True),
        registers=((arch.fp, Rule(CFA, slot - 8, deref=True)),) if pair else (),
        guess=True,
        mangled=True,
        sp_known=pushed or bool(arch.sp_adjust),
        slides=_MAX_FRAME_WORDS - 1,
    )


class ScanStepper:
    """Steps from any code."""

    found = Found.SCAN

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:  # noqa: ARG002
        """Return the row that slides up the stack."""
        return _row(arch)
