"""Facts of each architecture, as one table.

Law: code asks this table, it never branches on an architecture's name.  Register numbers are
DWARF's: AMD64 psABI table 3.36; AADWARF64 section 4.1; s390x ELF ABI supplement, DWARF mapping.
A frame's registers are a `dict[int, int]` keyed by these numbers; an absent key is an unknown value.

AArch64 user code lies below 2**48 unless a program asks for more, and PAC fills what is above; who knows the
process's own mask (ptrace's NT_ARM_PAC_MASK) puts its complement in place of `ra_mask` with `_replace`.
"""

from typing import Literal, NamedTuple

ByteOrder = Literal["little", "big"]


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
    sp_adjust: int = 0  # caller's sp = CFA + sp_adjust (s390x: CFA is sp at entry + 160)
    ra_mask: int = (1 << 64) - 1  # what remains of a signed return address without its authentication code


AMD64 = Arch("x86_64", 62, "little", sp=7, fp=6, ra=16, pc=16,
             callee_saved=frozenset((3, 6, 12, 13, 14, 15)), red_zone=128)  # fmt: skip
AARCH64 = Arch("aarch64", 183, "little", sp=31, fp=29, ra=30, pc=32,
               callee_saved=frozenset(range(19, 30)), red_zone=0,
             ra_mask=(1 << 48) - 1)  # fmt: skip
AARCH64_BE = AARCH64._replace(name="aarch64_be", byteorder="big")
S390X = Arch("s390x", 22, "big", sp=15, fp=11, ra=14, pc=65,
             callee_saved=frozenset((*range(6, 14), *range(24, 32))), red_zone=0, sp_adjust=-160)  # fmt: skip

ARCHES = (AMD64, AARCH64, AARCH64_BE, S390X)


def arch_of(machine: int, byteorder: str) -> Arch | None:
    """Return the architecture of an ELF header's e_machine and EI_DATA, or None when we have no facts."""
    return next((a for a in ARCHES if (a.machine, a.byteorder) == (machine, byteorder)), None)
