"""In which system call a thread was when its core file was written, and what the thread calls itself.

Law: out of its registers and of what was dumped; believed only if the kernel had set the call aside (its
result says so, and a system call instruction is before the pc).  Of x86-64 only, on x86-64: elsewhere None.

Source: Linux arch/x86/include/asm/user_64.h (`user_regs_struct`), include/linux/errno.h (ERESTARTSYS).
"""

import os
from struct import Struct

from sfsample.formats.elf_core import NT_PRSTATUS, CoreThread
from sfsample.memory import Memory
from sfsample.target.calls import Call, decode
from sfsample.target.core import CoreTarget
from sfsample.target.descriptors import Descriptor
from sfsample.target.surroundings import THREAD_STRUCT
from sfsample.target.syscalls import syscall_name
from sfsample.target.thread_facts import Syscall

_AMD64 = 62
_REGISTERS = Struct("<27q")
_ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi rsi rdx r10 r8 r9
_RAX, _NUMBER, _PC, _SP, _FS = 10, 15, 16, 19, 21
_SET_ASIDE = (-4, -512, -513, -514, -516)  # EINTR, ERESTARTSYS, -NOINTR, -NOHAND, ERESTART_RESTARTBLOCK
_CALL = b"\x0f\x05"
_WORD = 0xFFFFFFFFFFFFFFFF


def core_call(core: CoreTarget, thread: CoreThread) -> Call | None:
    """Return the system call that a thread slept in, with what it refers to, as far as that was dumped."""
    words = _words(core, thread)
    if not words or words[_RAX] not in _SET_ASIDE or words[_NUMBER] < 0:
        return None
    pc = words[_PC] & _WORD
    if core.memory.read(pc - len(_CALL), len(_CALL)) != _CALL:
        return None
    arguments = tuple(words[at] & _WORD for at in _ARGUMENTS)
    call = Syscall(words[_NUMBER], arguments, words[_SP] & _WORD, pc)
    return decode(call, syscall_name(call.number), _Dumped(core.memory))


def own_tid(core: CoreTarget, thread: CoreThread) -> int:
    """Return the id that glibc knows the thread by: gcore writes those of its own pid namespace."""
    words = _words(core, thread)
    start = words[_FS] & _WORD if words else 0
    if not start or {core.memory.word(start), core.memory.word(start + 16)} != {start}:
        return thread.tid
    data = core.memory.read(start + THREAD_STRUCT, 4)
    return int.from_bytes(data, "little") if data else thread.tid


def _words(core: CoreTarget, thread: CoreThread) -> tuple[int, ...]:
    raw = thread.sets.get(NT_PRSTATUS, b"")
    if core.arch.machine != _AMD64 or os.uname().machine != "x86_64" or len(raw) < _REGISTERS.size:
        return ()
    return _REGISTERS.unpack_from(raw)


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
