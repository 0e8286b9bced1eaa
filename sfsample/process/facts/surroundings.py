"""What surrounds the threads of one live process: what their system calls refer to, children, file locks.

Law: looked up while the process is there and kept as values, so that everything after can be done without it.
Memory is read around what a call points at and nowhere else.
"""

import os
import sys
import time
from collections.abc import Iterable

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.process.facts.descriptors import Descriptor, DescriptorReader
from sfsample.process.facts.peers import Wanted
from sfsample.process.facts.syscall_arguments import Call, decode
from sfsample.process.facts.thread_facts import Syscall
from sfsample.process.procfs import ProcFs
from sfsample.process.syscall_names import syscall_name
from sfsample.process.vm import read_memory

# Of a futex word that is asked about: enough before and after it for every lock of glibc that it is part of.
_BEFORE, _AFTER = 64, 128
_TRANSFERS = ("read", "readv", "write", "writev", "splice", "sendfile", "vmsplice", "tee",
              "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "connect",
              "poll", "ppoll", "select", "pselect6")  # fmt: skip
_TWO = 2  # splice(2) has so many; who waits for more, waits for nobody in particular


class Surroundings:
    """Looks things up for one process."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._pid = proc.anchor()
        self._descriptors = DescriptorReader(proc)

    # -- what a call refers to (sfsample.process.facts.syscall_arguments.DescriptorLookup)

    def descriptor(self, fd: int) -> Descriptor | None:
        """Return what a file descriptor refers to."""
        return self._descriptors.look(fd)

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes of its memory."""
        return read_memory(self._pid, address, size)

    def now(self, clock: int) -> float | None:
        """Return the time of a POSIX clock."""
        try:
            return time.clock_gettime(clock)
        except OSError:
            return None

    # -- all that belongs to a thread

    def call(self, syscall: Syscall | None) -> Call | None:
        """Look up what a system call refers to."""
        return None if syscall is None else decode(syscall, syscall_name(syscall.number), self)

    def lock_memory(self, call: Call | None) -> Memory:
        """Copy what lies around the futex word that a thread waits on."""
        if call is None or call.name != "futex":
            return PiecewiseMemory()
        word = call.syscall.args[0]
        ranges = ((word - _BEFORE, _BEFORE), (word, _AFTER))
        return PiecewiseMemory(*(piece for start, size in ranges for piece in self._copy(start, size)))

    def other_ends(self, calls: Iterable[Call]) -> dict[str, Wanted]:
        """Return the other ends of the pipes and sockets that calls wait for, as /proc/PID/fd has them."""
        waited = {one for call in calls if call.name in _TRANSFERS and len(call.descriptors) <= _TWO
                  for one in call.descriptors}  # fmt: skip
        return dict(filter(None, map(self._other_end, waited)))

    def _other_end(self, one: Descriptor) -> tuple[str, Wanted] | None:
        if one.kind == "pipe":
            return f"pipe:[{one.inode}]", Wanted(one.inode)
        far = self._descriptors.far_end(one) if one.kind == "socket" else None
        return (f"socket:[{far.inode}]", Wanted(one.inode, far.listens)) if far else None

    def _copy(self, start: int, size: int) -> list[Memory]:
        data = self.read(start, size) if start > 0 else None
        return [] if data is None else [BytesMemory(start, data, sys.byteorder)]

    def ns_tid(self, tid: int) -> int:
        """Return a thread's id as the thread itself knows it: in its own pid namespace."""
        data = self._proc.read(f"task/{tid}/status") or b""
        line = next((line for line in data.splitlines() if line.startswith(b"NSpid:")), b"")
        return int(line.split()[-1]) if len(line.split()) > 1 else tid

    def children(self) -> tuple[tuple[int, str], ...]:
        """Return pid and name of every child."""
        lists = (self._proc.read(f"task/{tid}/children") or b"" for tid in self._proc.threads())
        pids = [int(word) for words in lists for word in words.split()]
        return tuple((pid, process_name(pid)) for pid in sorted(pids))


def process_name(pid: int) -> str:
    """Return the name of any process; "?" when it has ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return "?"


def sees_other_tids(proc: ProcFs) -> bool:
    """Whether the process lives in another pid namespace than we do."""
    ours, theirs = _namespace("/proc/self/ns/pid"), proc.link("ns/pid")
    return ours is not None and theirs is not None and ours != theirs


def _namespace(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
