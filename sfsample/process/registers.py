"""Decodes register sets of the kernel into values by DWARF number.

PTRACE_GETREGSET and the notes of a core file have the same bytes.  The layouts come from `core/arches/`,
because python-ptrace has structures only for the machine on which it runs, and none for s390x.

Source: Linux include/uapi/linux/elf.h (note types).
"""

from struct import unpack_from

from sfsample.core.arch import LAYOUTS, Arch, RegisterLayout
from sfsample.core.arch_types import RegisterSet
from sfsample.core.snapshot import Registers

NT_ARM_PAC_MASK = 0x406


def layout_of(arch: Arch) -> RegisterLayout:
    """Return the layout of an architecture's register sets."""
    return LAYOUTS[arch.machine]


def decode(register_set: RegisterSet, raw: bytes | bytearray | memoryview, arch: Arch) -> Registers:
    """Return the registers of one set by DWARF number; `raw` holds at least `register_set.size` bytes."""
    count = register_set.size // 8
    words = unpack_from(f"{'<' if arch.byteorder == 'little' else '>'}{count}Q", raw)
    return {number: words[index] for number, index in register_set.words}


def with_pac_mask(arch: Arch, raw: bytes | bytearray | memoryview) -> Arch:
    """Return the architecture with the mask of return addresses from `raw` (a note NT_ARM_PAC_MASK)."""
    order = "<" if arch.byteorder == "little" else ">"
    mask: int = unpack_from(f"{order}2Q", raw)[1]  # data mask, code mask
    return arch._replace(ra_mask=~mask & (1 << 64) - 1) if mask else arch
