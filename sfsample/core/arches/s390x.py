"""s390x.

Source: s390x ELF ABI supplement (DWARF register mapping, callee-saved registers); Linux
arch/s390/include/uapi/asm/sigcontext.h, ucontext.h, ptrace.h (`s390_regs`, `s390_fp_regs`) and perf_regs.h,
arch/s390/kernel/signal.c; syscall(2), "Architecture calling conventions"; glibc's
tls.h and nptl/descr.h (`struct pthread`).
"""

from sfsample.core.arch_types import (
    NT_PRFPREG,
    NT_PRSTATUS,
    Arch,
    CoreWords,
    RegisterLayout,
    RegisterSet,
    SignalFrame,
)

_FPRS = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)  # f-number of DWARF registers 16..31


def _signal_frame(code: str, sregs: int) -> SignalFrame:
    """Return a signal frame with `_sigregs` (psw, gprs, access registers, fpc, fprs) at offset `sregs`."""
    gprs = [(n, sregs + 16 + 8 * n) for n in range(16)]
    fprs = [(16 + i, sregs + 216 + 8 * n) for i, n in enumerate(_FPRS)]
    saved = (*gprs, *fprs, (65, sregs + 8))
    return SignalFrame(bytes.fromhex(code), 2, saved)


S390X = Arch(
    "s390x", 22, "big", sp=15, fp=11, ra=14, pc=65,
    callee_saved=frozenset((*range(6, 14), *range(24, 32))), red_zone=0, entry_cfa=160, sp_adjust=-160,
    frame_records=False,
    # svc 173, siginfo at 168 and ucontext at 296; svc 119 (no SA_SIGINFO), sigcontext at 160
    signal_frames=(_signal_frame("0aad", 336), _signal_frame("0a77", 176)),
)  # fmt: skip

LAYOUT = RegisterLayout(
    sets=(
        RegisterSet(NT_PRSTATUS, 216, ((65, 1), *((n, 2 + n) for n in range(16)))),
        # floating-point registers: a leaf function may save its return address in one of them
        RegisterSet(NT_PRFPREG, 136, tuple((16 + i, 1 + n) for i, n in enumerate(_FPRS))),
    ),
    # r0..r15, f0..f15, and the psw's address, which is the pc; the psw's mask (bit 32) is left out
    event_bits=(*((n, n) for n in range(16)), *((16 + n, 16 + _FPRS.index(n)) for n in range(16)), (33, 65)),
    result=2,
    call=(2, b"\x0a"),
    arguments=(2, 3, 4, 5, 6, 7),
    # r1, orig_gpr2, the first two access registers
    core_words=CoreWords(number=3, first_argument=26, thread=18, tid_at=0xD0),
)
