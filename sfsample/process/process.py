"""A live process, ready to be captured: its /proc, its modules, its tracer.

Law: opened after every reason against it has been checked; closed with nothing left stopped.
"""

import os
import time
from errno import EPERM
from functools import partial

from sfsample.core.memory import Address
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack
from sfsample.errors import NotPermitted, UnsupportedTarget
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.process.consistent_capture import ConsistentCapture, capture_consistently
from sfsample.process.find import check, check_free, not_permitted
from sfsample.process.image_cache import ImageCache
from sfsample.process.image_opener import ImageOpener
from sfsample.process.module_identity import ModuleIdentities
from sfsample.process.new_ids import NewIds
from sfsample.process.permission.evidence import held_by_us, tracer_of
from sfsample.process.process_root import root_of
from sfsample.process.procfs import Asleep, ProcFs, Stat
from sfsample.process.sleeping_thread import SleepingThread, read_sleeping_thread
from sfsample.process.stack_copy import StackCopy
from sfsample.process.stop_request import (
    PATIENCE_NS,
    NotCaptured,
    await_stop,
    detach_newborn_tracees,
    may_attach,
)
from sfsample.process.stop_window import ANY, DEFAULT_STACK_BYTES, Capturer, Only
from sfsample.process.syscall_restart import restarts
from sfsample.process.tracer_thread import TracerThread
from sfsample.process.vm import read_memory

_CLOSE_DEADLINE_S = 1.0
_FREE_S = 0.0002
# an exiting thread is refused too, an execve(2) may have given its id to another since, and a tracer that was
# in the way may have left before we looked who it was
_TRIES = 3


