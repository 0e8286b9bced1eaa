"""The last resort: the first word on the stack that looks like a return address.

Law: not among the default steppers.  Every row is a guess, labelled so; what the unwinder accepts may be a
leftover of a call that has returned long ago.  No register but sp is recovered.
"""

from functools import cache

from sfsample.arch import Arch
from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

_WORDS = 160  # a frame that is larger is not found; most are smaller


@cache
def _row(arch: Arch) -> UnwindRow:
    # s390x: CFA - 48 is where r14 is saved, in an area that begins 160 bytes below the CFA
    slot = -48 if arch.sp_adjust else -8
    start = -slot if arch.sp_adjust else 8
    return UnwindRow(
        cfa=Rule(arch.sp, start, deref=False),
        ra=Rule(CFA, slot, deref=True),
        guess=True,
        mangled=True,
        slides=_WORDS - 1,
    )


class ScanStepper:
    """Steps anywhere, by the look of the stack."""

    found = Found.SCAN

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:  # noqa: ARG002
        """Return the row that slides up the stack."""
        return _row(arch)
