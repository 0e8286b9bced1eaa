"""x86-64.

Source: AMD64 psABI figure 3.4 (callee-saved registers), section 3.2.2 (red zone), table 3.36 (DWARF numbers);
Linux arch/x86/include/uapi/asm/sigcontext.h, ucontext.h and perf_regs.h,
asm/user_64.h (`struct user_regs_struct`), arch/x86/kernel/signal.c; syscall(2), "Architecture calling
conventions"; glibc's tls.h and nptl/descr.h (`struct pthread`).
"""

from errno import ENOSYS

from sfsample.core.arch_types import NT_PRSTATUS, Arch, CoreWords, RegisterLayout, RegisterSet, SignalFrame

# At the trampoline, sp points to `struct ucontext`.  Its `uc_mcontext`, at byte 40, begins with
# r8..r15 di si bp bx dx ax cx sp ip.
_SIGCONTEXT = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16)
_SAVED = tuple((number, 40 + 8 * i) for i, number in enumerate(_SIGCONTEXT))

AMD64 = Arch(
    "x86_64", 62, "little", sp=7, fp=6, ra=16, pc=16,
    callee_saved=frozenset((3, 6, 12, 13, 14, 15)), red_zone=128, entry_cfa=8, pushed_ra=-8,
    signal_frames=tuple(
        # mov $15,%rax; syscall.  The move has a 64-bit operand (glibc, musl), or 32 bits (Go, others).
        SignalFrame(bytes.fromhex(code), 2, _SAVED)
        for code in ("48c7c00f0000000f05", "b80f0000000f05")
    ),
)  # fmt: skip

# indices of rax rdx rcx rbx rsi rdi rbp rsp r8-r15 rip in `struct user_regs_struct`
_USER_REGS = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)

LAYOUT = RegisterLayout(
    sets=(RegisterSet(NT_PRSTATUS, 216, (*enumerate(_USER_REGS), (58, 21))),),  # 58: fs.base
    # ax bx cx dx si di bp sp ip, then r8..r15; the flags and segment registers (bits 9 to 15) are left out
    event_bits=(*enumerate((0, 3, 2, 1, 4, 5, 6, 7, 16)), *((8 + n, n) for n in range(8, 16))),
    result=0,
    call=(2, b"\x0f\x05"),
    arguments=(5, 4, 1, 10, 8, 9),
    pending_result=(1 << 64) - ENOSYS,  # entry_SYSCALL_64 stores -ENOSYS before it dispatches the call
    core_words=CoreWords(number=15, first_argument=14, thread=21, tid_at=0x2D0),  # orig_rax, rdi, fs_base
)
