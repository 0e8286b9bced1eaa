"""Captures a sleeping thread by reading /proc and its memory, without stopping it.

A thread that does not run does not change.  /proc/PID/task/TID/syscall gives its pc, its sp and the arguments
of its system call; process_vm_readv(2) gives its stack.  If the scheduler's counters are equal before and
after the reading, the thread has not run meanwhile.  The snapshot lacks all other registers.  A walk that
needs an absent register ends with REGISTER_UNKNOWN.

Source: proc(5), /proc/PID/syscall and schedstat; Linux lib/syscall.c (collect_syscall): if the thread is
awake before or after the kernel reads the registers, the kernel writes "running".  For a thread that
has no stack any more, the kernel writes "-1 0x0 0x0".
"""

import re
from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.snapshot import Capture, Registers, SchedulerEvidence, ThreadSnapshot
from sfsample.process.proc_text import SyscallInfo, parse_schedstat
from sfsample.process.registers import layout_of
from sfsample.process.stack_copy import StackCopy
from sfsample.process.thread import Thread

_MAX_ATTEMPTS = 2


class SleepingThread(NamedTuple):
    """A snapshot of a thread that sleeps, its system call, and the scheduler's counters at that time."""

    snapshot: ThreadSnapshot
    asleep: SyscallInfo
    counters: bytes

    def has_run_once_since(self, counters: bytes | None) -> bool:
        """Return True if the thread was put on a CPU exactly once since `counters`; False: no, or unknown."""
        old, new = parse_schedstat(counters), parse_schedstat(self.counters)
        return old is not None and new is not None and new.times - old.times == 1


def read_sleeping_thread(arch: Arch, copy: StackCopy, thread: Thread) -> SleepingThread | None:
    """Read a thread; None: the thread runs or wakes up often, has ended, or may not be read."""
    files = thread.files
    for _ in range(_MAX_ATTEMPTS):
        counters, asleep = files.counters(), files.asleep()
        if counters is None or asleep is None:
            return None
        if not (asleep.pc or asleep.sp):  # a worker of the kernel, or a thread that has ended
            stat = files.stat()
            if stat is None or stat.state in "ZX":
                return None
        copy.fill(thread, asleep.sp)
        if files.asleep() == asleep and files.counters() == counters:
            memory, bounded = copy.result(thread, asleep.sp)
            registers = _registers(arch, asleep, counters)
            snapshot = ThreadSnapshot(
                thread.tid, registers, memory, bounded, 0, eintr=False, arch=arch,
                capture=Capture.READ, scheduler=SchedulerEvidence(counters, counters),
            )  # fmt: skip
            return SleepingThread(snapshot, asleep, counters)
    return None


def _registers(arch: Arch, asleep: SyscallInfo, counters: bytes) -> Registers:
    layout, registers = layout_of(arch), Registers()
    if asleep.number >= 0 and layout.pending_result is not None:
        registers[layout.result] = layout.pending_result
    # the kernel does not change the argument registers; one of them has the return address of glibc's vfork
    registers.update(zip(layout.arguments, asleep.args, strict=False))
    stat = parse_schedstat(counters)
    if not (stat.times if stat else any(map(int, re.findall(rb"\d+", counters)))):  # a thread that never ran
        registers[layout.result] = 0  # result of clone(2) in the new thread
    registers.update({arch.pc: asleep.pc, arch.sp: asleep.sp})
    return registers
