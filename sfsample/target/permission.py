"""Why the kernel refuses ptrace, in words.

Law: looks at every gate (ptrace(2), "Ptrace access mode checking"), names the ones that are closed and the
way through each.  It reads /proc only, and never guesses from an error text.
"""

import os

from sfsample.target.procfs import ProcFs

CAP_SYS_PTRACE = 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def refusal(proc: ProcFs) -> tuple[str, ...]:
    """Return help lines for an EPERM on `proc`."""
    status = proc.status()
    tracer = status.get("TracerPid", "0")
    if tracer != "0":
        return (f"process {tracer} ({_name(tracer)}) traces it already, and there can be only one tracer;",
                f"end that one first (gdb, strace, another sampler: kill {tracer})")  # fmt: skip
    lines = [*_other_user(status), *_yama(), *_namespace(proc)]
    if not lines and not has_capability():
        lines = ["it may be non-dumpable (setuid, or it called prctl(PR_SET_DUMPABLE, 0));",
                 "run as root: sudo sfsample ..."]  # fmt: skip
    if not lines:
        lines = [
            "a security module or seccomp filter may forbid ptrace;",
            "in a container, start it with --cap-add=SYS_PTRACE and a seccomp profile that allows ptrace",
        ]
    return tuple(lines)


def has_capability(status: str | None = None) -> bool:
    """Whether we hold CAP_SYS_PTRACE (in our user namespace)."""
    text = status if status is not None else _read("/proc/self/status")
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_PTRACE & 1)
    return False


def _other_user(status: dict[str, str]) -> list[str]:
    owner = (status.get("Uid", "").split() or ["?"])[0]
    if has_capability() or owner == str(os.geteuid()):
        return []
    return [
        f"it belongs to uid {owner} and you are uid {os.geteuid()} without CAP_SYS_PTRACE;",
        "run as root: sudo sfsample ...; or in a container, start it with --cap-add=SYS_PTRACE",
    ]


def _yama() -> list[str]:
    scope = _read(_YAMA).strip()
    if scope in ("", "0") or (scope in ("1", "2") and has_capability()):
        return []
    if scope == "1":
        return [
            "kernel.yama.ptrace_scope is 1: only a parent may trace; run as root (sudo sfsample ...),",
            "start the program with sfsample -- COMMAND, or: sudo sysctl kernel.yama.ptrace_scope=0",
        ]
    if scope == "2":
        return [
            "kernel.yama.ptrace_scope is 2: only CAP_SYS_PTRACE may trace; run as root: sudo sfsample ..."
        ]
    return [
        "kernel.yama.ptrace_scope is 3: nobody may trace until the next boot",
        "(a sysctl.d file sets it; it cannot be lowered at run time)",
    ]


def _namespace(proc: ProcFs) -> list[str]:
    ours, theirs = _link("/proc/self/ns/user"), proc.link("ns/user")
    if theirs is None or ours == theirs:
        return []
    return ["it runs in another user namespace (a container);",
            "run as root on the host, or inside the container with --cap-add=SYS_PTRACE"]  # fmt: skip


def _name(pid: str) -> str:
    return _read(f"/proc/{pid}/comm").strip() or "?"


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
