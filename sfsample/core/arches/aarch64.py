"""AArch64, little and big endian.

User code lies below 2**48 unless a program asks for more address space.  Pointer authentication (PAC) uses
the upper bits.  If the kernel gives a mask (NT_ARM_PAC_MASK), the mask's complement replaces `ra_mask`.

Source: AADWARF64 section 4.1 (DWARF numbers); AAPCS64 section 6.1.1 (callee-saved registers); Linux
arch/arm64/include/uapi/asm/sigcontext.h, ucontext.h, ptrace.h (`struct user_pt_regs`) and perf_regs.h,
arch/arm64/kernel/signal.c; syscall(2), "Architecture calling conventions".
"""

from sfsample.core.arch_types import NT_PRSTATUS, Arch, RegisterLayout, RegisterSet, SignalFrame

# At the trampoline, siginfo (128 bytes) lies at sp.  `struct ucontext` follows, with `uc_mcontext` at byte
# 176: fault_address, x0..x30, sp, pc, pstate.  16-byte aligned records follow; the first has FPU registers.
_SAVED = (*((n, 128 + 176 + 8 + 8 * n) for n in range(32)), (32, 128 + 176 + 8 + 8 * 32))

AARCH64 = Arch(
    "aarch64", 183, "little", sp=31, fp=29, ra=30, pc=32,
    callee_saved=frozenset(range(19, 30)), red_zone=0, entry_cfa=0,
    # mov x8,#139; svc #0, in the vdso (__kernel_rt_sigreturn)
    signal_frames=(SignalFrame(bytes.fromhex("681180d2010000d4"), 4, _SAVED),),
    ra_mask=(1 << 48) - 1,
)  # fmt: skip
# byte order of the data; the instructions are always little endian
AARCH64_BE = AARCH64._replace(name="aarch64_be", byteorder="big")

LAYOUT = RegisterLayout(
    # x0 to x30, sp and pc have their DWARF numbers; pstate is left out
    sets=(RegisterSet(NT_PRSTATUS, 272, tuple((n, n) for n in range(33))),),
    event_bits=tuple((n, n) for n in range(33)),
    result=0,
    call=(4, b"\x01\0\0\xd4"),
    arguments=(0, 1, 2, 3, 4, 5),
)
