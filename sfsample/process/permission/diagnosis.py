"""May we attach, and if not, why: every gate judged, then tried.

Law: the last word has the kernel: what can be tried without harm is tried.  Nothing is stopped, and a gate
that could not be tried is "unknown".
"""

import os
from contextlib import suppress
from typing import NamedTuple

from sfsample.errors import NotPermitted, UnsupportedTarget
from sfsample.process.find import check
from sfsample.process.permission.evidence import them, us
from sfsample.process.permission.gates import Gate, Remedy, gates
from sfsample.process.procfs import ProcFs
from sfsample.process.ptrace import may_attach
from sfsample.process.tracer_thread import TracerThread
from sfsample.process.vm import read_memory

_MOUNTS = Remedy(
    "nothing to do on a host: names then come from the target's memory, without .symtab",
    docker="share its file system: --pid=container:NAME as root, /proc/PID/root is then readable",
    kubernetes="kubectl debug --target=CONTAINER, as root",
)


NOT_NEEDED = ("files",)  # gates that cost names only


class Diagnosis(NamedTuple):
    """What a look at the gates gave.  `may_attach` None: it could not be tried."""

    pid: int | None
    name: str | None
    gates: tuple[Gate, ...]
    may_attach: bool | None


def diagnose(pid: int | None) -> Diagnosis:
    """Judge and try every gate to `pid`; None: those that stand before any target.

    Raises NoSuchProcess and UnsupportedTarget, as everything that looks at a process does.
    """
    if pid is None:
        ours = gates(us(), None)
        return Diagnosis(None, None, ours, None)
    if pid == os.getpid():
        raise UnsupportedTarget(pid, f"cannot sample itself: {pid}")
    proc = ProcFs(pid)
    try:
        _check(proc)
        stat = proc.stat()
        judged = gates(us(), them(proc))
        attach = _attach(proc)
        return Diagnosis(pid, stat.name if stat else "?", (*judged, _memory(proc), _files(proc), attach),
                         {"pass": True, "fail": False}.get(attach.status))  # fmt: skip
    finally:
        proc.close()


def _check(proc: ProcFs) -> None:
    with suppress(NotPermitted):  # that is what we are asked about
        check(proc)


def _attach(proc: ProcFs) -> Gate:
    """Attach to one thread and let go at once; it is not stopped."""
    tid = proc.anchor()
    stat = proc.thread_stat(tid)
    if stat is not None and stat.state in "Tt":
        return Gate(
            "attach", "unknown", "not tried: it is stopped, and the attempt would wake it for a moment"
        )
    if TracerThread(lambda _: may_attach(tid), lambda: False).run():
        return Gate("attach", "pass", "tried: the kernel lets us")
    return Gate("attach", "fail", "tried: the kernel refuses (Operation not permitted)")


def _memory(proc: ProcFs) -> Gate:
    """Read eight bytes of it, as a capture does."""
    name = "read memory"
    try:
        place = next((mapping.start for mapping in proc.maps() if mapping.readable), None)
    except NotPermitted:
        return Gate(name, "fail", "tried: its memory map may not be read")
    if place is not None and read_memory(proc.anchor(), place, 8) is not None:
        return Gate(name, "pass", "tried: process_vm_readv(2) reads it")
    return Gate(name, "fail", "tried: process_vm_readv(2) does not read it")


def _files(proc: ProcFs) -> Gate:
    """Whether its program and libraries can be opened from where we are: containers mount others."""
    name = "files"
    try:
        paths = {m.path for m in proc.maps() if m.executable and m.is_file and not m.deleted}
    except NotPermitted:
        return Gate(name, "unknown", "its memory map may not be read")
    missing = sorted(path for path in paths if not _readable(f"/proc/{proc.pid}/root{path}"))
    if not missing:
        return Gate(name, "pass", f"{len(paths)} mapped programs and libraries can be opened")
    return Gate(name, "fail", f"cannot be opened: {', '.join(missing[:3])}{' ...' * (len(missing) > 3)}",
                _MOUNTS)  # fmt: skip


def _readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return False
    return True
