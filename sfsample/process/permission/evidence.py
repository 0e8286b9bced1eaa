"""What the kernel looks at when it is asked whether we may trace: read, not judged.

Law: reads /proc and tries two system calls on a process that cannot exist; never guesses from an error text.
The judging is in `gates`, apart, so that every gate can be tried where it cannot be closed.
"""

import os

from sfsample.process.permission.gates import SelfCredentials, TargetCredentials, closed
from sfsample.process.procfs import ProcFs

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def refusal(proc: ProcFs) -> tuple[str, ...]:
    """Return help lines for an EPERM on `proc`."""
    return closed(us(), them(proc))


def us() -> SelfCredentials:
    """Read our side."""
    from sfsample.process.permission.refused_syscalls import refused_calls

    status = _fields(_read("/proc/self/status"))
    return SelfCredentials(os.getuid(), os.getgid(), _bits(status, "CapPrm"), _bits(status, "CapEff"),
              _read(_YAMA).strip(), _link("/proc/self/ns/user"), _is_outermost(),
              refused_calls(filtered=status.get("Seccomp") == "2"), _label("/proc/self"))  # fmt: skip


def _is_outermost() -> bool:
    """Whether we are in the first user namespace, in which capabilities count for every process."""
    return _read("/proc/self/uid_map").split() == ["0", "0", "4294967295"]


def them(proc: ProcFs) -> TargetCredentials:
    """Read the target's side."""
    status = proc.status()
    return TargetCredentials(
        _numbers(status, "Uid"),
        _numbers(status, "Gid"),
        _bits(status, "CapPrm"),
        tracer_of_any(proc),
        _files_owner(proc.pid),
        proc.link("ns/user"),
        _label(f"/proc/{proc.pid}"),
    )


def tracer_of(proc: ProcFs, tid: int) -> int:
    """Return the pid of who traces a thread, other than us; 0: nobody."""
    pid = _tracing_process(proc, tid)
    return 0 if pid == os.getpid() else pid


def held_by_us(proc: ProcFs, tid: int) -> bool:
    """Whether a thread of ours traces it: one that is about to end, if not the caller."""
    return _tracing_process(proc, tid) == os.getpid()


def _tracing_process(proc: ProcFs, tid: int) -> int:
    data = proc.read(f"task/{tid}/status") or b""
    tracer = _fields(data.decode("utf-8", "replace")).get("TracerPid", "0")
    # it names the tracing thread; people and kill(1) know processes
    return int(_fields(_read(f"/proc/{tracer}/status")).get("Tgid", tracer))


def tracer_of_any(proc: ProcFs) -> tuple[int, str] | None:
    """Return pid and name of who traces some thread of it, other than us."""
    pid = next(filter(None, (tracer_of(proc, tid) for tid in proc.threads())), None)
    return None if pid is None else (pid, _read(f"/proc/{pid}/comm").rstrip("\n") or "?")


def _files_owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/maps").st_uid
    except OSError:
        return None


def _label(directory: str) -> str:
    """Return what the security module calls a process: "docker-default (enforce)"; empty: there is none."""
    return _read(f"{directory}/attr/current").rstrip("\0\n ")


def _fields(text: str) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _numbers(status: dict[str, str], key: str) -> tuple[int, ...]:
    return tuple(map(int, status.get(key, "").split()[:3]))


def _bits(status: dict[str, str], key: str) -> int:
    return int(status.get(key, "0"), 16)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
