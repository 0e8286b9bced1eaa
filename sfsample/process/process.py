"""Defines a live process that sfsample can capture: /proc directory, modules, threads and tracer."""

import os
import time
from contextlib import suppress
from functools import partial
from typing import Any

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.memory import Address
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.walk_limits import DEFAULT_STACK_BYTES
from sfsample.errors import NotPermitted, TargetError, UnsupportedTarget
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.process.capture_running import ANY_THREAD, RunningCapture, StopFilter
from sfsample.process.capture_sleeping import SleepingThread, read_sleeping_thread
from sfsample.process.image_cache import ImageCache
from sfsample.process.image_opener import ImageOpener
from sfsample.process.module_identity import ModuleIdentities
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.permission.check import check, check_permitted, not_permitted
from sfsample.process.permission.evidence import tracer_of
from sfsample.process.proc_text import Stat, SyscallInfo
from sfsample.process.procfs import NewIds, ProcFs
from sfsample.process.stack_copy import StackCopy
from sfsample.process.stop_request import PATIENCE_NS, detach_newborn_tracees
from sfsample.process.stuck import check_not_aside
from sfsample.process.syscall_restart import restarts
from sfsample.process.thread import Thread
from sfsample.process.vm import read_memory

_CLOSE_DEADLINE_S = 1.0
_CLOSE_POLL_S = 0.001
_DETACH_POLL_S = 0.0002
# Attempts to attach.  The next attempt may succeed if another tracer has just detached, or if the thread was
# ending (then an execve(2) may have given its id to another thread).
_MAX_ATTEMPTS = 3
_MAX_RECORDINGS = 10  # recordings until a process is opened anew, because the caches of `capturer` grow


