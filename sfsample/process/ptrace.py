"""Makes the ptrace(2) requests of sfsample; the only module that imports python-ptrace.

python-ptrace's debugger is not used, because it attaches with PTRACE_ATTACH, which sends SIGSTOP.
PTRACE_SEIZE sends no signal.  The kernel lets the tracee run on when its tracer ends.

Source: ptrace(2); Linux include/uapi/linux/ptrace.h.
"""

import ctypes.util

from sfsample.core.arch import AMD64, Arch
from sfsample.core.snapshot import Registers
from sfsample.process.registers import NT_ARM_PAC_MASK, decode, layout_of, with_pac_mask
from sfsample.process.vm import Iovec

# To find the C library, ctypes would start ldconfig, or gcc from PATH.  CDLL(None) starts no program.
_search = ctypes.util.find_library
ctypes.util.find_library = lambda name: None  # noqa: ARG005 - the parameter has this name there

from ptrace import PtraceError  # noqa: E402
from ptrace.binding.func import PTRACE_DETACH, PTRACE_POKEUSER, ptrace  # noqa: E402

ctypes.util.find_library = _search

__all__ = ["PtraceError", "RegisterReader", "detach", "interrupt", "poke_register", "seize", "signal_of"]

PTRACE_GETSIGINFO, PTRACE_GETREGSET, PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4202, 0x4204, 0x4206, 0x4207
PTRACE_EVENT_STOP = 128
_ALL_BITS = (1 << 64) - 1


def seize(tid: int) -> None:
    """Become the tracer of a thread, which runs on.  Raises PtraceError."""
    ptrace(PTRACE_SEIZE, tid)


def _succeeds(request: int, tid: int, address: int = 0, data: int = 0) -> bool:
    try:
        ptrace(request, tid, address, data)
    except PtraceError:
        return False
    return True


def interrupt(tid: int) -> bool:
    """Ask a tracee to stop; a second call changes nothing.  False: the thread is no tracee, or has ended."""
    return _succeeds(PTRACE_INTERRUPT, tid)


def detach(tid: int, signal_number: int) -> bool:
    """Let a stopped tracee run on with a signal (0: none).  False: the tracee runs, or was killed."""
    return _succeeds(PTRACE_DETACH, tid, 0, signal_number)


def signal_of(tid: int) -> int:
    """Return the signal that stopped a tracee; 0: PTRACE_INTERRUPT stopped it."""
    info = (ctypes.c_int * 32)()  # siginfo_t: si_signo, si_errno, si_code, ...
    try:
        ptrace(PTRACE_GETSIGINFO, tid, 0, ctypes.addressof(info))
    except PtraceError:
        return 0
    return 0 if info[2] >> 8 == PTRACE_EVENT_STOP else info[0]


def poke_register(tid: int, offset: int, value: int) -> bool:
    """Write a word of a stopped tracee's `struct user`; False: the tracee was killed."""
    return _succeeds(PTRACE_POKEUSER, tid, offset, value)


class RegisterReader:
    """Reads the registers of one stopped tracee at a time into a buffer that is allocated beforehand."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self._layout = layout_of(arch)
        self.words = (ctypes.c_ulonglong * (self._layout.size // 8))()  # words that the kernel wrote
        self._sets = []
        at = ctypes.addressof(self.words)
        for register_set in self._layout.sets:
            vector = Iovec(at, register_set.size)
            self._sets.append((register_set.note, ctypes.addressof(vector), vector, register_set.size))
            at += register_set.size
        self._sp = self._layout.word(arch.sp)
        self._mask_unknown = arch.ra_mask != _ALL_BITS

    def read(self, tid: int) -> int | None:
        """Read the registers of a stopped thread; return sp.  None: the thread was killed meanwhile."""
        try:
            for note, vector_at, vector, size in self._sets:
                vector.len = size  # size of the buffer; the kernel replaces it by the number of bytes copied
                ptrace(PTRACE_GETREGSET, tid, note, vector_at)
            if self._mask_unknown:
                self._read_pac_mask(tid)
        except PtraceError:
            return None
        sp: int = self.words[self._sp]
        return sp

    @property
    def call(self) -> int | None:
        """Number of the system call in which the thread was; None: no call, or another machine than x86-64.

        Source: Linux arch/x86/entry: `orig_ax` is -1 after an interrupt, an exception and sigreturn.
        """
        known = self._layout.core_words
        number = self.words[known.number] if known and self.arch.machine == AMD64.machine else _ALL_BITS
        return None if number >> 63 else number

    def _read_pac_mask(self, tid: int) -> None:
        """Read the mask of the authentication code in return addresses, if the CPU makes such codes."""
        words = (ctypes.c_ulonglong * 2)()
        vector = Iovec(ctypes.addressof(words), ctypes.sizeof(words))
        self._mask_unknown = False
        try:
            ptrace(PTRACE_GETREGSET, tid, NT_ARM_PAC_MASK, ctypes.addressof(vector))
        except PtraceError:
            return
        self.arch = with_pac_mask(self.arch, bytes(words))

    def by_dwarf_number(self) -> Registers:
        """Return the registers of the last `read`, by DWARF number."""
        raw, registers = memoryview(self.words).cast("B"), Registers()
        for register_set in self._layout.sets:
            registers |= decode(register_set, raw, self.arch)
            raw = raw[register_set.size :]
        return registers
