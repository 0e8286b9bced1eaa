"""Looks up in a live process what system calls of its threads refer to, and copies the memory around locks.

A dump does this while the process is there and keeps the values, so everything later works without the
process.  Memory is read only where a system call points.
"""

import sys
import time
from collections.abc import Iterable
from functools import partial

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.process.facts.descriptors import Descriptor, DescriptorReader
from sfsample.process.facts.peer_processes import NearEnd
from sfsample.process.facts.syscall_arguments import DecodedSyscall, TargetLookup, decode_syscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.procfs import ProcFs, process_name, read_link
from sfsample.process.syscall_names import syscall_name
from sfsample.process.vm import read_memory

# Bytes copied before and after a futex word: enough for every lock of glibc that the word may be part of.
_BYTES_BEFORE_FUTEX, _BYTES_AFTER_FUTEX = 64, 128
_CALLS_WITH_PEER = ("read", "readv", "write", "writev", "splice", "sendfile", "vmsplice", "tee",
                    "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "connect",
                    "poll", "ppoll", "select", "pselect6")  # fmt: skip
_MAX_DESCRIPTORS = 2  # as splice(2) has; a thread that waits for more waits for no process in particular


class LiveLookup:
    """Looks up facts of one live process."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._in_own_pid_namespace = proc.link("ns/pid") in (None, read_link("/proc/self/ns/pid"))
        self._descriptors = DescriptorReader(proc)
        self._target = TargetLookup(partial(read_memory, proc.anchor()), self._descriptors.read, _now)

    def decode(self, info: SyscallInfo | None) -> DecodedSyscall | None:
        """Return a system call with what it refers to."""
        return None if info is None else decode_syscall(info, syscall_name(info.number), self._target)

    def lock_memory(self, call: DecodedSyscall | None) -> Memory:
        """Return a copy of the memory around the futex word that a thread waits on; empty for other calls."""
        if call is None or call.name != "futex":
            return PiecewiseMemory()
        word = call.syscall.args[0]
        ranges = ((word - _BYTES_BEFORE_FUTEX, _BYTES_BEFORE_FUTEX), (word, _BYTES_AFTER_FUTEX))
        copies = [(start, self._target.read(start, size)) for start, size in ranges if start > 0]
        return PiecewiseMemory(*(BytesMemory(start, data, sys.byteorder) for start, data in copies if data))

    def peer_links(self, calls: Iterable[DecodedSyscall]) -> dict[str, NearEnd]:
        """Return the other ends of the pipes and sockets that calls wait for, as /proc/PID/fd shows them."""
        waited = {descriptor for call in calls
                  if call.name in _CALLS_WITH_PEER and len(call.descriptors) <= _MAX_DESCRIPTORS
                  for descriptor in call.descriptors}  # fmt: skip
        return dict(filter(None, map(self._peer_link, waited)))

    def _peer_link(self, descriptor: Descriptor) -> tuple[str, NearEnd] | None:
        if descriptor.kind == "pipe":
            return f"pipe:[{descriptor.inode}]", NearEnd(descriptor.inode)
        peer = self._descriptors.sockets.peer(descriptor.inode) if descriptor.kind == "socket" else None
        return (f"socket:[{peer.inode}]", NearEnd(descriptor.inode, peer.listens)) if peer else None

    def ns_tid(self, tid: int) -> int:
        """Return a thread's id in its own pid namespace."""
        ids = "" if self._in_own_pid_namespace else self._proc.status(tid).get("NSpid", "")
        return int(ids.split()[-1]) if ids else tid

    def children(self) -> tuple[tuple[int, str], ...]:
        """Return pid and name of every child process."""
        lists = (self._proc.read(f"task/{tid}/children") or b"" for tid in self._proc.threads())
        pids = [int(word) for words in lists for word in words.split()]
        return tuple((pid, process_name(pid)) for pid in sorted(pids))


def _now(clock: int) -> float | None:
    try:
        return time.clock_gettime(clock)
    except OSError:
        return None
