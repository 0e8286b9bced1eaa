"""Every thread of a process at one instant.

Law: threads that run are stopped one after the other, and none is let go before the last has been captured;
those that sleep are read meanwhile, and it is seen whether one of them ran.  All are let go whatever happens.
"""

import gc
import time
from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.process.priority import REAL_TIME_PRIORITY
from sfsample.process.procfs import ProcFs
from sfsample.process.sleeping_thread import SleepingThread, read_sleeping_thread
from sfsample.process.stack_copy import StackCopy
from sfsample.process.stop_request import OTHER_PROCESS, NotCaptured, Tracer

_ROUNDS = 4  # threads that are born while others are being stopped are looked for so many times
_SETTLE_S = 1.0


class ConsistentCapture(NamedTuple):
    """What was captured, by thread.  `ran` are those of which it is not one instant: they ran meanwhile."""

    stopped: dict[int, ThreadSnapshot | NotCaptured]
    read: dict[int, SleepingThread]
    ran: tuple[int, ...]
    held_ns: int


def capture_consistently(proc: ProcFs, arch: Arch, copy: StackCopy, *, child: bool) -> ConsistentCapture:
    """Capture every thread."""
    tracers: dict[int, Tracer] = {}
    stopped: dict[int, ThreadSnapshot | NotCaptured] = {}
    collecting = gc.isenabled()
    gc.disable()
    SUSPEND_LOCK.acquire()
    REAL_TIME_PRIORITY.begin()
    began = time.perf_counter_ns()
    try:
        asleep = _stop_running(proc, arch, tracers, stopped, child=child)
        read = {
            tid: reading
            for tid in asleep
            if (reading := read_sleeping_thread(proc, arch, copy, tid)) is not None
        }
        held = {tid: tracer for tid, tracer in tracers.items() if tid not in stopped}
        stopped |= {tid: _capture(proc, tracer, copy, tid) for tid, tracer in held.items()}
        ran = tuple(tid for tid, counters in asleep.items() if proc.counters(tid) != counters)
    finally:
        for tracer in tracers.values():
            tracer.release()
        held_ns = time.perf_counter_ns() - began
        REAL_TIME_PRIORITY.end()
        SUSPEND_LOCK.release()
        if collecting:
            gc.enable()
    _settle(tracers)
    return ConsistentCapture(stopped, read, ran, held_ns)


def _stop_running(
    proc: ProcFs,
    arch: Arch,
    tracers: dict[int, Tracer],
    missed: dict[int, ThreadSnapshot | NotCaptured],
    *,
    child: bool,
) -> dict[int, bytes | None]:
    """Stop whatever runs until nothing does; return the scheduler's counters of those that sleep."""
    asleep: dict[int, bytes | None] = {}
    for _ in range(_ROUNDS):
        found = False
        for tid, stat in proc.thread_stats():
            if tid in tracers or stat.state in "ZX":
                continue
            if stat.state != "R":
                asleep[tid] = proc.counters(tid)
                continue
            asleep.pop(tid, None)
            tracers[tid] = tracer = Tracer(proc.pid, arch, child=child)
            failure = tracer.stop(tid)
            if failure is not None:
                missed[tid] = failure
            found = True
        if not found:
            break
    return asleep


def _capture(proc: ProcFs, tracer: Tracer, copy: StackCopy, tid: int) -> ThreadSnapshot | NotCaptured:
    """Copy registers and stack of a thread that is held."""
    sp = tracer.registers(tid)
    if sp is None:
        return NotCaptured(gone=True, why="killed while it was stopped")
    copy.fill(tid, sp)
    if proc.counters(tid) is None:  # asked through a file of this process
        return NotCaptured(gone=True, why=OTHER_PROCESS)
    copy.learn_extent(tid, sp)
    registers = tracer.dwarf_registers()
    eintr = not tracer.mend(tid) and tracer.eintr(tid, registers)
    return ThreadSnapshot(tid, registers, copy.memory(), copy.bounded, 0, eintr, tracer.arch)


def _settle(tracers: dict[int, Tracer]) -> None:
    """Release those that did not stop in time, when they do; the kernel does when our OS thread ends."""
    deadline = time.monotonic() + _SETTLE_S
    late = list(tracers.values())
    while (late := [tracer for tracer in late if not tracer.settle()]) and time.monotonic() < deadline:
        time.sleep(0.001)
