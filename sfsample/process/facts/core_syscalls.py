"""In which system call a thread was when its core file was written, and what the thread calls itself.

Law: out of its registers and of what was dumped; believed only if the kernel had set the call aside (its
result says so, and a system call instruction is before the pc).  Of x86-64 and s390x, each on such a machine,
which has the names; AArch64's registers have lost the first argument.  Elsewhere None.

Source: Linux arch/x86/include/asm/user_64.h (`user_regs_struct`), arch/s390/include/uapi/asm/ptrace.h
(`s390_regs`), include/linux/errno.h (ERESTARTSYS); glibc's tls.h and nptl/descr.h.
"""

import os
from struct import unpack_from
from typing import NamedTuple

from sfsample.core.arch import AMD64, S390X
from sfsample.core.memory import Memory
from sfsample.formats.elf.core_file import NT_PRSTATUS, CoreThread
from sfsample.process.core_process import CoreTarget
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import Call, decode
from sfsample.process.facts.thread_facts import Syscall
from sfsample.process.syscall_names import syscall_name


class _Kind(NamedTuple):
    """Where a machine's registers stand among the words of NT_PRSTATUS, and how it calls the system.

    `number_in_code`: the instruction's second byte is the number, unless it is 0.  `tid_at`: in the struct
    pthread to which the word `thread` points.
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


_KINDS = {
    # orig_rax; rdi rsi rdx r10 r8 r9; rax; fs_base
    AMD64: _Kind(b"\x0f\x05", 15, (14, 13, 12, 7, 9, 8), 10, 16, 19, 21, 0x2D0),
    # r1; orig_gpr2 r3 to r7; r2; the first two access registers
    S390X: _Kind(b"\x0a", 3, (26, 5, 6, 7, 8, 9), 4, 1, 17, 18, 0xD0, number_in_code=True),
}
_WORDS = 27  # so many have both
_CALL = 2
_SET_ASIDE = (-4, -512, -513, -514, -516)  # EINTR, ERESTARTSYS, -NOINTR, -NOHAND, ERESTART_RESTARTBLOCK
_SIGN = 1 << 63


def core_call(core: CoreTarget, thread: CoreThread) -> Call | None:
    """Return the system call that a thread slept in, with what it refers to, as far as that was dumped."""
    kind, words = _registers(core, thread)
    if kind is None or _signed(words[kind.result]) not in _SET_ASIDE:
        return None
    code = core.memory.read(words[kind.pc] - _CALL, _CALL)
    if code is None or not code.startswith(kind.code):
        return None
    number = (kind.number_in_code and code[1]) or _signed(words[kind.number])
    if number < 0:
        return None
    arguments = tuple(words[at] for at in kind.arguments)
    call = Syscall(number, arguments, words[kind.sp], words[kind.pc])
    return decode(call, syscall_name(number), _Dumped(core.memory))


def own_tid(core: CoreTarget, thread: CoreThread) -> int:
    """Return the id that glibc knows the thread by: gcore writes those of its own pid namespace."""
    kind, words = _registers(core, thread)
    start = words[kind.thread] if kind else 0
    if kind is None or not start or {core.memory.word(start), core.memory.word(start + 16)} != {start}:
        return thread.tid
    data = core.memory.read(start + kind.tid_at, 4)
    return int.from_bytes(data, core.arch.byteorder) if data else thread.tid


def _registers(core: CoreTarget, thread: CoreThread) -> tuple[_Kind | None, tuple[int, ...]]:
    raw, order = thread.sets.get(NT_PRSTATUS, b""), "<" if core.arch.byteorder == "little" else ">"
    kind = _KINDS.get(core.arch) if os.uname().machine == core.arch.name else None
    if kind is None or len(raw) < 8 * _WORDS:
        return None, ()
    return kind, unpack_from(f"{order}{_WORDS}Q", raw)


def _signed(word: int) -> int:
    return (word ^ _SIGN) - _SIGN


class _Dumped:
    """Looks up in a core file what calls refer to: of descriptors and clocks it knows nothing."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def descriptor(self, _fd: int) -> Descriptor | None:
        return None

    def read(self, address: int, size: int) -> bytes | None:
        return self._memory.read(address, size)

    def now(self, _clock: int) -> float | None:
        return None
