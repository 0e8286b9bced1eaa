"""Lists the machines (processor architectures).  No code branches on the name of a machine.

To add a machine, write its file in `core/arches/` and name it in `ARCHES` and `LAYOUTS`.
"""

from sfsample.core.arch_types import Arch, ByteOrder, RegisterLayout, SignalFrame
from sfsample.core.arches import aarch64, s390x, x86_64
from sfsample.core.arches.aarch64 import AARCH64, AARCH64_BE
from sfsample.core.arches.s390x import S390X
from sfsample.core.arches.x86_64 import AMD64

__all__ = ["AARCH64", "AARCH64_BE", "AMD64", "ARCHES", "LAYOUTS", "S390X", "Arch", "ByteOrder",
           "RegisterLayout", "SignalFrame", "arch_of"]  # fmt: skip

ARCHES = (AMD64, AARCH64, AARCH64_BE, S390X)
LAYOUTS: dict[int, RegisterLayout] = {  # key: e_machine
    AMD64.machine: x86_64.LAYOUT,
    AARCH64.machine: aarch64.LAYOUT,
    S390X.machine: s390x.LAYOUT,
}


def arch_of(machine: int, byteorder: str) -> Arch | None:
    """Return the machine for e_machine and EI_DATA of an ELF header; None: it is not supported."""
    return next((arch for arch in ARCHES if (arch.machine, arch.byteorder) == (machine, byteorder)), None)
