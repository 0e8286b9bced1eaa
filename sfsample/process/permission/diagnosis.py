"""Finds out whether sfsample may attach to a process: judges every gate, then tries.

A gate is a check of the kernel that can refuse an attach.  The kernel has the last word, so sfsample tries
all that does no harm, and stops no thread.  A gate that sfsample could not try is "unknown".
"""

import os
from contextlib import closing, suppress
from typing import NamedTuple

from sfsample.errors import NotPermitted, UnsupportedTarget
from sfsample.process.exec_guard import ExecGuard
from sfsample.process.find import check
from sfsample.process.permission.evidence import own_credentials, target_credentials
from sfsample.process.permission.gates import Gate, Remedy, judge_gates
from sfsample.process.procfs import ProcFs
from sfsample.process.ptrace import may_attach
from sfsample.process.tracer_thread import TracerThread
from sfsample.process.vm import may_access, read_memory

NOT_NEEDED = ("files",)  # gates whose refusal costs only names
_MAX_FILES_NAMED = 3
_PROBE_BYTES = 8
_MOUNTS = Remedy(
    "nothing to do on a host: names then come from the target's memory, without .symtab",
    docker="share its file system: --pid=container:NAME as root, /proc/PID/root is then readable",
    kubernetes="kubectl debug --target=CONTAINER, as root",
)


class Diagnosis(NamedTuple):
    """The gates to a process."""

    pid: int | None  # None: the gates depend on sfsample alone
    name: str | None
    gates: tuple[Gate, ...]
    may_attach: bool | None  # None: sfsample could not try to attach

    @property
    def is_closed(self) -> bool:
        """True if sfsample failed to attach; if sfsample could not try, True if a gate is closed."""
        if self.may_attach is None:
            return any(gate.status == "fail" for gate in self.gates if gate.name not in NOT_NEEDED)
        return not self.may_attach


def diagnose(pid: int | None) -> Diagnosis:
    """Judge and try every gate to a process; `pid` None: the gates that depend on sfsample alone.

    Raises NoSuchProcess and UnsupportedTarget.
    """
    if pid is None:
        return Diagnosis(None, None, judge_gates(own_credentials(), None), None)
    if pid == os.getpid():
        raise UnsupportedTarget(pid, f"cannot sample itself: {pid}")
    with closing(ProcFs(pid)) as proc:
        with suppress(NotPermitted):  # permission is what the gates are about
            check(proc)
        stat = proc.stat()
        judged = judge_gates(own_credentials(), target_credentials(proc))
        attach = _attach(proc)
        return Diagnosis(pid, stat.name if stat else "?", (*judged, _memory(proc), _files(proc), attach),
                         {"pass": True, "fail": False}.get(attach.status))  # fmt: skip


def _attach(proc: ProcFs) -> Gate:
    """Attach to a thread, and detach at once without a stop; for a young process, only check the access."""
    tid = proc.anchor()
    stat = proc.thread(tid).stat()
    if stat is not None and stat.state in "Tt":
        why = "not tried: it is stopped, and the attempt would wake it for a moment"
        return Gate("attach", "unknown", why)
    is_young = ExecGuard(proc.pid).forbids()
    if may_access(tid) if is_young else TracerThread(lambda _: may_attach(tid), lambda: False).run():
        return Gate("attach", "pass", "tried: the kernel allows it")
    return Gate("attach", "fail", "tried: the kernel refuses (Operation not permitted)")


def _memory(proc: ProcFs) -> Gate:
    """Read eight bytes of the target's memory, as a capture does."""
    name = "read memory"
    try:
        address = next((mapping.start for mapping in proc.maps() if mapping.readable), None)
    except NotPermitted:
        return Gate(name, "fail", "tried: its memory map may not be read")
    if address is not None and read_memory(proc.anchor(), address, _PROBE_BYTES) is not None:
        return Gate(name, "pass", "tried: process_vm_readv(2) reads it")
    return Gate(name, "fail", "tried: process_vm_readv(2) does not read it")


def _files(proc: ProcFs) -> Gate:
    """Judge whether sfsample can open the target's program and libraries; containers mount other files."""
    name = "files"
    try:
        paths = {m.path for m in proc.maps() if m.executable and m.is_file and not m.deleted}
    except NotPermitted:
        return Gate(name, "unknown", "its memory map may not be read")
    missing = sorted(path for path in paths if not _can_open(f"/proc/{proc.pid}/root{path}"))
    if not missing:
        return Gate(name, "pass", f"{len(paths)} mapped programs and libraries can be opened")
    more = " ..." * (len(missing) > _MAX_FILES_NAMED)
    found = f"cannot be opened: {', '.join(missing[:_MAX_FILES_NAMED])}{more}"
    return Gate(name, "fail", found, _MOUNTS)


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return False
    return True
