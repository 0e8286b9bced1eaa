"""Which process: by pid or by name, and whether it can be looked at.  The one door to psutil.

Law: every reason for which a process cannot be sampled is found here, before the first stop, and told with a
way out.
"""

import os

import psutil

from sfsample.errors import NoSuchProcess, NotPermitted, TargetError, UnsupportedTarget
from sfsample.target.permission import refusal
from sfsample.target.procfs import PF_KTHREAD, ProcFs


def check(proc: ProcFs) -> None:
    """Raise the TargetError that tells why this process cannot be sampled, if there is a reason."""
    pid = proc.pid
    stat = proc.stat()
    if stat is None:
        raise NoSuchProcess(pid, f"no such process: {pid}")
    group = proc.status().get("Tgid", str(pid))
    if group != str(pid):
        raise TargetError(pid, f"{pid} is a thread: of process {group}", f"use -p {group}")
    if stat.flags & PF_KTHREAD:
        raise UnsupportedTarget(
            pid, f"kernel thread: {pid} ({stat.name})", "it has no user stack; its kernel stack is in",
            f"/proc/{pid}/stack (root)")  # fmt: skip
    if stat.state in "ZX" and len(proc.threads()) <= 1:
        raise NoSuchProcess(
            pid, f"process has ended: {pid} ({stat.name}) is a zombie",
            "its parent has not waited for it; there is no stack any more")  # fmt: skip
    _check_word_size(proc)


def _check_word_size(proc: ProcFs) -> None:
    pid = proc.pid
    try:
        with open(f"/proc/{pid}/exe", "rb") as exe:
            ident = exe.read(20)
    except FileNotFoundError:
        return  # no executable: an exec in progress, or a leader that has exited
    except OSError:
        raise not_permitted(proc) from None
    if ident[4:5] == b"\x01":
        raise UnsupportedTarget(pid, f"32-bit program: {pid} ({proc.link('exe')})",
                                "only 64-bit targets are supported")  # fmt: skip
    machine = int.from_bytes(ident[18:20], "little")
    if machine != 62:
        raise UnsupportedTarget(pid, f"not an x86-64 program: {pid} ({proc.link('exe')})",
                                "only x86-64 targets are supported so far")  # fmt: skip


def not_permitted(proc: ProcFs) -> NotPermitted:
    """Return the error that names the gate which keeps us from process `proc`."""
    return NotPermitted(proc.pid, f"not permitted to trace: {proc.pid}", *refusal(proc))


def find_by_name(name: str) -> list[tuple[int, str]]:
    """Return (pid, command line) of processes called `name`, else of those whose command line contains it.

    We and our ancestors (the shell whose command line holds the same words) are left out.
    """
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    exact, partial = [], []
    for process in psutil.process_iter(["pid", "name", "cmdline", "exe"]):
        info = process.info
        if info["pid"] in ours or not info["cmdline"]:
            continue
        line = " ".join(info["cmdline"])
        if name in (info["name"], os.path.basename(info["exe"] or "")):
            exact.append((info["pid"], line))
        elif name in line:
            partial.append((info["pid"], line))
    return exact or partial


def command_line(pid: int) -> list[str]:
    """Return the command line; empty when the process has ended or may not be read."""
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []


def start_time(pid: int) -> float:
    """Return when a process started, in seconds since the epoch; it tells a recycled pid.

    Raises NoSuchProcess.
    """
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        raise NoSuchProcess(pid, f"no such process: {pid}") from None
