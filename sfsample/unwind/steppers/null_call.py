"""A call to where no code is: through a null pointer, or a stray one.

Law: answers only where nothing can have run: an exact pc in no executable memory.  The call has left its
return address where calls leave it.  Still a guess: a jump or a return may have led here as well.
"""

from functools import cache

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import IsCode
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import EVERYWHERE, PcRange

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
    """Steps to the function that called.  `is_code` tells where a process has executable memory."""

    found = Found.NULL_CALL

    def __init__(self, is_code: IsCode = lambda address: address >= _PAGE) -> None:
        self._is_code = is_code  # of no process in particular: Linux does not map the page at address 0

    def mapped(self, is_code: IsCode) -> "NullCallStepper":
        """Return the stepper of the process whose executable memory this tells."""
        return NullCallStepper(is_code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row of a function's first instruction, where there is no function."""
        return _row(arch) if module is None and frame.exact and not self._is_code(frame.pc) else None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Say that it has no answer anywhere in a module."""
        return EVERYWHERE
