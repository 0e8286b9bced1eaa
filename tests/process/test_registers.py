"""Register sets of the kernel are decoded into registers by DWARF number.

The layouts are compared with the fields of the kernel's structures in <asm/ptrace.h> and <sys/user.h>.
"""

from struct import pack

import pytest

from sfsample.core.arch import AARCH64, AARCH64_BE, AMD64, ARCHES, S390X
from sfsample.core.arch_types import NT_PRFPREG, NT_PRSTATUS
from sfsample.process.registers import decode, layout_of, with_pac_mask

# struct user_regs_struct
AMD64_FIELDS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
# psABI figure 3.36
AMD64_NUMBERS = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"),
)
FS_BASE = 58
# s390x ELF ABI supplement, table "DWARF register number mapping"
S390X_NUMBERS = (
    *("f0", "f2", "f4", "f6", "f1", "f3", "f5", "f7"),
    *("f8", "f10", "f12", "f14", "f9", "f11", "f13", "f15"),
)


def test_amd64_register_set_is_decoded():
    (general,) = layout_of(AMD64).sets
    raw = pack(f"<{len(AMD64_FIELDS)}Q", *range(len(AMD64_FIELDS)))

    assert (general.note, general.size) == (NT_PRSTATUS, len(raw))
    assert decode(general, raw, AMD64) == {
        number: AMD64_FIELDS.index(name) for number, name in (*enumerate(AMD64_NUMBERS), (FS_BASE, "fs_base"))
    }


@pytest.mark.parametrize("arch", [AARCH64, AARCH64_BE])
def test_aarch64_register_set_is_decoded(arch):
    """struct user_pt_regs: regs[31], sp, pc, pstate."""
    (general,) = layout_of(arch).sets
    raw = pack("<34Q" if arch is AARCH64 else ">34Q", *range(100, 134))

    assert (general.note, general.size) == (NT_PRSTATUS, len(raw))
    assert decode(general, raw, arch) == {number: 100 + number for number in range(33)}


def test_s390x_register_sets_are_decoded():
    """s390_regs: psw mask, psw address, gprs[16], acrs[16] of 4 bytes, orig_gpr2; s390_fp_regs: fpc, fprs."""
    general, floating = layout_of(S390X).sets
    raw = pack(">18Q16IQ", *range(100, 118), *range(16), 0)
    fprs = pack(">II16Q", 1, 2, *range(200, 216))

    assert (general.note, general.size) == (NT_PRSTATUS, len(raw))
    assert decode(general, raw, S390X) == {65: 101} | {number: 102 + number for number in range(16)}
    assert (floating.note, floating.size) == (NT_PRFPREG, len(fprs))
    assert decode(floating, fprs, S390X) == {
        16 + i: 200 + int(name[1:]) for i, name in enumerate(S390X_NUMBERS)}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_layout_has_the_registers_that_unwinding_needs(arch):
    layout = layout_of(arch)
    numbers = {number for register_set in layout.sets for number, _ in register_set.words}

    assert {arch.sp, arch.pc, arch.fp, arch.ra, layout.result} | arch.callee_saved <= numbers
    assert dict(layout.sets[0].words)[arch.sp] == layout.word(arch.sp)


def test_mask_of_signed_return_addresses_is_decoded():
    """The kernel's value with addresses of 52 bits: the authentication code is in bits 52 to 54."""
    raw = pack("<2Q", 0x70000000000000, 0x70000000000000)

    assert with_pac_mask(AARCH64, raw).ra_mask == 0xFF8FFFFFFFFFFFFF
    assert with_pac_mask(AARCH64, bytes(16)) is AARCH64
