"""Reads what the kernel checks when sfsample wants to trace a process: its own credentials and the target's.

Most credentials are in /proc.  A seccomp filter may refuse system calls for any target.  So sfsample tries
each call on a process that cannot exist: ESRCH means that the kernel accepted the call, and any other error
means that something refuses the call.  A filter may also kill the caller.  So if sfsample runs under a
filter, a child process tries the calls.
"""

import ctypes
import os
from contextlib import suppress
from errno import ESRCH

from sfsample.process.permission.gates import SelfCredentials, TargetCredentials, closed_gates_help
from sfsample.process.proc_text import parse_status
from sfsample.process.procfs import ProcFs, process_name, read_link, read_text

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_WHOLE_UID_MAP = ["0", "0", "4294967295"]  # map of the initial user namespace, user_namespaces(7)
_SECCOMP_MODE_FILTER = "2"
_PTRACE_DETACH = 17
_NO_PID = (1 << 31) - 1  # above every pid_max
_KILLED = -1  # code in place of an errno
_libc = ctypes.CDLL(None, use_errno=True)


def refusal_help(proc: ProcFs) -> tuple[str, ...]:
    """Return help lines for an EPERM on `proc`."""
    return closed_gates_help(own_credentials(), target_credentials(proc))


def own_credentials() -> SelfCredentials:
    """Read sfsample's credentials."""
    status = parse_status(read_text("/proc/self/status"))
    return SelfCredentials(
        os.getuid(),
        os.getgid(),
        _bits(status, "CapPrm"),
        _bits(status, "CapEff"),
        read_text(_YAMA).strip(),
        read_link("/proc/self/ns/user"),
        read_text("/proc/self/uid_map").split() == _WHOLE_UID_MAP,
        _refused_syscalls(filtered=status.get("Seccomp") == _SECCOMP_MODE_FILTER),
        _label("/proc/self"),
    )


def target_credentials(proc: ProcFs) -> TargetCredentials:
    """Read the target's credentials."""
    status, owner = proc.status(), None
    with suppress(OSError):
        owner = os.stat(f"/proc/{proc.pid}/maps").st_uid
    return TargetCredentials(
        _numbers(status, "Uid"),
        _numbers(status, "Gid"),
        _bits(status, "CapPrm"),
        tracer_of_process(proc),
        owner,
        proc.link("ns/user"),
        _label(f"/proc/{proc.pid}"),
    )


def tracer_of(proc: ProcFs, tid: int) -> int:
    """Return the pid of the process, other than sfsample, that traces a thread; 0: there is none."""
    pid = _tracing_process(proc, tid)
    return 0 if pid == os.getpid() else pid


def traced_by_sfsample(proc: ProcFs, tid: int) -> bool:
    """Return True if an OS thread of sfsample, perhaps one that is about to end, traces a thread."""
    return _tracing_process(proc, tid) == os.getpid()


def _tracing_process(proc: ProcFs, tid: int) -> int:
    tracer = proc.status(tid).get("TracerPid", "0")
    # TracerPid is the tid of the tracing thread; users and kill(1) need its process
    return int(parse_status(read_text(f"/proc/{tracer}/status")).get("Tgid", tracer))


def tracer_of_process(proc: ProcFs) -> tuple[int, str] | None:
    """Return pid and name of a process, other than sfsample, that traces a thread of `proc`."""
    pid = next(filter(None, (tracer_of(proc, tid) for tid in proc.threads())), None)
    return None if pid is None else (pid, process_name(pid))


def _label(directory: str) -> str:
    """Return the label that a security module gave a process, "docker-default (enforce)"; "": none."""
    return read_text(f"{directory}/attr/current").rstrip("\0\n ")


def _numbers(status: dict[str, str], key: str) -> tuple[int, ...]:
    return tuple(map(int, status.get(key, "").split()[:3]))


def _bits(status: dict[str, str], key: str) -> int:
    return int(status.get(key, "0"), 16)


def _refused_syscalls(*, filtered: bool) -> tuple[tuple[str, int], ...]:
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
    """Make a call in a child, whose exit code is the errno; return _KILLED if the call was fatal."""
    child = os.fork()
    if child == 0:
        os._exit(_try(name))
    _, status = os.waitpid(child, 0)
    return _KILLED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
