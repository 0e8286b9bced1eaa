"""Reads what a file descriptor of the target refers to.

Reads /proc/PID/fd, fdinfo and net, and never opens the file that a descriptor refers to.  Addresses are those
of the target's network namespace.  Source: proc(5), the kernel's Documentation/filesystems/proc.rst (fdinfo).
"""

import re
from functools import cache
from typing import NamedTuple

from sfsample.process.facts.sockets import SocketTable
from sfsample.process.proc_text import parse_status
from sfsample.process.procfs import ProcFs

_LINK = re.compile(r"(pipe|socket):\[(\d+)\]")
_ACCESS_MODES = {"0": "r", "1": "w", "2": "rw"}  # O_RDONLY, O_WRONLY, O_RDWR: the last octal digit


def access_mode(fdinfo: str) -> str:
    """Return "r", "w" or "rw", by the flags in a file of fdinfo; "" when they are not known."""
    return _ACCESS_MODES.get(parse_status(fdinfo).get("flags", "")[-1:], "")


class Descriptor(NamedTuple):
    """One descriptor: `kind` is "pipe", "socket", "epoll", "file", "eventfd", ...; `mode`: see `access_mode`.

    `text` describes it for the user: "tcp 10.0.0.1:5 -> 10.0.0.2:80 established".  It may contain control
    characters, as a file name of the target may.
    """

    fd: int
    kind: str
    inode: int
    mode: str
    text: str
    watches: tuple[int, ...] = ()  # of an epoll: the descriptors that it waits for


class DescriptorReader:
    """Reads descriptors of one process, each once: a number may mean another file a moment later."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self.sockets = SocketTable(proc)
        self.read = cache(self._read)

    def _read(self, fd: int) -> Descriptor | None:
        """Return what a descriptor refers to; None: it is closed, or sfsample may not read it."""
        link = self._proc.link(f"fd/{fd}")
        if link is None:
            return None
        info = (self._proc.read(f"fdinfo/{fd}") or b"").decode("ascii", "replace")
        mode = access_mode(info)
        found = _LINK.fullmatch(link)
        if found and found[1] == "pipe":
            end = {"r": ", read end", "w": ", write end"}.get(mode, "")
            return Descriptor(fd, "pipe", int(found[2]), mode, f"pipe {found[2]}{end}")
        if found:
            return Descriptor(fd, "socket", int(found[2]), mode, self.sockets.text(int(found[2])))
        if link.startswith("anon_inode:"):
            return _anonymous(fd, link.partition(":")[2].strip("[]"), info)
        return Descriptor(fd, "file", int(parse_status(info).get("ino", "0")), mode, link)


def _anonymous(fd: int, name: str, info: str) -> Descriptor:
    if name != "eventpoll":
        return Descriptor(fd, name, 0, "rw", name)
    watched = sorted(int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:"))
    return Descriptor(fd, "epoll", 0, "rw", f"{len(watched)} fd{'s' * (len(watched) != 1)}", tuple(watched))
