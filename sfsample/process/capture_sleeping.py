"""Captures a sleeping thread by reading /proc and its memory, without stopping it.

A thread that does not run does not change.  /proc/PID/task/TID/syscall gives its pc, sp and the arguments of
its system call, process_vm_readv(2) its stack.  That it has not run meanwhile is proved by the scheduler's
counters, read before and after.  The other registers are unknown: they are absent, and a walk that needs one
says so.

Source: proc(5), /proc/PID/syscall and schedstat; Linux lib/syscall.c: the kernel checks before and after it
reads the registers that the thread sleeps, and says "running" otherwise.  Of a thread that has no stack any
more it says "-1 0x0 0x0" (collect_syscall).
"""

import re
from errno import ENOSYS
from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.snapshot import Capture, Registers, SchedulerEvidence, ThreadSnapshot, parse_schedstat
from sfsample.process.procfs import Asleep, ProcFs
from sfsample.process.stack_copy import StackCopy
from sfsample.process.thread import Thread

_TRIES = 2
# DWARF numbers of the registers that carry a system call's arguments; the kernel leaves them alone.  (vfork
# of glibc keeps its return address in one.)  syscall(2), "Architecture calling conventions".
_ARGUMENTS = {62: (5, 4, 1, 10, 8, 9), 183: (0, 1, 2, 3, 4, 5), 22: (2, 3, 4, 5, 6, 7)}  # by e_machine
# What stands in the result's register until a call is over, in a thread that has run before; in one that has
# not, whose clone(2) it is.
_RESULT = {62: {0: (1 << 64) - ENOSYS}}
_BORN = {62: {0: 0}, 183: {0: 0}, 22: {2: 0}}


class SleepingThread(NamedTuple):
    """What was read of a thread that sleeps, and how the scheduler counted it then."""

    snapshot: ThreadSnapshot
    asleep: Asleep
    counters: bytes

    def has_run_once_since(self, counters: bytes | None) -> bool:
        """Whether it has been put on a processor exactly once; False where that is not known."""
        old, new = parse_schedstat(counters), parse_schedstat(self.counters)
        return old is not None and new is not None and new.times - old.times == 1


def read_sleeping_thread(proc: ProcFs, arch: Arch, copy: StackCopy, thread: Thread) -> SleepingThread | None:
    """Read a thread; None: it runs (or keeps waking up), has ended, or may not be read."""
    tid = thread.tid
    for _ in range(_TRIES):
        counters, asleep = proc.counters(tid), proc.asleep(tid)
        if counters is None or asleep is None or _is_dead(proc, tid, asleep):
            return None
        copy.fill(thread, asleep.sp)
        if proc.asleep(tid) == asleep and proc.counters(tid) == counters:
            copy.learn_extent(thread, asleep.sp)
            registers = _registers(arch, asleep, counters)
            snapshot = ThreadSnapshot(
                tid, registers, copy.memory(), copy.bounded, 0, eintr=False, arch=arch,
                capture=Capture.READ, scheduler=SchedulerEvidence(counters, counters),
            )  # fmt: skip
            return SleepingThread(snapshot, asleep, counters)
    return None


def _is_dead(proc: ProcFs, tid: int, asleep: Asleep) -> bool:
    """Whether a thread has ended, and only stands where those do that work for the kernel."""
    if asleep.pc or asleep.sp:
        return False
    stat = proc.thread_stat(tid)
    return stat is None or stat.state in "ZX"


def _registers(arch: Arch, asleep: Asleep, counters: bytes) -> Registers:
    return {
        **(_RESULT.get(arch.machine, {}) if asleep.number >= 0 else {}),
        **dict(zip(_ARGUMENTS.get(arch.machine, ()), asleep.args, strict=False)),
        **(_BORN.get(arch.machine, {}) if _never_ran(counters) else {}),
        arch.pc: asleep.pc,
        arch.sp: asleep.sp,
    }


def _never_ran(counters: bytes) -> bool:
    """Whether a thread was born, and has not been put on a processor yet (of whichever counters)."""
    counted = parse_schedstat(counters)
    return not (counted.times if counted else any(map(int, re.findall(rb"\d+", counters))))
