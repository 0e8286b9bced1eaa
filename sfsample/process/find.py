"""Finds processes by name or systemd unit, and checks that a process can be sampled.

All checks are made before the first stop; each error has help lines.  Only this module imports psutil.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from glob import escape, glob

from sfsample.core.arch import ARCHES, Arch, ByteOrder, arch_of
from sfsample.errors import (
    FIND_HELP,
    AlreadyTraced,
    NoSuchProcess,
    NotPermitted,
    TargetError,
    UnsupportedTarget,
)
from sfsample.process.permission.evidence import refusal_help, tracer_of
from sfsample.process.proc_text import PF_KTHREAD, Stat, control_groups
from sfsample.process.procfs import HIDDEN, ProcFs, read_text

_MAX_TRACER_CHECKS, _TRACER_POLL_S = 10, 0.005
_UNIT_SUFFIXES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
_UNIT_DIRECTORIES = ("etc", "run", "usr/local/lib", "usr/lib", "lib")  # each with systemd/system and its like
_IDENT_BYTES = 20  # of an ELF header: up to the end of e_machine


def check(proc: ProcFs) -> Arch:
    """Return the architecture of a process.  Raises the TargetError that says why it cannot be sampled."""
    pid = proc.pid
    _check_proc(pid)
    stat = proc.stat()
    group = proc.status().get("Tgid", str(pid))
    if stat is None or group == "0":  # it has ended since /proc/PID was opened
        raise NoSuchProcess(pid, f"no such process: {pid}", FIND_HELP)
    if group != str(pid):
        raise UnsupportedTarget(pid, f"{pid} is a thread: of process {group}", f"use -p {group}")
    if stat.flags & PF_KTHREAD:
        raise UnsupportedTarget(
            pid, f"kernel thread: {pid} ({stat.name})",
            f"it has no user stack; root can read its kernel stack: cat /proc/{pid}/stack")  # fmt: skip
    if stat.state in "ZX" and proc.has_ended():
        raise _zombie(pid, stat)
    return _arch(proc)


def _zombie(pid: int, stat: Stat) -> NoSuchProcess:
    return NoSuchProcess(
        pid, f"process has ended: {pid} ({stat.name}) is a zombie",
        f"its parent, {_named(stat.parent)}, has not waited for it;",
        "there is no stack any more")  # fmt: skip


def _named(pid: int) -> str:
    """Return a process with its name: "process 12 (bank)"."""
    with suppress(TargetError, OSError), closing(ProcFs(pid)) as proc:
        if (stat := proc.stat()) is not None:
            return f"process {pid} ({stat.name})"
    return f"process {pid}" if pid else "in another pid namespace"


def _check_proc(pid: int) -> None:
    """Refuse a /proc of another pid namespace: its pids are not those that system calls take."""
    try:
        own_pid = os.readlink("/proc/self")
    except OSError:  # sfsample is not in that namespace
        own_pid = ""
    if own_pid != str(os.getpid()):
        raise UnsupportedTarget(
            pid, f"cannot tell who is process {pid}: /proc is that of another pid namespace",
            "mount the one of ours: mount -t proc proc /proc (unshare: --mount-proc),",
            "or run sfsample where /proc was mounted")  # fmt: skip


def _arch(proc: ProcFs) -> Arch:
    pid = proc.pid
    try:
        ident = _ident(f"/proc/{proc.anchor()}/exe")
    except PermissionError:
        raise not_permitted(proc) from None
    except OSError:
        ident = _ident("/proc/self/exe")  # no executable: the first thread, or the process, has ended
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


def _ident(exe: str) -> bytes:
    with open(exe, "rb") as file:
        return file.read(_IDENT_BYTES)


def check_free(proc: ProcFs) -> None:
    """Refuse a process that a debugger traces.  Another sampler detaches soon, so check repeatedly."""
    for _ in range(_MAX_TRACER_CHECKS):
        tids = proc.threads()
        if not tids or not all(tracer_of(proc, tid) for tid in tids):
            return
        time.sleep(_TRACER_POLL_S)
    raise AlreadyTraced(proc.pid, f"not permitted to trace: {proc.pid}", *refusal_help(proc))


def not_permitted(proc: ProcFs) -> NotPermitted:
    """Return the error that names what keeps sfsample from tracing process `proc`."""
    return NotPermitted(proc.pid, f"not permitted to trace: {proc.pid}", *refusal_help(proc))


def find_by_name(name: str) -> list[tuple[int, str]]:
    """Return (pid, command line) of processes called `name`, else of those whose command line contains it.

    Left out are sfsample and its ancestors (the command line of the shell contains the same words), and other
    instances of sfsample, which may look for the same words.  Raises NotPermitted.
    """
    import psutil

    if not any(map(str.isdecimal, os.listdir("/proc"))):
        raise NotPermitted(0, f"not permitted to look for: {name}", *HIDDEN)
    own_pids = {os.getpid()}
    with suppress(psutil.Error):  # /proc hides some of them (hidepid)
        ancestor = psutil.Process().parent()
        while ancestor:
            own_pids.add(ancestor.pid)
            ancestor = ancestor.parent()
    exact, partial = [], []
    for process in psutil.process_iter(["pid", "name", "cmdline", "exe"]):
        info = process.info
        words = info["cmdline"]
        if info["pid"] in own_pids or not words:
            continue
        line = " ".join(words)
        if name in (info["name"], os.path.basename(info["exe"] or "")):
            exact.append((info["pid"], line))
        elif name in line and info["name"] != "sfsample" and words[1:3] != ["-m", "sfsample"]:
            partial.append((info["pid"], line))
    return exact or partial


def similar_names(name: str) -> list[str]:
    """Return the names of processes that `name` may be a misspelling of."""
    import psutil

    found = (process.info for process in psutil.process_iter(["pid", "name", "cmdline"]))
    return _similar(name, {info["name"]: info["name"] for info in found
                           if info["cmdline"] and info["pid"] != os.getpid()})  # fmt: skip


def _similar(spelling: str, names: dict[str, str]) -> list[str]:
    """Return the names whose key is nearly a spelling, whatever the case."""
    from difflib import get_close_matches

    lower = {key.lower(): name for key, name in sorted(names.items())}
    return [lower[key] for key in get_close_matches(spelling.lower(), lower)]


def find_by_unit(unit: str, proc: str = "/proc") -> list[int]:
    """Return the pids of a systemd unit, including those in control groups below the unit's.

    A name without a suffix is a service.  sfsample is left out, and so are zombies, which have no command
    line.
    """
    name = _unit_name(unit)
    return sorted(pid for pid, groups in _control_groups(proc) if name in groups and pid != os.getpid())


def why_no_unit(unit: str, proc: str = "/proc", root: str = "") -> list[str]:
    """Return help lines for a systemd unit that has no process: what is missing, as far as files say it."""
    name, units = _unit_name(unit), dict[str, str]()
    for _, groups in _control_groups(proc):
        units |= {os.path.splitext(group)[0]: group for group in groups if group.endswith(_UNIT_SUFFIXES)}
    is_booted = os.path.isdir(f"{root}/run/systemd/system")  # sd_booted(3)
    if not is_booted and not units:
        return ["systemd does not run here: there is no /run/systemd/system, and no process is in a unit;",
                "-n NAME finds a process by its name or command line"]  # fmt: skip
    similar = _similar(os.path.splitext(name)[0], units)
    lines = [f"units with processes and such a name: {', '.join(similar)}"] if similar else []
    if _has_unit_file(name, root):
        lines.append(f"the unit is there, but not active: systemctl status {name}")
    elif is_booted:
        lines.append(
            f"systemd has no file of a unit {name}: systemctl list-units shows those that are active"
        )
    return lines


def _has_unit_file(name: str, root: str) -> bool:
    """Whether systemd(1) finds the unit in one of its directories; `a@b.service` is in `a@.service`."""
    stem, suffix = os.path.splitext(name)
    names = {name, f"{stem.partition('@')[0]}@{suffix}" if "@" in stem else name}
    return any(glob(f"{escape(root)}/{directory}/systemd/*/{escape(each)}") for directory in _UNIT_DIRECTORIES
               for each in names)  # fmt: skip


def _unit_name(unit: str) -> str:
    return unit if unit.endswith(_UNIT_SUFFIXES) else f"{unit}.service"


def _control_groups(proc: str) -> Iterator[tuple[int, set[str]]]:
    """Yield each process with its control groups; not those that have ended, or that /proc hides."""
    for pid in map(int, filter(str.isdecimal, os.listdir(proc))):
        if read_text(f"{proc}/{pid}/cmdline"):
            yield pid, control_groups(read_text(f"{proc}/{pid}/cgroup"))


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot, to detect that its pid was reused.

    (Seconds since the epoch would change when the clock is set.)  Raises NoSuchProcess, also for a zombie.
    """
    with closing(ProcFs(pid)) as proc:
        stat = proc.stat()
        if stat is None:
            raise NoSuchProcess(pid, f"process has ended: {pid}")
        if stat.state in "ZX" and proc.has_ended():
            raise _zombie(pid, stat)
        return stat.starttime
