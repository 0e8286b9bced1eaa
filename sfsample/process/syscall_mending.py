"""Makes the kernel restart a system call that would fail with EINTR because sfsample stopped the thread.

sfsample writes one register of a stopped thread, and only if the kernel has just written -EINTR to it because
of the stop.  sfsample replaces -EINTR by -ERESTARTNOHAND, as select(2) returns it to be restarted.
When the thread runs on, the kernel then starts the call again, with its full time-out.  (The call had just
begun: sfsample does not stop a thread that has slept for long.)  If a signal handler has to run, the program
still gets EINTR.  sfsample does not restart a call that may have reached its time-out (io_getevents).

This works only on x86-64: on AArch64, the kernel decides about the restart before the stop.

Source: Linux arch/x86/kernel/signal.c: the thread stops in get_signal, and only then
arch_do_signal_or_restart decides if the call starts again.  fs/eventpoll.c, ipc/sem.c, fs/aio.c and
do_sigtimedwait return -EINTR if a signal is pending and there is no result yet.  arch/x86/entry: `orig_ax`
is -1 outside a system call.  syscalls/syscall_64.tbl.
"""

from errno import EINTR

from sfsample.core.arch import AMD64
from sfsample.process.ptrace import RegisterReader, poke_register
from sfsample.process.vm import read_memory

_IO_GETEVENTS = 208
_CALLS = {
    232: "epoll_wait", 281: "epoll_pwait", 441: "epoll_pwait2", 65: "semop", 220: "semtimedop",
    128: "rt_sigtimedwait", _IO_GETEVENTS: "io_getevents",
}  # fmt: skip
_ARGUMENT_5, _RESULT, _CALL, _PC = 9, 10, 15, 16  # words of struct user_regs_struct: r8, rax, orig_rax, rip
_MINUS_EINTR, _MINUS_ERESTARTNOHAND = (1 << 64) - EINTR, (1 << 64) - 514  # linux/errno.h
_SYSCALL = b"\x0f\x05"  # machine code of the instruction


def mend(tid: int, reader: RegisterReader) -> bool:
    """Let the kernel restart the call in which a thread was stopped; `reader` has the thread's registers.

    False: the thread was in no call of `_CALLS`, or the call cannot be restarted.
    """
    words = reader.words
    if reader.arch.machine != AMD64.machine or words[_RESULT] != _MINUS_EINTR or words[_CALL] not in _CALLS:
        return False
    if words[_CALL] == _IO_GETEVENTS and words[_ARGUMENT_5]:
        return False  # the call has a time-out, which may have passed
    if read_memory(tid, words[_PC] - len(_SYSCALL), len(_SYSCALL)) != _SYSCALL:
        return False
    return poke_register(tid, 8 * _RESULT, _MINUS_ERESTARTNOHAND)
