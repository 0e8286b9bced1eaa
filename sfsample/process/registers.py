"""Register sets as the kernel hands them out, by DWARF number.

Law: the same bytes come from PTRACE_GETREGSET and from the notes of a core file, and are understood here
only.  Raw sets, because python-ptrace's structures are missing one machine (s390x) and know only the
machine they run on.

Source: Linux include/uapi/linux/elf.h (note types); x86 `struct user_regs_struct` (asm/user_64.h);
arm64 `struct user_pt_regs` (uapi/asm/ptrace.h); s390 `s390_regs` and `s390_fp_regs` (uapi/asm/ptrace.h);
of perf events arch/*/include/uapi/asm/perf_regs.h.
"""

from struct import unpack_from
from typing import NamedTuple

from sfsample.core.arch import S390X_FPRS, Arch
from sfsample.core.snapshot import Registers

NT_PRSTATUS, NT_PRFPREG, NT_ARM_PAC_MASK = 1, 2, 0x406


class RegisterSet(NamedTuple):
    """One set: its note type, its size, and (DWARF number, index of its 8-byte word) for each register."""

    note: int
    size: int
    words: tuple[tuple[int, int], ...]


class RegisterLayout(NamedTuple):
    """The sets that hold what unwinding needs, and what tells an interrupted system call.

    `result` is the DWARF number of the register with a system call's result; `call` the size of the calling
    instruction and the bytes that it begins with.
    """

    sets: tuple[RegisterSet, ...]
    result: int
    call: tuple[int, bytes]

    @property
    def size(self) -> int:
        """Bytes of all sets together."""
        return sum(one.size for one in self.sets)

    def word(self, number: int) -> int:
        """Return the position of a register of the first set, in 8-byte words."""
        return dict(self.sets[0].words)[number]


# rax rdx rcx rbx rsi rdi rbp rsp r8-r15 rip
_AMD64_ORDER = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)
# a leaf function of s390x may keep its return address in a floating-point register
_S390X_GPRS = RegisterSet(NT_PRSTATUS, 216, ((65, 1), *((n, 2 + n) for n in range(16))))
_S390X_FPRS = RegisterSet(NT_PRFPREG, 136, tuple((16 + i, 1 + n) for i, n in enumerate(S390X_FPRS)))

_LAYOUTS = {  # by e_machine
    62: RegisterLayout((RegisterSet(NT_PRSTATUS, 216, tuple(enumerate(_AMD64_ORDER))),), 0, (2, b"\x0f\x05")),
    183: RegisterLayout(
        (RegisterSet(NT_PRSTATUS, 272, tuple((n, n) for n in range(33))),), 0, (4, b"\x01\0\0\xd4")
    ),
    22: RegisterLayout((_S390X_GPRS, _S390X_FPRS), 2, (2, b"\x0a")),
}


def layout_of(arch: Arch) -> RegisterLayout:
    """Return the layout of an architecture's register sets."""
    return _LAYOUTS[arch.machine]


def decode(one: RegisterSet, raw: bytes | bytearray | memoryview, arch: Arch) -> Registers:
    """Return the registers of one set by DWARF number; `raw` holds at least `one.size` bytes."""
    count = one.size // 8
    words = unpack_from(f"{'<' if arch.byteorder == 'little' else '>'}{count}Q", raw)
    return {number: words[index] for number, index in one.words}


def pac_free(arch: Arch, raw: bytes | bytearray | memoryview) -> Arch:
    """Return the architecture with the process's own mask; `raw` is NT_ARM_PAC_MASK (data, code)."""
    order = "<" if arch.byteorder == "little" else ">"
    mask: int = unpack_from(f"{order}2Q", raw)[1]
    return arch._replace(ra_mask=~mask & (1 << 64) - 1) if mask else arch


# -- as perf events hand them out: asked for by a mask, in the order of its bits

_S390X_EVENT_FPRS = tuple(16 + S390X_FPRS.index(n) for n in range(16))
_EVENTS = {  # by e_machine: (bit, DWARF number)
    # ax bx cx dx si di bp sp ip; the flags and segments are left out; r8..r15
    62: (*enumerate((0, 3, 2, 1, 4, 5, 6, 7, 16)), *((8 + n, n) for n in range(8, 16))),
    183: tuple((n, n) for n in range(33)),
    22: (*((n, n) for n in range(16)), *((16 + n, f) for n, f in enumerate(_S390X_EVENT_FPRS)), (33, 65)),
}


def event_registers(arch: Arch) -> tuple[tuple[int, ...], int]:
    """Return the DWARF numbers of the registers in a sample, and the mask that asks for them."""
    pairs = sorted(_EVENTS[arch.machine])
    return tuple(number for _, number in pairs), sum(1 << bit for bit, _ in pairs)
