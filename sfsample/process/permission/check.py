"""Checks before the first stop whether sfsample can sample a process; each error has help lines.

A gate is a check of the kernel that can refuse an attach.  `diagnose` judges every gate.  The kernel has the
last word: sfsample tries process_vm_readv(2), for which the kernel makes the same checks as for PTRACE_SEIZE.
"""

import os
import time
from contextlib import closing, suppress
from typing import NamedTuple

from sfsample.core.arch import ARCHES, Arch, ByteOrder, arch_of
from sfsample.errors import FIND_HELP, AlreadyTraced, NoSuchProcess, NotPermitted, UnsupportedTarget
from sfsample.process.permission.evidence import own_credentials, refusal_help, target_credentials, tracer_of
from sfsample.process.permission.gates import Gate, judge_gates
from sfsample.process.proc_text import PF_KTHREAD, Stat
from sfsample.process.procfs import ProcFs, process_name
from sfsample.process.vm import may_access

_MAX_TRACER_CHECKS, _TRACER_POLL_S = 10, 0.005
_IDENT_BYTES = 20  # length of an ELF header up to the end of e_machine


def check(proc: ProcFs) -> Arch:
    """Return the architecture of a process.  Raises TargetError if sfsample cannot sample the process."""
    pid = proc.pid
    _check_proc_mount(pid)
    stat = proc.stat()
    group = proc.status().get("Tgid", str(pid))
    if stat is None or group == "0":  # the process has ended since /proc/PID was opened
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
    parent = f"process {stat.parent} ({process_name(stat.parent)})" if stat.parent else (
        "in another pid namespace")  # fmt: skip
    return NoSuchProcess(
        pid, f"process has ended: {pid} ({stat.name}) is a zombie",
        f"its parent, {parent}, has not waited for it;", "there is no stack any more")  # fmt: skip


def _check_proc_mount(pid: int) -> None:
    """Refuse a /proc of another pid namespace: in system calls, its pids would mean other processes."""
    try:
        own_pid = os.readlink("/proc/self")
    except OSError:  # sfsample is not in that namespace
        own_pid = ""
    if own_pid != str(os.getpid()):
        raise UnsupportedTarget(
            pid, f"cannot tell which process is {pid}: /proc shows another pid namespace",
            "mount a /proc of your own: mount -t proc proc /proc (unshare: --mount-proc),",
            "or run sfsample in the pid namespace of this /proc")  # fmt: skip


def _arch(proc: ProcFs) -> Arch:
    pid = proc.pid
    try:
        ident = _ident(f"/proc/{proc.anchor()}/exe")
    except PermissionError:
        raise not_permitted(proc) from None
    except OSError:
        ident = _ident("/proc/self/exe")  # no executable: the first thread or the process has ended
    if ident[4:5] == b"\x01":
        raise UnsupportedTarget(pid, f"32-bit program: {pid} ({proc.link('exe')})",
                                "only 64-bit targets are supported")  # fmt: skip
    byteorder: ByteOrder = "little" if ident[5:6] == b"\x01" else "big"
    machine = int.from_bytes(ident[18:20], byteorder)
    arch = arch_of(machine, byteorder)
    if arch is None:
        known = ", ".join(arch.name for arch in ARCHES)
        raise UnsupportedTarget(pid, f"unknown machine (ELF e_machine {machine}): {pid} ({proc.link('exe')})",
                                f"sfsample supports {known}")  # fmt: skip
    return arch


def _ident(exe: str) -> bytes:
    with open(exe, "rb") as file:
        return file.read(_IDENT_BYTES)


def check_permitted(proc: ProcFs) -> None:
    """Raise NotPermitted if sfsample may not trace, or if another process still traces at the last look."""
    if not may_access(proc.anchor()):
        raise not_permitted(proc)
    for _ in range(_MAX_TRACER_CHECKS):
        tids = proc.threads()
        if not tids or any(tracer_of(proc, tid) in (0, os.getpid()) for tid in tids):
            return
        time.sleep(_TRACER_POLL_S)
    raise AlreadyTraced(proc.pid, f"not permitted to trace: {proc.pid}", *refusal_help(proc))


def not_permitted(proc: ProcFs) -> NotPermitted:
    """Return an error whose help lines say why sfsample may not trace a process."""
    return NotPermitted(proc.pid, f"not permitted to trace: {proc.pid}", *refusal_help(proc))


def start_time(pid: int) -> int:
    """Return the start time in clock ticks since boot, to detect a reused pid.  Raises NoSuchProcess."""
    with closing(ProcFs(pid)) as proc:
        stat = proc.stat()
        if stat is None:
            raise NoSuchProcess(pid, f"process has ended: {pid}")
        if stat.state in "ZX" and proc.has_ended():
            raise _zombie(pid, stat)
        return stat.starttime


# -- the gates


class Diagnosis(NamedTuple):
    """The judged gates to a process, and the answer of the kernel."""

    pid: int | None  # None: the gates depend on sfsample alone
    name: str | None
    gates: tuple[Gate, ...]
    may_attach: bool | None  # None: there is no process

    @property
    def is_closed(self) -> bool:
        """True if sfsample may not attach; without a process, True if a gate is closed."""
        is_any_closed = any(gate.status == "fail" for gate in self.gates)
        return is_any_closed if self.may_attach is None else not self.may_attach


def diagnose(pid: int | None) -> Diagnosis:
    """Judge every gate (`pid` None: sfsample's own gates).  Raises NoSuchProcess, UnsupportedTarget."""
    if pid is None:
        return Diagnosis(None, None, judge_gates(own_credentials(), None), None)
    if pid == os.getpid():
        raise UnsupportedTarget(pid, f"cannot sample itself: {pid}")
    with closing(ProcFs(pid)) as proc:
        with suppress(NotPermitted):  # the gates show a lack of permission
            check(proc)
        stat = proc.stat()
        judged = judge_gates(own_credentials(), target_credentials(proc))
        # two gates that process_vm_readv(2) does not check: another tracer, a filter on ptrace(2)
        is_refused = any(gate.status == "fail" for gate in judged if gate.name in ("tracer", "ptrace(2)"))
        attach = Gate("attach", "pass", "the kernel permits it")
        if is_refused or not may_access(proc.anchor()):
            attach = Gate("attach", "fail", "the kernel refuses it (Operation not permitted)")
        return Diagnosis(pid, stat.name if stat else "?", (*judged, attach), attach.status == "pass")
