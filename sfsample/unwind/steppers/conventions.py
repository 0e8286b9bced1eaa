"""Steps by conventions of code that no table describes (JIT compilers, assembly, stripped files).

Every row is a guess, because code need not follow a convention.  The unwinder accepts the row only if the
caller's frame lies above and the return address follows a call.

Source: AMD64 psABI section 3.2.2 (push %rbp; mov %rsp,%rbp: the pair of words ends the frame); AAPCS64
section 6.4.6 (the pair may lie anywhere in the frame); s390x ELF ABI, "The Stack Frame" (r14 at 112).
"""

from functools import cache

from sfsample.core.arch import AARCH64, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import IsCode
from sfsample.unwind.row import UnwindRow, entry_row
from sfsample.unwind.stepper import ALL_PCS, PcRange

_PAGE = 4096  # bytes


class NullCallStepper:
    """Steps from an address without code: a function has called a null or stray pointer.

    The stepper has a row only for an exact pc for which `is_code` returns False.  No instruction has run, so
    the return address is where the call has stored it.  The row is a guess: a jump may have led to the pc.
    """

    found = Found.NULL_CALL

    def __init__(self, is_code: IsCode = lambda address: address >= _PAGE) -> None:
        self._is_code = is_code  # test of an address; default: Linux maps no page at address 0

    def mapped(self, is_code: IsCode) -> "NullCallStepper":
        """Return the stepper for one process; `is_code` tests an address of the process."""
        return NullCallStepper(is_code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row for the first instruction of a function."""
        may_be_call = module is None and frame.exact and not self._is_code(frame.pc)
        return entry_row(arch)._replace(guess=True) if may_be_call else None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return all addresses: the answer is None everywhere in a module."""
        return ALL_PCS


class FramePointerStepper:
    """Follows the chain of frame pointers.

    In a prologue or a leaf function, the step may skip the caller.  Only a table would show such a skip.
    Like gdb, the stepper assumes that saved fp and return address end the frame: JIT compilers and LLVM put
    the pair there.  GCC for AArch64 puts the pair at the other end of the frame, but GCC writes tables.
    """

    found = Found.FRAME_POINTER

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row of the machine; None if the machine has no such convention (s390x)."""
        # on AArch64 the kernel's vDSO has no tables, and the innermost function there is mostly a leaf
        if frame.exact and arch.machine == AARCH64.machine and module and module.path == "[vdso]":
            return entry_row(arch)._replace(guess=True)
        return _frame_pointer_row(arch)


@cache
def _frame_pointer_row(arch: Arch) -> UnwindRow | None:
    if not arch.frame_records:
        return None
    return UnwindRow(
        cfa=Rule(arch.fp, 16, deref=False),
        ra=Rule(CFA, -8, deref=True),
        registers=((arch.fp, Rule(CFA, -16, deref=True)),),
        guess=True,
        mangled=True,
    )
