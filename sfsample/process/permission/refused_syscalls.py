"""Which system calls are refused to us, whatever the target is.

Law: each call is tried on a process that cannot exist, so it disturbs nobody: ESRCH means that the kernel
took it, anything else that something stands before it.  A seccomp filter may kill who calls; where there is
one, a child tries.
"""

import ctypes
import os
from errno import ESRCH

_PTRACE_DETACH = 17
_NOBODY = (1 << 31) - 1  # above every pid_max
KILLED = -1
_libc = ctypes.CDLL(None, use_errno=True)


def refused_calls(*, filtered: bool) -> tuple[tuple[str, int], ...]:
    """Return (call, errno) of those that are refused; `filtered`: we live under a seccomp filter."""
    tried = ((name, _in_child(name) if filtered else _try(name)) for name in ("ptrace", "process_vm_readv"))
    return tuple((name, errno) for name, errno in tried if errno != ESRCH)


def _try(name: str) -> int:
    if name == "ptrace":
        failed = _libc.ptrace(_PTRACE_DETACH, _NOBODY, None, None)
    else:
        word = ctypes.c_ulong()
        place = (ctypes.c_ulong * 2)(ctypes.addressof(word), ctypes.sizeof(word))  # struct iovec
        failed = _libc.process_vm_readv(_NOBODY, place, 1, place, 1, 0)
    return ctypes.get_errno() if failed else 0


def _in_child(name: str) -> int:
    """Let a child try, which tells its errno as exit code."""
    child = os.fork()
    if child == 0:
        os._exit(_try(name))
    _, status = os.waitpid(child, 0)
    return KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
