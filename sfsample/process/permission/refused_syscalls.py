"""Finds the system calls that the kernel refuses to sfsample for any target, by trying.

Each call is tried on a process that cannot exist, so it affects no process: ESRCH means that the kernel
accepted the call, another error that something refuses it.  A seccomp filter may kill the caller; so where
sfsample runs under a filter, a child process tries.
"""

import ctypes
import os
from errno import ESRCH

_PTRACE_DETACH = 17
_NO_PID = (1 << 31) - 1  # above every pid_max
KILLED = -1  # in place of an errno
_libc = ctypes.CDLL(None, use_errno=True)


def refused_syscalls(*, filtered: bool) -> tuple[tuple[str, int], ...]:
    """Return (name, errno) of the refused calls; `filtered`: sfsample runs under a seccomp filter."""
    names = ("ptrace", "process_vm_readv")
    errors = ((name, _try_in_child(name) if filtered else _try(name)) for name in names)
    return tuple((name, errno) for name, errno in errors if errno != ESRCH)


def _try(name: str) -> int:
    """Make a call on a process that cannot exist; return its errno."""
    if name == "ptrace":
        failed = _libc.ptrace(_PTRACE_DETACH, _NO_PID, None, None)
    else:
        word = ctypes.c_ulong()
        iovec = (ctypes.c_ulong * 2)(ctypes.addressof(word), ctypes.sizeof(word))  # struct iovec
        failed = _libc.process_vm_readv(_NO_PID, iovec, 1, iovec, 1, 0)
    return ctypes.get_errno() if failed else 0


def _try_in_child(name: str) -> int:
    """Make a call in a child, whose exit code is the errno; KILLED when the call was fatal."""
    child = os.fork()
    if child == 0:
        os._exit(_try(name))
    _, status = os.waitpid(child, 0)
    return KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
