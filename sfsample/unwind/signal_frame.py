"""Signal frames, recognised by the code bytes of the trampoline.

Law: the kernel's layout is ABI, so no table is needed and none is believed: SFrame cannot express it, and
hand-written CFI for it differs between C libraries.  Every register of the interrupted code is restored.

Source: Linux arch/x86/include/uapi/asm/sigcontext.h and ucontext.h: at the trampoline sp points to
`struct ucontext`; `uc_mcontext` lies 40 bytes into it.
"""

from sfsample.model import Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

# mov $15,%rax; syscall -- with a 64-bit immediate move (glibc, musl) or a 32-bit one (Go, others)
_AMD64_TRAMPOLINES = (bytes.fromhex("48c7c00f0000000f05"), bytes.fromhex("b80f0000000f05"))
_SP = 7
_MCONTEXT = 40
# DWARF numbers in the order of struct sigcontext: r8..r15 di si bp bx dx ax cx sp ip
_IN_ORDER = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16)
UCONTEXT_SP = _MCONTEXT + 8 * _IN_ORDER.index(_SP)

_SAVED = {number: Rule(_SP, _MCONTEXT + 8 * i, deref=True) for i, number in enumerate(_IN_ORDER)}
_AMD64_ROW = UnwindRow(
    cfa=_SAVED[_SP],
    ra=_SAVED[16],
    registers=tuple((number, rule) for number, rule in _SAVED.items() if number != 16),
    signal=True,
)


class SignalFrameStepper:
    """Steps from a signal trampoline to the interrupted code."""

    found = Found.SIGNAL_FRAME

    def row_at(self, frame: Frame, module: Module | None) -> UnwindRow | None:
        """Return the sigcontext row when `frame.pc` is at a trampoline's first instruction."""
        if module is None:
            return None
        for code in _AMD64_TRAMPOLINES:
            if module.code(frame.pc, len(code)) == code:
                return _AMD64_ROW
            # stopped inside: after the mov, at the syscall instruction, sp is still the same
            after_move = len(code) - 2
            if frame.exact and module.code(frame.pc - after_move, len(code)) == code:
                return _AMD64_ROW
        return None