class LiveProcess:
    """Process `pid`.  Raises a TargetError that says why it cannot be looked at."""

    def __init__(
        self,
        pid: int,
        stack_bytes: int = DEFAULT_STACK_BYTES,
        *,
        attach: bool = True,
        shared: ImageCache | None = None,
    ) -> None:
        """Open it, and find out whether it may be traced.

        `attach` False leaves that open, for who will not stop a thread, or can live with a refusal then.
        `shared`: what it has in common with others that are open.
        """
        shared = shared or ImageCache()
        if pid == os.getpid():
            raise UnsupportedTarget(
                pid, f"cannot sample itself: {pid}", "ptrace(2) does not let a process trace itself"
            )
        self.pid = pid
        self.proc = ProcFs(pid)
        self.accounted_ns: int | None = None  # CPU time that a recording has told of; another goes on there
        self._mapped = False
        try:
            self.arch = check(self.proc)
            if attach:
                self._try_attaching()
            self.opener = ImageOpener(self.proc, shared)
            self.home = root_of(self.proc, shared)
            stat = self.proc.stat()
            self.born, self.name = (stat.starttime, stat.name) if stat else (0, "?")  # when; in clock ticks
            tables_of = partial(shared.tables_of, self.home.root)
            self.index = ModuleMap(self._maps, self.opener, self._read_memory, tables_of)
            self.index.refresh()
        except BaseException:
            self.proc.close()
            raise
        self._marks = ModuleIdentities(self.index)
        self._is_child = child = self.proc.status().get("PPid") == str(os.getpid())
        self._instant: ConsistentCapture | None = None
        self._births = NewIds()
        self._copy = StackCopy(pid, self.arch, self._extent, stack_bytes)
        self.capturer = Capturer(self.proc, self.arch, self._copy, child=child)

    def _try_attaching(self) -> None:
        """Find out whether the kernel lets us, before anything counts.  Nothing is stopped.

        A thread of ours attaches and ends, which detaches.
        """
        check_free(self.proc)
        tid = self.proc.anchor()
        stat = self.proc.thread_stat(tid)
        if stat is not None and stat.state == "T":
            return  # attaching would wake it for a moment, and its state be seen wrongly
        if TracerThread(lambda _: may_attach(tid), lambda: False).run():
            self._until_free(tid)
            return
        stat = self.proc.thread_stat(tid)
        if stat is not None and stat.state not in "ZX" and not tracer_of(self.proc, tid):
            raise not_permitted(self.proc)

    def _until_free(self, tid: int) -> None:
        """Wait until a thread of ours that has done its work has really ended, and let go."""
        deadline = time.monotonic() + _CLOSE_DEADLINE_S
        while held_by_us(self.proc, tid) and time.monotonic() < deadline:
            time.sleep(_FREE_S)

    def _extent(self, sp: int) -> tuple[int, int] | None:
        """Return where a stack begins and ends; arguments and environment are not part of it."""
        mapping = self.index.any_mapping(Address(sp))
        if mapping is None:
            return None
        stat = self.proc.stat() if mapping.path == "[stack]" else None
        top = stat.stack_top if stat else 0
        return mapping.start, top if sp < top < mapping.end else mapping.end

    def _maps(self) -> tuple[Mapping, ...]:
        """Return the memory map.  One that was read stays true when it is refused: prctl(2) can do that."""
        try:
            maps = self.proc.maps()
        except NotPermitted as refusal:
            problem = f"{refusal} any more; what was mapped later has no names"
            if not self._mapped:
                raise
            if problem not in self.opener.problems:
                self.opener.problems.append(problem)
            return ()
        self._mapped = True
        return maps

    def _read_memory(self, address: int, size: int) -> bytes | None:
        return read_memory(self.proc.anchor(), address, size)

    def threads(self) -> list[tuple[int, Stat]]:
        """Return the threads that have not ended, with their state now.

        One that only we hold (it had not stopped in time, and has by now) is one that runs.
        """
        stats = self.proc.thread_stats()
        self._copy.keep_only(tid for tid, _ in stats)
        return [(tid, self._as_without_us(tid, stat)) for tid, stat in stats if stat.state not in "ZX"]

    def _as_without_us(self, tid: int, stat: Stat) -> Stat:
        return stat._replace(state="R") if stat.state == "t" and held_by_us(self.proc, tid) else stat

    def tids(self, *, force: bool) -> list[int] | None:
        """Return the ids of the threads; None: none was added since the last time (unless `force`)."""
        if not self._births.any() and not force:
            return None
        detach_newborn_tracees()
        tids = self.proc.threads()
        self.proc.keep_only(tids)
        self._copy.keep_only(tids)
        self.capturer.balances.keep_only(tids)
        return tids

    def replaced(self, tid: int, modules: frozenset[Module]) -> bool:
        """Whether one of these modules is no longer what is mapped at its place."""
        return self._marks.replaced(tid, modules)

    def capture_consistently(self) -> ConsistentCapture:
        """Capture all threads at one instant; `read` and `capture` give that until `leave_instant`."""
        self._instant = capture_consistently(
            self.proc, self.capturer.tracer.arch, self._copy, child=self._is_child
        )
        return self._instant

    def leave_instant(self) -> None:
        """Return to looking at threads when they are asked for."""
        self._instant = None

    def read(self, tid: int) -> SleepingThread | None:
        """Read one thread without stopping it; None: it does not sleep, has ended, or may not be read."""
        if self._instant is not None:
            return self._instant.read.get(tid)
        return read_sleeping_thread(self.proc, self.capturer.tracer.arch, self._copy, tid)

    def restarts(self, asleep: Asleep) -> bool:
        """Whether a thread that sleeps like this can be stopped without its noticing."""
        return self._instant is None and restarts(self.proc, asleep)

    def learn(self, tid: int, stack: Stack) -> bool:
        """Learn from a walk; True when the same capture would now give more."""
        return self._copy.learn_trampolines(stack) or self._copy.learn_other_stacks(tid, stack)

    def limit_pauses(self, most_ns: int) -> None:
        """Let a thread go that has been held for longer than that."""
        self.capturer.most_ns = most_ns

    def await_stop(self, seconds: float) -> None:
        """Sleep until a thread that was asked to stop does, but not longer."""
        await_stop(seconds)

    def catch(self) -> None:
        """Capture threads that were asked to stop and have by now, all before any of them is walked."""
        self.capturer.catch()

    def has_stopped(self, tid: int) -> bool:
        """Whether a thread that was asked to stop had stopped, or ended, when `catch` looked."""
        return self.capturer.has_stopped(tid)

    def settled(self) -> bool:
        """Release threads that stopped too late; False while one is still to stop."""
        return self.capturer.settle()

    def capture(
        self, tid: int, patience_ns: int = PATIENCE_NS, only: Only = ANY
    ) -> ThreadSnapshot | NotCaptured:
        """Stop one thread, if it is one of `only` those, and capture it.

        Raises NotPermitted when the kernel refuses although it lives.
        That somebody else traces a thread is no such refusal: others may be free, and another sampler lets go
        in an instant.
        """
        for _ in range(_TRIES):
            taken = self._capture(tid, patience_ns, only)
            if not isinstance(taken, NotCaptured) or taken.errno != EPERM:
                return taken
            refused = self._refused(tid)
            if refused is not None:
                return refused
        raise not_permitted(self.proc)

    def _capture(self, tid: int, patience_ns: int, only: Only) -> ThreadSnapshot | NotCaptured:
        if self._instant is None:
            return self.capturer.capture(tid, patience_ns, only)
        return self._instant.stopped.get(tid) or NotCaptured(gone=False, why="ran, but not at that instant")

    def _refused(self, tid: int) -> NotCaptured | None:
        """Return why a thread could not be attached to; None: nothing is in the way any more."""
        stat = self.proc.thread_stat(tid)
        if stat is None or stat.state in "ZX":
            return NotCaptured(gone=True, why="exited")
        self._until_free(tid)
        tracer = tracer_of(self.proc, tid)
        if tracer:
            return NotCaptured(gone=False, why=f"process {tracer} traces it", errno=EPERM)
        if self._instant is not None:
            return NotCaptured(gone=False, why="another process traced it at that instant")
        return None

    def close(self) -> None:
        """Release every thread that was asked to stop.

        One that does not stop for a second is released by the kernel when the calling OS thread ends.
        """
        deadline = time.monotonic() + _CLOSE_DEADLINE_S
        while not self.settled() and time.monotonic() < deadline:
            time.sleep(0.001)
        self.capturer.close()
        self._births.close()
        self.proc.close()
