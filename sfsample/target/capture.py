"""One thread, one instant: registers and a slice of stack.

Law: inside the window (the `try` block) there are system calls and nothing else: no parsing, no look-up of
modules, no allocation that could be made before or after.  The window closes whatever happens in it.
"""

import gc
import time
from typing import NamedTuple

from sfsample.arch import Arch
from sfsample.model import LastRun, Scheduled, ThreadSnapshot
from sfsample.target.gate import CLOSERS
from sfsample.target.procfs import ProcFs
from sfsample.target.stack_copy import StackCopy
from sfsample.target.tracer import PATIENCE_NS, Missed, Tracer

DEFAULT_STACK_BYTES = 256 * 1024
NO_LIMIT_NS = 1 << 62


class Before(NamedTuple):
    """What the scheduler said of a thread just before it was asked to stop (as in `Scheduled`)."""

    counters: bytes | None = None
    run: LastRun | None = None


def check_size(stack_bytes: int) -> None:
    """Raise ValueError for a size that makes no sense."""
    if not 1 << 10 <= stack_bytes <= 1 << 30:
        raise ValueError(f"stack_bytes must be between 1 KiB and 1 GiB, not {stack_bytes}")


class Capturer:
    """Captures threads of one process by stopping them."""

    def __init__(self, proc: ProcFs, arch: Arch, copy: StackCopy, *, child: bool = False) -> None:
        self._copy = copy
        self._proc = proc
        self.tracer = Tracer(proc.pid, arch, child=child)
        self._before: dict[int, Before] = {}  # of threads that were asked to stop and have not yet
        self._closed = False
        self.most_ns = NO_LIMIT_NS  # for which a thread may be held

    def capture(
        self, tid: int, patience_ns: int = PATIENCE_NS, *, unless_asleep: bool = False
    ) -> ThreadSnapshot | Missed:
        """Stop a thread, copy, let it run; everything else happens after that.

        `unless_asleep`: not if it sleeps.  That is asked last of all, so that what it does when it stops is
        what it did when it was asked.
        """
        tracer, copy, counters = self.tracer, self._copy, self._proc.counters
        tracer.rehearse(tid)
        copy.rehearse(tid)
        sp: int | None = None
        whole = True
        stopped_ns = 0
        after: bytes | None = None
        collecting = gc.isenabled()
        gc.disable()  # a collection must not fall into the pause
        self._close_gate()
        before = self._before.pop(tid, None)
        try:
            missed = None
            if before is None:
                missed, before = self._approach(tid, unless_asleep=unless_asleep)
            missed = missed or tracer.stop(tid, patience_ns)
            if missed is None:
                stopped_ns = time.perf_counter_ns()
                sp = tracer.registers(tid)
                if sp is not None:
                    whole = copy.fill(tid, sp, stopped_ns + self.most_ns)
                    after = counters(tid)
        finally:
            stop_ns = tracer.release()
            self._reopen_gate()
            if collecting:
                gc.enable()
        if missed is not None:
            if missed.waiting:
                self._before[tid] = before
            return missed
        if sp is None:
            return Missed(gone=True, why="killed while it was stopped")
        if not whole:
            return Missed(gone=False, why="to copy its stack took longer than --max-pause", stop_ns=stop_ns)
        registers = tracer.dwarf_registers()
        copy.learn_extent(tid, sp)
        eintr = tracer.eintr(tid, registers)
        return ThreadSnapshot(
            tid, registers, copy.memory(), copy.bounded, stop_ns, eintr, tracer.arch,
            scheduled=Scheduled(before.counters, after, stopped_ns, tracer.slept(registers), before.run),
        )  # fmt: skip

    def _approach(self, tid: int, *, unless_asleep: bool) -> tuple[Missed | None, Before]:
        """Become the tracer of a thread, if it is to be stopped."""
        proc = self._proc
        if not unless_asleep:
            return self.tracer.seize(tid), Before(proc.counters(tid))
        waited, run = proc.counters(tid), proc.last_run(tid)
        if proc.asleep(tid) is not None:
            return Missed(gone=False, why="it sleeps", asleep=waited), Before()
        missed, before = self.tracer.seize(tid), proc.counters(tid)
        return missed, Before(before, run if before == waited else None)

    def settle(self) -> bool:
        """Release threads that have stopped too late; True: none is still to stop."""
        settled = self.tracer.settle()
        if settled:
            self._before.clear()
        self._reopen_gate()
        return settled

    def _close_gate(self) -> None:
        if not self._closed:
            CLOSERS.add()
            self._closed = True

    def _reopen_gate(self) -> None:
        if self._closed and not self.tracer.late:
            self._closed = False
            CLOSERS.remove()

    def close(self) -> None:
        """Open the gate: the kernel lets go of what we still hold."""
        if self._closed:
            self._closed = False
            CLOSERS.remove()
