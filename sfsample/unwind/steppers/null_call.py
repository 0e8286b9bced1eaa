"""Steps from an address where no code is, to which a function has called through a null or stray pointer.

It answers only for an exact pc in no executable memory.  No instruction can have run there, so the return
address is still where the call has left it.  The row is a guess, because a jump or a return may have led
there as well.
"""

from sfsample.core.arch import Arch
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import IsCode
from sfsample.unwind.row import UnwindRow, entry_row
from sfsample.unwind.stepper import ALL_PCS, PcRange

_PAGE = 4096  # bytes


class NullCallStepper:
    """Steps to the function that called.  `is_code` says whether an address of the process is executable."""

    found = Found.NULL_CALL

    def __init__(self, is_code: IsCode = lambda address: address >= _PAGE) -> None:
        self._is_code = is_code  # default: Linux does not map the page at address 0

    def mapped(self, is_code: IsCode) -> "NullCallStepper":
        """Return the stepper for the process whose executable addresses `is_code` knows."""
        return NullCallStepper(is_code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that holds at the first instruction of a function."""
        may_be_call = module is None and frame.exact and not self._is_code(frame.pc)
        return entry_row(arch)._replace(guess=True) if may_be_call else None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return all addresses: the answer is None anywhere in a module."""
        return ALL_PCS