class LiveProcess:
    """Process `pid`.  If sfsample cannot sample it, the constructor raises a TargetError with the reason."""

    def __init__(
        self, pid: int, stack_bytes: int = DEFAULT_STACK_BYTES, *,
        attach: bool = True, image_cache: ImageCache | None = None,
    ) -> None:  # fmt: skip
        """Open the process; `attach` False: do not check the permission to trace."""
        images = image_cache or ImageCache()
        if pid == os.getpid():
            raise UnsupportedTarget(
                pid, f"cannot sample itself: {pid}", "ptrace(2) does not let a process trace itself"
            )
        self.pid = pid
        check_not_aside(pid)
        self.proc = ProcFs(pid)
        self.accounted_ns: int | None = None  # CPU time of the process when the recording last read it
        # options and `ThreadCapturer` of the last recording, reused if the options are the same
        self.capturer: tuple[object, Any] = (), None
        self._recordings = 1
        self._mapped = False  # True: the memory map was readable
        try:
            self.arch = check(self.proc)
            if attach:
                check_permitted(self.proc)
            self.root = _root_of(self.proc, images)
            self.opener = ImageOpener(self.proc, images, self.root.root)
            stat = self.proc.stat()
            # `start_time` in clock ticks since boot
            self.start_time, self.name = (stat.starttime, stat.name) if stat else (0, "?")
            self._program = stat.program if stat else ()
            tables_of = partial(images.tables_of, self.root.root)
            self.modules = ModuleMap(self._maps, self.opener, self._read_memory, tables_of)
            self.modules.refresh()
        except BaseException:
            self.proc.close()
            raise
        self.identities = ModuleIdentities(self.modules, self.proc.place_at)
        self._threads: dict[int, Thread] = {}
        self.is_child = child = self.proc.status().get("PPid") == str(os.getpid())
        self._new_ids = NewIds()
        self.copy = StackCopy(pid, self.arch, self._extent, stack_bytes)
        self.running_capture = RunningCapture(pid, self.arch, self.copy, child=child)

    def resume(self, images: ImageCache, *, attach: bool) -> bool:
        """Begin another recording; False: the process must be opened anew, for example after an execve(2)."""
        self._recordings, self.accounted_ns, self.copy.cut_short = self._recordings + 1, None, 0
        self._forget_ended([])  # by now, a thread id may belong to a new thread
        stat = self.proc.stat()
        # the kernel hides the stack's top if sfsample may not read the process any more
        if stat is None or not stat.stack_top or stat.program != self._program:
            return False
        if attach:
            check_permitted(self.proc)
        self.running_capture = RunningCapture(self.pid, self.arch, self.copy, child=self.is_child)
        return self._recordings <= _MAX_RECORDINGS and _root_of(self.proc, images) == self.root

    def _wait_for_own_detach(self, tid: int) -> None:
        """Wait until the kernel has detached thread `tid` from an OS thread of sfsample that is ending."""
        deadline = time.monotonic() + _CLOSE_DEADLINE_S
        while tracer_of(self.proc, tid) == os.getpid() and time.monotonic() < deadline:
            time.sleep(_DETACH_POLL_S)

    def _extent(self, sp: int) -> tuple[int, int] | None:
        """Return start and end of the stack at `sp`, without arguments and environment; None: unmapped."""
        mapping = self.modules.any_mapping(Address(sp))
        if mapping is None:
            return None
        stat = self.proc.stat() if mapping.path == "[stack]" else None
        top = stat.stack_top if stat else 0
        return mapping.start, top if sp < top < mapping.end else mapping.end

    def _maps(self) -> tuple[Mapping, ...]:
        """Return the memory map; () if an execve(2) of a setuid program or prctl(2) made it unreadable."""
        try:
            maps = self.proc.maps()
        except NotPermitted as refusal:
            problem = f"{refusal} any more; files mapped later have no names"
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
        """Return the living threads by ascending id; a stopped thread counts as running until its capture."""
        stats = self.proc.thread_stats()
        self._forget_ended([tid for tid, _ in stats])
        held = {tid for tid, stat in stats if stat.state == "t" and tracer_of(self.proc, tid) == os.getpid()}
        return [(tid, stat._replace(state="R") if tid in held else stat)
                for tid, stat in stats if stat.state not in "ZX"]  # fmt: skip

    def tids(self, *, force: bool) -> list[int] | None:
        """Return the thread ids; None: not `force`, and no thread was created since the last call."""
        if not self._new_ids.any() and not force:
            return None
        detach_newborn_tracees()
        tids = self.proc.threads()
        self._forget_ended(tids)
        return tids

    def thread(self, tid: int) -> Thread:
        """Return the `Thread` of a thread id: the same instance until the thread ends."""
        thread, files = self._threads.get(tid), self.proc.thread(tid)
        if thread is None or thread.files is not files:
            thread = self._threads[tid] = Thread(tid, files)
        return thread

    def own_id(self, tid: int) -> int:
        """Return the id of a thread in the pid namespace of the process (proc(5), NSpid)."""
        if self.root.pid == self.pid:
            return tid
        return int((self.proc.status(tid).get("NSpid") or "0").split()[-1])

    def _forget_ended(self, alive: list[int]) -> None:
        self.proc.keep_only(alive)
        for tid in self._threads.keys() - {*alive}:
            self._threads.pop(tid).stop.thread = None  # ends the thread's captures, breaks a reference cycle

    def restarts(self, asleep: SyscallInfo) -> bool:
        """Return True if a stop of a thread that sleeps in this call has no effect on the call."""
        return restarts(self.proc, asleep)

    def read(self, thread: Thread) -> SleepingThread | None:
        """Read one thread without a stop; None: the thread is awake, has ended, or may not be read."""
        return read_sleeping_thread(self.running_capture.tracer.reader.arch, self.copy, thread)

    def capture(
        self, thread: Thread, patience_ns: int = PATIENCE_NS, stop_filter: StopFilter = ANY_THREAD
    ) -> ThreadSnapshot | NotCaptured:
        """Stop one thread, if the filter permits it, and capture it.

        Raises NotPermitted if the kernel refuses although the thread lives.  If another process traces the
        thread, the result is NotCaptured: other threads may be free, and another sampler detaches soon.
        """
        for _ in range(_MAX_ATTEMPTS):
            taken = self.running_capture.capture(thread, patience_ns, stop_filter)
            if not isinstance(taken, NotCaptured) or taken.reason is not Reason.REFUSED:
                return taken
            refusal = self.refusal(thread.tid)
            if refusal is not None:
                return refusal
        raise not_permitted(self.proc)

    def refusal(self, tid: int) -> NotCaptured | None:
        """Return the reason why sfsample could not attach to a thread; None: the next attempt may succeed."""
        stat = self.proc.thread(tid).stat()
        if stat is None or stat.state in "ZX":
            return NotCaptured(Reason.GONE, "exited")
        self._wait_for_own_detach(tid)
        tracer = tracer_of(self.proc, tid)
        if tracer not in (0, os.getpid()):
            return NotCaptured(Reason.REFUSED, f"process {tracer} traces it")
        return None

    def release(self) -> None:
        """Release every thread that was asked to stop; the kernel releases a thread that stops too late."""
        deadline = time.monotonic() + _CLOSE_DEADLINE_S
        while not self.running_capture.release_pending() and time.monotonic() < deadline:
            time.sleep(_CLOSE_POLL_S)
        self.running_capture.close()

    def close_files(self) -> None:
        """Close all files."""
        self._new_ids.close()
        self.proc.close()

    def close(self) -> None:
        """Release every thread that was asked to stop, and close all files."""
        self.release()
        self.close_files()


def open_process(pid: int, stack_bytes: int, images: ImageCache, *, attach: bool) -> LiveProcess:
    """Return the process that an earlier recording has left open in `images`, or open it."""
    if process := images.processes.pop(pid, None):
        with suppress(TargetError):  # the constructor raises the error again
            if process.resume(images, attach=attach):
                return process
        process.close()
    return LiveProcess(pid, stack_bytes, attach=attach, image_cache=images)


def _root_of(proc: ProcFs, images: ImageCache) -> ProcessRoot:
    """Return the root directory, pid and user id of a process as the process itself sees them.

    By these values sfsample finds debug files and perf maps even after the end of the process.  Source:
    proc(5): `Uid` (second number: effective id), `NSpid` (last number: id in the innermost namespace).
    """
    status = proc.status()
    pid = int((status.get("NSpid") or str(proc.pid)).split()[-1])
    uid = int((status.get("Uid") or "0 0").split()[1])
    mounts = proc.link("ns/mnt")
    try:
        root = images.root(f"/proc/{proc.anchor()}/root", mounts)
    except OSError:
        root = None
    return ProcessRoot(root, pid, uid, mounts)
