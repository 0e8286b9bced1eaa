"""Why the kernel refuses ptrace, in words.

Law: looks at every gate (ptrace(2), "Ptrace access mode checking"), names the ones that are closed and the
way through each.  It reads /proc only, and never guesses from an error text.  What is read and what follows
from it are apart, so that every gate can be tried where it cannot be closed.
"""

import os
from typing import NamedTuple

from sfsample.target.procfs import ProcFs

CAP_SYS_PTRACE = 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


class Us(NamedTuple):
    """What the kernel looks at on the tracer's side."""

    uid: int
    gid: int
    permitted: int  # capability sets, as bits
    effective: int
    yama: str  # kernel.yama.ptrace_scope; empty: there is no Yama
    user_namespace: str | None
    outermost: bool = False  # that is the first one, in which capabilities count for every process

    @property
    def may_trace(self) -> bool:
        """Whether we hold CAP_SYS_PTRACE (in our user namespace)."""
        return bool(self.effective >> CAP_SYS_PTRACE & 1)


class Them(NamedTuple):
    """What the kernel looks at on the target's side."""

    uids: tuple[int, ...]  # real, effective, saved
    gids: tuple[int, ...]
    permitted: int
    tracer: tuple[int, str] | None  # pid and name of who traces a thread of it already
    files_owner: int | None  # of its files in /proc: root's when the process is not dumpable
    user_namespace: str | None  # None: we may not even look


def refusal(proc: ProcFs) -> tuple[str, ...]:
    """Return help lines for an EPERM on `proc`."""
    return closed_gates(us(), them(proc))


def closed_gates(us: Us, them: Them) -> tuple[str, ...]:
    """Return lines that name the gates which are closed between us and them, and the way through."""
    if them.tracer is not None:
        pid, name = them.tracer
        return (f"process {pid} ({name}) traces it already, and there can be only one tracer;",
                f"end that one first (gdb, strace, another sampler: kill {pid})")  # fmt: skip
    lines = [*_identity(us, them), *_yama(us), *_namespace(us, them)]
    return tuple(lines) or (
        "a security module or seccomp filter may forbid ptrace;",
        "in a container, start it with --cap-add=SYS_PTRACE and a seccomp profile that allows ptrace",
    )


def _identity(us: Us, them: Them) -> list[str]:
    if us.may_trace:
        return []
    if any(uid != us.uid for uid in them.uids):
        owner = them.uids[1]
        return [
            f"it belongs to uid {owner} and you are uid {us.uid} without CAP_SYS_PTRACE;",
            "run as root: sudo sfsample ...; or in a container, start it with --cap-add=SYS_PTRACE",
        ]
    if any(gid != us.gid for gid in them.gids):
        return [f"it belongs to gid {them.gids[1]} and you are gid {us.gid} without CAP_SYS_PTRACE;",
                "run as root: sudo sfsample ..."]  # fmt: skip
    if them.files_owner is not None and them.files_owner != them.uids[1]:
        return ["it is not dumpable (setuid, unreadable, or it called prctl(PR_SET_DUMPABLE, 0));",
                "run as root: sudo sfsample ..."]  # fmt: skip
    if them.permitted & ~us.permitted:
        return ["it holds capabilities that you do not hold;", "run as root: sudo sfsample ..."]
    return []


def _yama(us: Us) -> list[str]:
    if us.yama in ("", "0") or (us.yama in ("1", "2") and us.may_trace):
        return []
    if us.yama == "1":
        return [
            "kernel.yama.ptrace_scope is 1: only a parent may trace; run as root (sudo sfsample ...),",
            "start the program with sfsample -- COMMAND, or: sudo sysctl kernel.yama.ptrace_scope=0",
        ]
    if us.yama == "2":
        return [
            "kernel.yama.ptrace_scope is 2: only CAP_SYS_PTRACE may trace; run as root: sudo sfsample ..."
        ]
    return [
        "kernel.yama.ptrace_scope is 3: nobody may trace until the next boot",
        "(a sysctl.d file sets it; it cannot be lowered at run time)",
    ]


def _namespace(us: Us, them: Them) -> list[str]:
    """Our capabilities count in our user namespace and in those below it, and no others."""
    hidden = them.user_namespace is None and us.may_trace and not us.outermost
    if them.user_namespace in (us.user_namespace, None) and not hidden:
        return []
    return ["it runs in another user namespace (a container, or you do);",
            "run as root on the host, or inside the container with --cap-add=SYS_PTRACE"]  # fmt: skip


# -- reading


def us() -> Us:
    """Read our side."""
    status = _fields(_read("/proc/self/status"))
    return Us(os.getuid(), os.getgid(), _bits(status, "CapPrm"), _bits(status, "CapEff"),
              _read(_YAMA).strip(), _link("/proc/self/ns/user"), _is_outermost())  # fmt: skip


def _is_outermost() -> bool:
    """Whether we are in the first user namespace, in which capabilities count for every process."""
    return _read("/proc/self/uid_map").split() == ["0", "0", "4294967295"]


def them(proc: ProcFs) -> Them:
    """Read the target's side."""
    status = proc.status()
    return Them(
        _numbers(status, "Uid"),
        _numbers(status, "Gid"),
        _bits(status, "CapPrm"),
        _tracer(proc),
        _files_owner(proc.pid),
        proc.link("ns/user"),
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


def _tracer(proc: ProcFs) -> tuple[int, str] | None:
    pid = next(filter(None, (tracer_of(proc, tid) for tid in proc.threads())), None)
    return None if pid is None else (pid, _read(f"/proc/{pid}/comm").rstrip("\n") or "?")


def _files_owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/maps").st_uid
    except OSError:
        return None


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
