"""Reads the credentials of sfsample and of the target, which the kernel checks when sfsample wants to trace.

Most credentials are in /proc.  A seccomp filter may refuse system calls for any target.  So sfsample tries
each call on a process that cannot exist.  ESRCH means that no filter refused the call.
"""

import ctypes
import os
from contextlib import suppress
from errno import ESRCH

from sfsample.process.permission.gates import SelfCredentials, TargetCredentials, closed_gates_help
from sfsample.process.proc_text import parse_status
from sfsample.process.procfs import ProcFs, process_name, read_link, read_text
from sfsample.process.vm import Iovec, libc

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_WHOLE_UID_MAP = ["0", "0", "4294967295"]  # map of the initial user namespace, user_namespaces(7)
_PTRACE_DETACH = 17
_NO_PID = (1 << 31) - 1  # above every pid_max


def refusal_help(proc: ProcFs) -> tuple[str, ...]:
    """Return help lines for an EPERM on `proc`."""
    return closed_gates_help(own_credentials(), target_credentials(proc))


def own_credentials() -> SelfCredentials:
    """Read sfsample's credentials."""
    status = parse_status(read_text("/proc/self/status"))
    return SelfCredentials(
        uid=os.getuid(), gid=os.getgid(), permitted=_bits(status, "CapPrm"),
        effective=_bits(status, "CapEff"), yama=read_text(_YAMA).strip(),
        user_namespace=read_link("/proc/self/ns/user"),
        outermost=read_text("/proc/self/uid_map").split() == _WHOLE_UID_MAP,
        refused_calls=_refused_calls(), label=_label("/proc/self"),
    )  # fmt: skip


def target_credentials(proc: ProcFs) -> TargetCredentials:
    """Read the target's credentials."""
    status, owner = proc.status(), os.getuid()
    with suppress(OSError):  # the process has ended
        owner = os.stat(f"/proc/{proc.pid}/maps").st_uid
    return TargetCredentials(
        uids=_numbers(status, "Uid"), gids=_numbers(status, "Gid"), permitted=_bits(status, "CapPrm"),
        tracer=tracer_of_process(proc), files_owner=owner, user_namespace=proc.link("ns/user"),
        label=_label(f"/proc/{proc.pid}"),
    )  # fmt: skip


def tracer_of(proc: ProcFs, tid: int) -> int:
    """Return the pid of the process that traces a thread (perhaps sfsample itself); 0: no process."""
    tracer = proc.status(tid).get("TracerPid", "0")
    # TracerPid is the tid of the tracing thread; users and kill(1) need the id of its process
    return int(parse_status(read_text(f"/proc/{tracer}/status")).get("Tgid", tracer))


def tracer_of_process(proc: ProcFs) -> tuple[int, str] | None:
    """Return pid and name of a process that traces a thread of `proc`; None: only sfsample, or no process."""
    tracers = {tracer_of(proc, tid) for tid in proc.threads()} - {0, os.getpid()}
    return (min(tracers), process_name(min(tracers))) if tracers else None


def _label(directory: str) -> str:
    """Return the label that a security module gave a process, "docker-default (enforce)"; "": none."""
    return read_text(f"{directory}/attr/current").rstrip("\0\n ")


def _numbers(status: dict[str, str], key: str) -> tuple[int, ...]:
    return tuple(map(int, status.get(key, "").split()[:3]))


def _bits(status: dict[str, str], key: str) -> int:
    return int(status.get(key, "0"), 16)


def _refused_calls() -> frozenset[str]:
    """Return the system calls that fail for a process that cannot exist, with an error other than ESRCH."""
    nowhere = ctypes.byref(Iovec(0, 1))
    trials = {"ptrace": (_PTRACE_DETACH, _NO_PID, None, None),
              "process_vm_readv": (_NO_PID, nowhere, 1, nowhere, 1, 0)}  # fmt: skip
    return frozenset(
        name for name, words in trials.items() if getattr(libc, name)(*words) and ctypes.get_errno() != ESRCH
    )
