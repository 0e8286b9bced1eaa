"""Finds the system call that a thread was in when its core file was written, and its tid as glibc knows it.

A system call is believed only if the kernel had interrupted it (the result register says so) and a system
call instruction lies before the pc.  Works for x86-64 and s390x, each only on such a machine: the names of
system calls come from the machine that runs sfsample.  In AArch64's registers the result has replaced the
first argument.  Elsewhere the answer is None.

Source: Linux arch/x86/include/asm/user_64.h (`user_regs_struct`), arch/s390/include/uapi/asm/ptrace.h
(`s390_regs`), include/linux/errno.h (ERESTARTSYS); glibc's tls.h and nptl/descr.h.
"""

import os
from struct import unpack_from
from typing import NamedTuple

from sfsample.core.arch import AMD64, S390X
from sfsample.formats.elf.core_file import NT_PRSTATUS, CoreThread
from sfsample.process.core_process import CoreProcess
from sfsample.process.facts.syscall_arguments import DecodedSyscall, TargetLookup, decode_syscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.syscall_names import syscall_name


class _SyscallAbi(NamedTuple):
    """How a machine makes system calls; numbers are indices of the words of NT_PRSTATUS.

    `code` is how the instruction begins.  `number_in_code`: its second byte is the number, unless it is 0.
    Word `thread` points to struct pthread, which has the tid at `tid_at`.
    """

    code: bytes
    number: int
    arguments: tuple[int, ...]
    result: int
    pc: int
    sp: int
    thread: int
    tid_at: int
    number_in_code: bool = False


_ABIS = {
    # orig_rax; rdi rsi rdx r10 r8 r9; rax; fs_base
    AMD64: _SyscallAbi(b"\x0f\x05", 15, (14, 13, 12, 7, 9, 8), 10, 16, 19, 21, 0x2D0),
    # r1; orig_gpr2 r3 to r7; r2; the first two access registers
    S390X: _SyscallAbi(b"\x0a", 3, (26, 5, 6, 7, 8, 9), 4, 1, 17, 18, 0xD0, number_in_code=True),
}
_PRSTATUS_WORDS = 27  # of 8 bytes, on both machines
_INSTRUCTION_BYTES = 2  # of a system call, on both machines
_INTERRUPTED = (-4, -512, -513, -514, -516)  # EINTR, ERESTARTSYS, -NOINTR, -NOHAND, ERESTART_RESTARTBLOCK
_SIGN_BIT = 1 << 63


def core_call(core: CoreProcess, thread: CoreThread) -> DecodedSyscall | None:
    """Return the system call that a thread slept in, with what it refers to, as far as that was dumped."""
    abi, words = _registers(core, thread)
    if abi is None or _signed(words[abi.result]) not in _INTERRUPTED:
        return None
    code = core.memory.read(words[abi.pc] - _INSTRUCTION_BYTES, _INSTRUCTION_BYTES)
    if code is None or not code.startswith(abi.code):
        return None
    number = (abi.number_in_code and code[1]) or _signed(words[abi.number])
    if number < 0:
        return None
    arguments = tuple(words[at] for at in abi.arguments)
    info = SyscallInfo(number, arguments, words[abi.sp], words[abi.pc])
    return decode_syscall(info, syscall_name(number), TargetLookup(core.memory.read))


def own_tid(core: CoreProcess, thread: CoreThread) -> int:
    """Return the tid that glibc knows the thread by; gcore writes the tid in the pid namespace of gcore."""
    abi, words = _registers(core, thread)
    start = words[abi.thread] if abi else 0
    if abi is None or not start or {core.memory.word(start), core.memory.word(start + 16)} != {start}:
        return thread.tid
    data = core.memory.read(start + abi.tid_at, 4)
    return int.from_bytes(data, core.arch.byteorder) if data else thread.tid


def _registers(core: CoreProcess, thread: CoreThread) -> tuple[_SyscallAbi | None, tuple[int, ...]]:
    raw, order = thread.sets.get(NT_PRSTATUS, b""), "<" if core.arch.byteorder == "little" else ">"
    abi = _ABIS.get(core.arch) if os.uname().machine == core.arch.name else None
    if abi is None or len(raw) < 8 * _PRSTATUS_WORDS:
        return None, ()
    return abi, unpack_from(f"{order}{_PRSTATUS_WORDS}Q", raw)


def _signed(word: int) -> int:
    return (word ^ _SIGN_BIT) - _SIGN_BIT
