"""One thread, one instant: registers and a slice of stack.

Law: inside the window (the `try` block) there are system calls and nothing else: no parsing, no look-up of
modules, no allocation that could be made before or after.  The window closes whatever happens in it.
"""

import gc
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.snapshot import LastRun, Scheduled, ThreadSnapshot
from sfsample.process.last_run import Balances, balance_of, changed_places, runs_of
from sfsample.process.priority import REAL_TIME_PRIORITY
from sfsample.process.procfs import ProcFs, parse_last_run
from sfsample.process.stack_copy import StackCopy
from sfsample.process.stop_request import OTHER_PROCESS, PATIENCE_NS, NotCaptured, Tracer

DEFAULT_STACK_BYTES = 256 * 1024
NO_LIMIT_NS = 1 << 62
_TOO_LONG = "to copy its stack took longer than --max-pause (allow more, or copy less: --stack-bytes)"
_OFF = "it has no processor"
_ASK = 3  # times whether a thread has a processor, if it is given one meanwhile


class Only(NamedTuple):
    """Which threads to stop.

    `awake`: none that sleeps.  `ours`, when we were given the processor: none that has no processor, unless
    it lost it to us then, or as far as `again` knows since; where the kernel does not tell who has one, as
    `awake`.
    """

    awake: bool
    ours: bytes | None = None
    again: Callable[[], bytes | None] = lambda: None


ANY: Final = Only(awake=False)
AWAKE: Final = Only(awake=True)


