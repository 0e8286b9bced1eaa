"""A system call that fails because a thread was stopped in it begins again instead.

Law: one register of a stopped thread is written, with one value, and only where the kernel has just put EINTR
because of the stop: -EINTR becomes -ERESTARTNOHAND, which poll(2) and others return there by themselves.
What follows is the kernel's, on the way out: if a signal handler is to run, the program gets its EINTR after
all; if none is, the call begins anew, with its time-out from the start (it had just begun: a thread that has
long been asleep is not stopped).  Only calls that have done nothing when they fail so, nor have reached their
time-out (io_getevents may have); and only on x86-64: AArch64 decides before the stop, s390x was not tried.

Source: Linux arch/x86/kernel/signal.c, arch_do_signal_or_restart, which decides after the stop in get_signal;
fs/eventpoll.c, ipc/sem.c, fs/aio.c and do_sigtimedwait return -EINTR if a signal is pending and there was
nothing to return; arch/x86/entry: `orig_ax` is -1 outside a system call; syscalls/syscall_64.tbl.
"""

from errno import EINTR
from typing import TYPE_CHECKING

from sfsample.core.arch import AMD64, Arch
from sfsample.process.ptrace import poke_register
from sfsample.process.vm import read_memory

if TYPE_CHECKING:
    import ctypes

_IO_GETEVENTS = 208
_CALLS = {
    232: "epoll_wait", 281: "epoll_pwait", 441: "epoll_pwait2", 65: "semop", 220: "semtimedop",
    128: "rt_sigtimedwait", _IO_GETEVENTS: "io_getevents",
}  # fmt: skip
_ARGUMENT_5, _RESULT, _CALL, _PC = 9, 10, 15, 16  # words of struct user_regs_struct: r8, rax, orig_rax, rip
_MINUS_EINTR, _BEGIN_AGAIN = (1 << 64) - EINTR, (1 << 64) - 514  # the latter: -ERESTARTNOHAND, linux/errno.h
_SYSCALL = b"\x0f\x05"


def mend(tid: int, arch: Arch, words: "ctypes.Array[ctypes.c_ulonglong]") -> bool:
    """Have the call in which a thread was stopped begin again; `words` are the registers that it has.

    False: it was in none that fails by that, or nothing can be done.
    """
    if arch.machine != AMD64.machine or words[_RESULT] != _MINUS_EINTR or words[_CALL] not in _CALLS:
        return False
    if words[_CALL] == _IO_GETEVENTS and words[_ARGUMENT_5]:
        return False  # it has a time-out, which may be over
    if read_memory(tid, words[_PC] - len(_SYSCALL), len(_SYSCALL)) != _SYSCALL:
        return False
    return poke_register(tid, 8 * _RESULT, _BEGIN_AGAIN)
