"""Facts of each architecture, as one table.

Law: code asks this table, it never branches on an architecture's name.  Register numbers are
DWARF's: AMD64 psABI table 3.36; AADWARF64 section 4.1; s390x ELF ABI supplement, DWARF mapping.
A frame's registers are a `dict[int, int]` keyed by these numbers; an absent key is an unknown value.

AArch64 user code lies below 2**48 unless a program asks for more, and PAC fills what is above; who knows the
process's own mask (ptrace's NT_ARM_PAC_MASK) puts its complement in place of `ra_mask` with `_replace`.

Signal frames: Linux arch/*/include/uapi/asm/sigcontext.h, ucontext.h, and arch/*/kernel/signal.c.
"""

from typing import Literal, NamedTuple

ByteOrder = Literal["little", "big"]


class SignalFrame(NamedTuple):
    """What the kernel puts on the stack for a handler.  Offsets are from sp at the trampoline.

    A stack copy is searched for `mark` (b"": for the address of the trampoline, which a handler keeps on the
    stack); the interrupted sp is saved `mark_to_sp` bytes from there.
    """

    code: bytes  # the trampoline: it loads the number of the system call, if it must, and calls
    call: int  # the size of the calling instruction, its last
    saved: tuple[tuple[int, int], ...]  # DWARF number -> offset, of every register of the interrupted code
    mark: bytes
    mark_to_sp: int


class Arch(NamedTuple):
    """What an unwinder must know of a machine.  Sizes and offsets are bytes."""

    name: str
    machine: int  # ELF e_machine
    byteorder: ByteOrder
    sp: int
    fp: int
    ra: int  # the register that a call leaves the return address in (AMD64: the column itself)
    pc: int  # the number under which a frame's pc is kept among its registers
    callee_saved: frozenset[int]  # survive a call unless CFI says otherwise
    red_zone: int  # bytes below sp that the ABI lets a leaf function use
    entry_cfa: int  # CFA - sp at the first instruction of a function
    signal_frames: tuple[SignalFrame, ...]
    pushed_ra: int | None = None  # where a call puts the return address, from the CFA; None: into `ra`
    # the convention of the frame pointer: it points to two words, the caller's fp and the return address
    frame_records: bool = True
    record_ends_frame: bool = False  # and that pair is the uppermost of the frame, so the CFA is known
    sp_adjust: int = 0  # caller's sp = CFA + sp_adjust (s390x: CFA is sp at entry + 160)
    ra_mask: int = (1 << 64) - 1  # what remains of a signed return address without its authentication code


# -- AMD64: at the trampoline sp points to `struct ucontext`, with `uc_mcontext` 40 bytes into it

# r8..r15 di si bp bx dx ax cx sp ip
_AMD64_SIGCONTEXT = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16)
_AMD64_SAVED = tuple((number, 40 + 8 * i) for i, number in enumerate(_AMD64_SIGCONTEXT))

AMD64 = Arch(
    "x86_64", 62, "little", sp=7, fp=6, ra=16, pc=16,
    callee_saved=frozenset((3, 6, 12, 13, 14, 15)), red_zone=128, entry_cfa=8, pushed_ra=-8,
    record_ends_frame=True,
    signal_frames=tuple(
        # mov $15,%rax; syscall -- with a 64-bit immediate move (glibc, musl) or a 32-bit one (Go, others);
        # the trampoline's address was on the stack as the handler's return address, right below
        SignalFrame(bytes.fromhex(code), 2, _AMD64_SAVED, b"", 8 + 160)
        for code in ("48c7c00f0000000f05", "b80f0000000f05")
    ),
)  # fmt: skip


# -- AArch64: siginfo (128 bytes) at sp, then `struct ucontext` with `uc_mcontext` 176 bytes into it, which is
# fault_address, x0..x30, sp, pc, pstate and, 16-aligned, records of which the first is the FPU's

_A64_SAVED = (*((n, 128 + 176 + 8 + 8 * n) for n in range(32)), (32, 128 + 176 + 8 + 8 * 32))

AARCH64 = Arch(
    "aarch64", 183, "little", sp=31, fp=29, ra=30, pc=32,
    callee_saved=frozenset(range(19, 30)), red_zone=0, entry_cfa=0,
    signal_frames=(
        # mov x8,#139; svc #0 -- in the vdso (__kernel_rt_sigreturn); FPSIMD_MAGIC and the size of the record
        SignalFrame(bytes.fromhex("681180d2010000d4"), 4, _A64_SAVED, bytes.fromhex("0180504610020000"), -32),
    ),
    ra_mask=(1 << 48) - 1,
)  # fmt: skip
# instructions are little-endian there too, data are not
AARCH64_BE = AARCH64._replace(
    name="aarch64_be", byteorder="big",
    signal_frames=tuple(f._replace(mark=bytes.fromhex("4650800100000210")) for f in AARCH64.signal_frames),
)  # fmt: skip


# -- s390x: 160 bytes for whom the handler calls, in which it saves the trampoline's address (r14, at 112)

S390X_FPRS = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)  # f-number of DWARF 16..31


def _s390x_frame(code: str, sregs: int) -> SignalFrame:
    """`sregs` is where `_sigregs` lies: psw, gprs, access registers, fpc, fprs."""
    gprs = [(n, sregs + 16 + 8 * n) for n in range(16)]
    fprs = [(16 + i, sregs + 216 + 8 * n) for i, n in enumerate(S390X_FPRS)]
    saved = (*gprs, *fprs, (65, sregs + 8))
    return SignalFrame(bytes.fromhex(code), 2, saved, b"", sregs + 16 + 8 * 15 - 112)


S390X = Arch(
    "s390x", 22, "big", sp=15, fp=11, ra=14, pc=65,
    callee_saved=frozenset((*range(6, 14), *range(24, 32))), red_zone=0, entry_cfa=160, sp_adjust=-160,
    frame_records=False,
    # svc 173, siginfo at 168 and ucontext at 296; svc 119 (no SA_SIGINFO), sigcontext at 160
    signal_frames=(_s390x_frame("0aad", 336), _s390x_frame("0a77", 176)),
)  # fmt: skip

ARCHES = (AMD64, AARCH64, AARCH64_BE, S390X)


def arch_of(machine: int, byteorder: str) -> Arch | None:
    """Return the architecture of an ELF header's e_machine and EI_DATA, or None when we have no facts."""
    return next((a for a in ARCHES if (a.machine, a.byteorder) == (machine, byteorder)), None)