class Before(NamedTuple):
    """What the scheduler said of a thread just before it was asked to stop (as in `Scheduled`)."""

    counters: bytes | None = None
    asleep: bool = False
    balance: int | None = None
    lost: bool | None = None


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
        self._caught: dict[int, ThreadSnapshot | NotCaptured] = {}  # and have since: what `capture` will say
        self._closed = False
        self._busy = False
        self.balances = Balances()
        self.most_ns = NO_LIMIT_NS  # for which a thread may be held

    def capture(
        self, tid: int, patience_ns: int = PATIENCE_NS, only: Only = ANY
    ) -> ThreadSnapshot | NotCaptured:
        """Stop a thread, copy, let it run; everything else happens after that.

        What it does is asked last of all (`only`), so that it still does that when it is stopped.
        """
        caught = self._caught.pop(tid, None)
        if caught is not None:
            return caught
        self._busy = True
        try:
            return self._capture(tid, patience_ns, only)
        finally:
            self._busy = False

    def _capture(self, tid: int, patience_ns: int, only: Only) -> ThreadSnapshot | NotCaptured:
        tracer, copy, counters = self.tracer, self._copy, self._proc.counters
        before = self._before.pop(tid, None)
        if before is None:  # otherwise it was asked to stop, and may stand already
            tracer.rehearse(tid)
            copy.rehearse(tid)
        sp: int | None = None
        whole, mended = True, False
        stopped_ns = 0
        after: bytes | None = None
        collecting = gc.isenabled()
        gc.disable()  # a collection must not fall into the pause
        self._close_gate()
        try:
            missed = None
            if before is None:
                missed, before = self._approach(tid, only)
                if before.lost:
                    patience_ns = 0  # it has no processor, and this one is ours
            missed = missed or tracer.stop(tid, patience_ns)
            if missed is None:
                stopped_ns = time.perf_counter_ns()
                sp = tracer.registers(tid)
                if sp is not None:
                    whole = copy.fill(tid, sp, stopped_ns + self.most_ns)
                    after = counters(tid)
                    mended = tracer.mend(tid)
        finally:
            stop_ns = tracer.release()
            now = time.perf_counter_ns()
            kept_ns = now - stopped_ns, now - tracer.runs_ns
            self._reopen_gate()
            if collecting:
                gc.enable()
        if missed is not None:
            if missed.waiting:
                self._before[tid] = before
            return missed
        if sp is None:
            return NotCaptured(gone=True, why="killed while it was stopped")
        if after is None:  # asked through a file of this process
            return NotCaptured(gone=True, why=OTHER_PROCESS)
        self.balances.learn(tid, before.balance, had=runs_of(after) == runs_of(before.counters))
        registers = tracer.dwarf_registers()
        copy.learn_extent(tid, sp)
        eintr = not mended and tracer.eintr(tid, registers)
        slept = tracer.slept(registers)
        snapshot = ThreadSnapshot(
            tid, registers, copy.memory(), copy.bounded, stop_ns, eintr, tracer.arch,
            scheduled=Scheduled(before.counters, after, stopped_ns, slept, before.lost, kept_ns),
        )  # fmt: skip
        return snapshot if whole else NotCaptured(gone=False, why=_TOO_LONG, stops=(snapshot,))

    def _approach(self, tid: int, only: Only) -> tuple[NotCaptured | None, Before]:
        """Return why a thread is not to be stopped, and what the scheduler says of it."""
        before, run = self._ask(tid, only)
        has = self.balances.has_processor(tid, before.balance)
        if only.awake and not has:
            if before.asleep:
                self.balances.learn(tid, before.balance, had=False)
                return NotCaptured(gone=False, why=_OFF, off=before.counters), before
            lost = run is not None and (_is_lost(run, only.ours) or _is_lost(run, only.again()))
            if has is False and not lost:
                return NotCaptured(gone=False, why=_OFF, off=before.counters, runnable=True), before
            if runs_of(self._proc.counters(tid)) == runs_of(before.counters):  # it has been given none since
                before = before._replace(lost=None if run is None else lost)
        return None, before

    def _ask(self, tid: int, only: Only) -> tuple[Before, LastRun | None]:
        """Return what the scheduler says of a thread, and when it last ran; all at one instant, or None.

        Whether it sleeps is asked first: one that waits for a processor does so until it is given one.
        """
        proc, counters = self._proc, self._proc.counters(tid)
        for _ in range(_ASK if only.ours else 0):
            earlier, asleep = counters, proc.asleep(tid) is not None
            run, counters = proc.last_run(tid), proc.counters(tid)
            balance = balance_of(earlier, run, counters)
            if balance is not None:
                return Before(counters, asleep, balance, lost=False), run
        return Before(counters, proc.asleep(tid) is not None), None

    def catch(self) -> None:
        """Capture threads that were asked to stop and have by now, for whoever asks next, and let them go."""
        for tid in () if self._busy else tuple(self._before):
            if self.tracer.has_stopped(tid):
                taken = self.capture(tid, 0)
                if tid not in self._before:
                    self._caught[tid] = taken

    def has_stopped(self, tid: int) -> bool:
        """Whether a thread that was asked to stop had when `catch` looked: `capture` will say more."""
        return tid not in self._before

    def settle(self) -> bool:
        """Release threads that have stopped too late; True: none is still to stop."""
        self._caught.clear()
        if not self._closed:
            return True  # nobody is held, or was asked to stop
        settled = self.tracer.settle()
        self._before = {tid: before for tid, before in self._before.items() if tid in self.tracer.late}
        self._reopen_gate()
        return settled

    def _close_gate(self) -> None:
        if not self._closed:
            PENDING_STOPS.add(self.catch)
            self._closed = True
            REAL_TIME_PRIORITY.begin()

    def _reopen_gate(self) -> None:
        if not self.tracer.late:
            self.close()

    def close(self) -> None:
        """Open the gate: the kernel lets go of what we still hold."""
        if self._closed:
            self._closed = False
            REAL_TIME_PRIORITY.end()
            PENDING_STOPS.remove(self.catch)


def _is_lost(run: LastRun, ours: bytes | None) -> bool:
    """Whether a thread that ran then lost its processor to us, who say this."""
    return changed_places(run, parse_last_run(ours))
