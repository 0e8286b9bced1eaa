"""Reads what the kernel checks when sfsample wants to trace a process: its own credentials and the target's.

Reads /proc, and tries two system calls on a process that cannot exist.  `gates` judges the values; it is
apart so that tests can judge every gate without closing it.
"""

import os

from sfsample.process.permission.gates import SelfCredentials, TargetCredentials, closed_gates_help
from sfsample.process.proc_text import parse_status
from sfsample.process.procfs import ProcFs, process_name, read_link, read_text

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_WHOLE_UID_MAP = ["0", "0", "4294967295"]  # of the initial user namespace, user_namespaces(7)
_SECCOMP_MODE_FILTER = "2"


def refusal_help(proc: ProcFs) -> tuple[str, ...]:
    """Return help lines for an EPERM on `proc`."""
    return closed_gates_help(own_credentials(), target_credentials(proc))


def own_credentials() -> SelfCredentials:
    """Read sfsample's credentials."""
    from sfsample.process.permission.refused_syscalls import refused_syscalls

    status = parse_status(read_text("/proc/self/status"))
    return SelfCredentials(
        os.getuid(),
        os.getgid(),
        _bits(status, "CapPrm"),
        _bits(status, "CapEff"),
        read_text(_YAMA).strip(),
        read_link("/proc/self/ns/user"),
        read_text("/proc/self/uid_map").split() == _WHOLE_UID_MAP,
        refused_syscalls(filtered=status.get("Seccomp") == _SECCOMP_MODE_FILTER),
        _label("/proc/self"),
    )


def target_credentials(proc: ProcFs) -> TargetCredentials:
    """Read the target's credentials."""
    status = proc.status()
    return TargetCredentials(
        _numbers(status, "Uid"),
        _numbers(status, "Gid"),
        _bits(status, "CapPrm"),
        tracer_of_process(proc),
        _files_owner(proc.pid),
        proc.link("ns/user"),
        _label(f"/proc/{proc.pid}"),
    )


def tracer_of(proc: ProcFs, tid: int) -> int:
    """Return the pid of the process that traces a thread; 0 when none does, or sfsample itself."""
    pid = _tracing_process(proc, tid)
    return 0 if pid == os.getpid() else pid


def traced_by_sfsample(proc: ProcFs, tid: int) -> bool:
    """Whether an OS thread of sfsample traces it: the caller, or one that is about to end."""
    return _tracing_process(proc, tid) == os.getpid()


def _tracing_process(proc: ProcFs, tid: int) -> int:
    tracer = proc.status(tid).get("TracerPid", "0")
    # TracerPid is the tid of the tracing thread; users and kill(1) need its process
    return int(parse_status(read_text(f"/proc/{tracer}/status")).get("Tgid", tracer))


def tracer_of_process(proc: ProcFs) -> tuple[int, str] | None:
    """Return pid and name of a process, other than sfsample, that traces a thread of `proc`."""
    pid = next(filter(None, (tracer_of(proc, tid) for tid in proc.threads())), None)
    return None if pid is None else (pid, process_name(pid))


def _files_owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/maps").st_uid
    except OSError:
        return None


def _label(directory: str) -> str:
    """Return the security module's label of a process, "docker-default (enforce)"; empty when it has none."""
    return read_text(f"{directory}/attr/current").rstrip("\0\n ")


def _numbers(status: dict[str, str], key: str) -> tuple[int, ...]:
    return tuple(map(int, status.get(key, "").split()[:3]))


def _bits(status: dict[str, str], key: str) -> int:
    return int(status.get(key, "0"), 16)
