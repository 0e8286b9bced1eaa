"""Which process: by pid or by name, and whether it can be looked at.  The one door to psutil.

Law: every reason for which a process cannot be sampled is found here, before the first stop, and told with a
way out.
"""

import os
import time
from collections.abc import Iterator

from sfsample.core.arch import ARCHES, Arch, ByteOrder, arch_of
from sfsample.errors import (
    FIND_IT,
    AlreadyTraced,
    NoSuchProcess,
    NotPermitted,
    TargetError,
    UnsupportedTarget,
)
from sfsample.process.permission.evidence import refusal, tracer_of
from sfsample.process.procfs import HIDDEN, PF_KTHREAD, ProcFs

_LOOKS, _LOOK_S = 10, 0.005
_UNIT_SUFFIXES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
_IDENT = 20  # bytes of an ELF header: up to and with e_machine


def check(proc: ProcFs) -> Arch:
    """Return its architecture, or raise the TargetError that tells why this process cannot be sampled."""
    pid = proc.pid
    _check_proc(pid)
    stat = proc.stat()
    group = proc.status().get("Tgid", str(pid))
    if stat is None or group == "0":  # it has ended meanwhile
        raise NoSuchProcess(pid, f"no such process: {pid}", FIND_IT)
    if group != str(pid):
        raise UnsupportedTarget(pid, f"{pid} is a thread: of process {group}", f"use -p {group}")
    if stat.flags & PF_KTHREAD:
        raise UnsupportedTarget(
            pid, f"kernel thread: {pid} ({stat.name})", "it has no user stack; its kernel stack is in",
            f"/proc/{pid}/stack (root)")  # fmt: skip
    if stat.state in "ZX" and proc.has_ended():
        raise NoSuchProcess(
            pid, f"process has ended: {pid} ({stat.name}) is a zombie",
            "its parent has not waited for it; there is no stack any more")  # fmt: skip
    return _arch(proc)


def _check_proc(pid: int) -> None:
    """Refuse a /proc of another pid namespace: there, PID is not who the kernel takes it for."""
    try:
        ours = os.readlink("/proc/self")
    except OSError:  # we are not in it
        ours = ""
    if ours != str(os.getpid()):
        raise UnsupportedTarget(
            pid, f"cannot tell who is process {pid}: /proc is that of another pid namespace",
            "mount the one of ours: mount -t proc proc /proc (unshare: --mount-proc),",
            "or run sfsample where /proc was mounted")  # fmt: skip


def _arch(proc: ProcFs) -> Arch:
    pid = proc.pid
    try:
        with open(f"/proc/{proc.anchor()}/exe", "rb") as exe:
            ident = exe.read(_IDENT)
    except PermissionError:
        raise not_permitted(proc) from None
    except OSError:
        ident = _our_ident()  # no executable: a first thread that has left; or the process has ended just now
    if ident[4:5] == b"\x01":
        raise UnsupportedTarget(pid, f"32-bit program: {pid} ({proc.link('exe')})",
                                "only 64-bit targets are supported")  # fmt: skip
    byteorder: ByteOrder = "little" if ident[5:6] == b"\x01" else "big"
    machine = int.from_bytes(ident[18:20], byteorder)
    arch = arch_of(machine, byteorder)
    if arch is None:
        known = ", ".join(arch.name for arch in ARCHES)
        raise UnsupportedTarget(pid, f"unknown machine (ELF e_machine {machine}): {pid} ({proc.link('exe')})",
                                f"it can be one of {known}")  # fmt: skip
    return arch


def _our_ident() -> bytes:
    with open("/proc/self/exe", "rb") as exe:
        return exe.read(_IDENT)


def check_free(proc: ProcFs) -> None:
    """Refuse a process that a debugger holds; another sampler that we meet lets go in an instant."""
    for _ in range(_LOOKS):
        tids = proc.threads()
        if not tids or not all(tracer_of(proc, tid) for tid in tids):
            return
        time.sleep(_LOOK_S)
    raise AlreadyTraced(proc.pid, f"not permitted to trace: {proc.pid}", *refusal(proc))


def not_permitted(proc: ProcFs) -> NotPermitted:
    """Return the error that names the gate which keeps us from process `proc`."""
    return NotPermitted(proc.pid, f"not permitted to trace: {proc.pid}", *refusal(proc))


def find_by_name(name: str) -> list[tuple[int, str]]:
    """Return (pid, command line) of processes called `name`, else of those whose command line contains it.

    We and our ancestors (the shell whose command line holds the same words) are left out, and so are other
    samplers that look for the same words.  Raises NotPermitted.
    """
    import psutil

    if not any(map(str.isdecimal, os.listdir("/proc"))):
        raise NotPermitted(0, f"not permitted to look for: {name}", *HIDDEN)
    ours = {os.getpid(), *_ancestors()}
    exact, partial = [], []
    for process in psutil.process_iter(["pid", "name", "cmdline", "exe"]):
        info = process.info
        words = info["cmdline"]
        if info["pid"] in ours or not words:
            continue
        line = " ".join(words)
        if name in (info["name"], os.path.basename(info["exe"] or "")):
            exact.append((info["pid"], line))
        elif name in line and info["name"] != "sfsample" and words[1:3] != ["-m", "sfsample"]:
            partial.append((info["pid"], line))
    return exact or partial


def find_by_unit(unit: str, proc: str = "/proc") -> list[int]:
    """Return the processes of a systemd unit, those in control groups below its own too.

    Without a suffix it is a service.  We are left out, and zombies, which have no command line.
    """
    name = unit if unit.endswith(_UNIT_SUFFIXES) else f"{unit}.service"
    pids = map(int, filter(str.isdecimal, os.listdir(proc)))
    return sorted(pid for pid in pids if pid != os.getpid() and _is_in_unit(f"{proc}/{pid}", name))


def _is_in_unit(directory: str, unit: str) -> bool:
    """Whether systemd's hierarchy (the one of version 2, or its own of version 1) has the process in it."""
    try:
        with open(f"{directory}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        if not any(kind in {"", "name=systemd"} and unit in path.split("/") for _, kind, path in lines):
            return False
        with open(f"{directory}/cmdline", "rb") as file:
            return bool(file.read(1))
    except OSError:  # it has ended, or is hidden from us
        return False


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            proc = ProcFs(pid)
        except TargetError:  # hidden from us (hidepid), or ended
            return
        pid = int(proc.status().get("PPid", "0"))
        proc.close()


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; it tells a recycled pid.

    Not in seconds since the epoch: those move when the clock is set.  Raises NoSuchProcess, also for a
    zombie.
    """
    proc = ProcFs(pid)
    try:
        stat = proc.stat()
        if stat is None or (stat.state in "ZX" and proc.has_ended()):
            raise NoSuchProcess(pid, f"process has ended: {pid}")
        return stat.starttime
    finally:
        proc.close()
