"""Steps from a signal trampoline, which it recognizes by its code bytes, to the interrupted code.

The kernel's layout of a signal frame is ABI (`core/arches/` has it), so no table is needed.  Tables are not
used, because SFrame cannot express the layout, and C libraries have different hand-written CFI for it.  Every
register of the interrupted code is recovered.
"""

from functools import cache

from sfsample.core.arch import Arch, SignalFrame
from sfsample.core.rule import Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.code_patterns import range_without
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import PcRange


@cache
def _row(arch: Arch, kind: SignalFrame) -> UnwindRow:
    saved = {number: Rule(arch.sp, offset, deref=True) for number, offset in kind.saved}
    ra = saved.pop(arch.pc)
    return UnwindRow(cfa=saved[arch.sp], ra=ra, registers=tuple(saved.items()), signal=True)


class SignalFrameStepper:
    """Steps from a signal trampoline to the interrupted code."""

    found = Found.SIGNAL_FRAME

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row of the saved registers if `frame.pc` is in a trampoline."""
        if module is None:
            return None
        for kind in arch.signal_frames:
            code = kind.code
            if module.code(frame.pc, len(code)) == code:
                return _row(arch, kind)
            # the thread is about to make the system call, and sp is still the same
            inside = len(code) - kind.call
            if frame.exact and module.code(frame.pc - inside, len(code)) == code:
                return _row(arch, kind)
            # the thread is in that system call: a guess, as the kernel may have restored some registers
            if frame.exact and module.code(frame.pc - len(code), len(code)) == code:
                return _row(arch, kind)._replace(guess=True)
        return None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:
        """Return addresses around the pc at which no trampoline is."""
        return range_without((kind.code for kind in arch.signal_frames), frame, module)
