"""Every thread of a process, looked at once or several times.

Law: a thread that cannot be captured is shown with the reason, never left out and never waited for.
Everything that needs the process is taken here, while it is there; what it means is worked out later, from
the values.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.memory import Memory, PiecewiseMemory
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack
from sfsample.modules.module import Module
from sfsample.process.capture import ThreadCapturer, is_seldom
from sfsample.process.consistent_capture import ConsistentCapture
from sfsample.process.facts.file_locks import FileLock, contended_locks
from sfsample.process.facts.live_lookup import LiveLookup, in_other_pid_namespace, process_name
from sfsample.process.facts.peer_processes import NearEnd, PeerProcess, find_peer_processes
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.facts.thread_facts import CpuUsage, FactReader, LastRunTime
from sfsample.process.not_captured import NotCaptured
from sfsample.process.permission.evidence import tracer_of_process
from sfsample.process.proc_text import Stat, SyscallInfo
from sfsample.process.process import LiveProcess
from sfsample.unwind.unwinder import Unwinder

_WAIT_FOR_CHILDREN = ("wait4", "waitid", "vfork", "clone", "clone3")
_GONE = "has ended"
_INEXACT_S = 0.1  # by which two processors' clocks are never wrong together
_TAKE_FILE_LOCKS = ("flock", "fcntl")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REST_NS = 5_000_000  # that a thread which seldom runs is given to go back to sleep
_RESTS_NS = 100_000_000  # and all of them together, in one look
_CALL = 4  # bytes of an instruction that calls the system, at most


class Glance(NamedTuple):
    """What one look at a thread gave.  `at_s` is monotonic; `stack` None: it could not be captured."""

    at_s: float
    state: str
    usage: CpuUsage
    capture: Capture
    stack: Stack | None
    modules: tuple[Module | None, ...]  # of each frame


class ThreadDump(NamedTuple):
    """One thread.  `stack` is None when it could not be captured; then `error` says why.

    `idle_s` is for how long it had not run when it was looked at; `looks` are all looks, oldest first, and
    what stands beside them is of the last close one.
    """

    tid: int
    name: str
    state: str
    capture: Capture
    stop_ns: int | None
    error: str | None
    syscall: SyscallInfo | None
    wchan: str | None
    stack: Stack | None
    modules: tuple[Module | None, ...]  # of each frame
    ns_tid: int = 0  # its id in its own pid namespace
    cpu_ns: int | None = None
    idle_s: float | None = None
    call: DecodedSyscall | None = None
    kernel_stack: tuple[str, ...] = ()
    memory: Memory = PiecewiseMemory()  # around the lock that it waits for
    last_ran: LastRunTime | None = None
    looks: tuple[Glance, ...] = ()
    signal: int = 0  # that it got when its core file was written
    born: int = 0  # its start time, in clock ticks; its id can be given to another thread

    @property
    def moving(self) -> bool | None:
        """Whether it ran between the looks; None: there was only one, or nobody knows.

        A stop makes a sleeping thread run for an instant, so one that was stopped and is where it was has not
        moved.
        """
        if len(self.looks) < 2 or any(look.usage.runs is None for look in self.looks):
            return None
        first, last = self.looks[0], self.looks[-1]
        if any(look.state == "R" for look in self.looks):
            return True
        ran = first.usage.runs != last.usage.runs
        return ran and not (first.capture is Capture.STOPPED and in_one_place(first.stack, last.stack))

    @property
    def asleep(self) -> tuple[float, float] | None:
        """From when until when it slept without any doubt (monotonic); None: there is no such time.

        Its counters prove it between looks; after a single one, `idle_s`, which is less exact.
        """
        if self.capture is Capture.CORE:
            return (0.0, 0.0)  # all at one instant
        if self.moving is False:
            return (self.looks[0].at_s, self.looks[-1].at_s)
        if self.idle_s is None or self.last_ran is None or self.idle_s < _INEXACT_S:
            return None
        return (self.last_ran.read_at_s - self.idle_s + _INEXACT_S, self.last_ran.read_at_s)

    @property
    def busy(self) -> float | None:
        """The part of the time between the first look and the last in which it ran, or wanted to."""
        if len(self.looks) < 2:
            return None
        first, last = self.looks[0], self.looks[-1]
        before, after = ((u.cpu_ns or 0) + (u.waited_ns or 0) for u in (first.usage, last.usage))
        return (after - before) / 1e9 / (last.at_s - first.at_s) if last.at_s > first.at_s else None


class ProcessDump(NamedTuple):
    """One process.  `time` is seconds since the epoch; `others` names processes that are mentioned."""

    pid: int
    name: str
    cmdline: list[str]
    exe: str | None
    time: float
    threads: tuple[ThreadDump, ...]
    problems: tuple[str, ...]
    children: tuple[tuple[int, str], ...] = ()
    locks: tuple[FileLock, ...] = ()
    peers: tuple[PeerProcess, ...] = ()  # of the pipes and sockets that its threads sleep in
    others: tuple[tuple[int, str], ...] = ()
    tracer: tuple[int, str] | None = None
    ran: tuple[int, ...] | None = None  # not at the one instant of the others; None: none was asked for
    root: ProcessRoot | None = None  # where names are to be looked for


def in_one_place(first: Stack | None, last: Stack | None) -> bool:
    """Whether two stacks are equal, but for a step back to the instruction that calls the system.

    On AArch64 a stopped thread has taken it that is going to restart its call, and one that sleeps has not.
    """
    if first is None or last is None or not first.frames or not last.frames:
        return first == last
    inner, again = first.frames[0], last.frames[0]
    back = 0 <= again.pc - inner.pc <= _CALL
    return back and last._replace(frames=(again._replace(pc=inner.pc), *last.frames[1:])) == first


class Dumper:
    """Dumps one process: `look` as often as wanted, then `result`."""

    def __init__(
        self, target: LiveProcess, unwinder: Unwinder, *, stop: bool = True, consistent: bool = False
    ) -> None:
        self._target = target
        self._looker = ThreadCapturer(target, unwinder, stop=stop)
        self._consistent = consistent
        self._instants: list[ConsistentCapture] = []
        self._facts = FactReader(target.proc)
        self._around = LiveLookup(target.proc)
        self._foreign = in_other_pid_namespace(target.proc)
        self._time = time.time()
        self._threads: dict[int, ThreadDump] = {}
        self._wanted: dict[str, NearEnd] = {}
        self._ends: tuple[PeerProcess, ...] = ()
        self._rests_ns = 0

    def look(self) -> None:
        """Look at every thread: at those that are new or have run since the last look, closely."""
        before, self._threads, self._rests_ns = self._threads, {}, _RESTS_NS
        self._around = LiveLookup(self._target.proc)  # a descriptor may be another's by now
        if self._consistent:
            self._instants.append(self._target.capture_consistently())
        try:
            self._look(before)
        finally:
            self._target.leave_instant()

    def _look(self, before: dict[int, ThreadDump]) -> None:
        for tid, stat in self._target.threads():
            known = before.get(tid)
            if known and known.born == stat.starttime:
                thread = self._again(known, stat)
            else:
                thread = self._first(tid, stat)
            if thread is not None:
                self._threads[tid] = thread
            self._target.running.release_pending()  # one that stopped too late is not kept until the end

    def _first(self, tid: int, stat: Stat) -> ThreadDump | None:
        thread = self._known(tid, stat)
        if self._has_rested(thread):
            thread = self._known(tid, self._target.proc.thread_stat(tid) or stat)
        return self._captured(thread)

    def _has_rested(self, thread: ThreadDump) -> bool:
        """Whether a thread that seldom runs ran just now, and has been let go back to sleep."""
        if self._consistent or thread.cpu_ns is None or not is_seldom(thread.cpu_ns, _age_ns(thread.born)):
            return False
        now = time.perf_counter_ns()
        has_rested = self._looker.wait_until_asleep(
            self._target.thread(thread.tid), now + min(_REST_NS, self._rests_ns)
        )
        self._rests_ns -= time.perf_counter_ns() - now
        return has_rested

    def _known(self, tid: int, stat: Stat) -> ThreadDump:
        """Return what the kernel tells of a thread."""
        facts = self._facts.facts(tid)
        call = self._around.decode(facts.syscall)
        ns_tid = self._around.ns_tid(tid) if self._foreign else tid
        return ThreadDump(
            tid, stat.name, stat.state, Capture.FAILED, None, None, facts.syscall, facts.wchan, None, (),
            ns_tid, facts.usage.cpu_ns, None, call, facts.kernel_stack, self._around.lock_memory(call),
            None if stat.state == "R" else facts.last_ran, born=stat.starttime,
        )  # fmt: skip

    def _again(self, known: ThreadDump, stat: Stat) -> ThreadDump | None:
        usage, last = self._facts.usage(known.tid), known.looks[-1]
        if stat.state == last.state != "R" and usage.runs == last.usage.runs:
            return known._replace(looks=(*known.looks, last._replace(at_s=time.monotonic())))
        thread = self._first(known.tid, stat)
        if thread is None:
            return None
        looks, still = (
            (*known.looks, *thread.looks),
            in_one_place(known.stack, thread.stack) and known.state == thread.state,
        )
        if known.capture is Capture.STOPPED and still and known.state != "R":
            return known._replace(looks=looks)  # it ran because we had stopped it: what was seen first holds
        return thread._replace(looks=looks)

    def _captured(self, thread: ThreadDump) -> ThreadDump | None:
        thread = self._stack(thread)
        if thread.error == _GONE:
            return None
        usage = self._facts.usage(thread.tid)
        glance = Glance(time.monotonic(), thread.state, usage, thread.capture, thread.stack, thread.modules)
        return thread._replace(looks=(glance,))

    def _stack(self, thread: ThreadDump) -> ThreadDump:
        self._target.modules.allow_refresh()
        slept = self._consistent and thread.tid in self._instants[-1].read
        found = self._looker.capture(self._target.thread(thread.tid), "S" if slept else thread.state)
        if isinstance(found, NotCaptured):
            return thread._replace(error=_GONE if found.gone else found.detail)
        snapshot = found.snapshot
        stop_ns = snapshot.stop_ns if snapshot.capture is Capture.STOPPED else None
        return thread._replace(
            capture=snapshot.capture, stop_ns=stop_ns, stack=found.stack, modules=found.modules
        )

    def result(self) -> ProcessDump:
        """Return what was seen."""
        target, proc = self._target, self._target.proc
        process = proc.stat()
        threads = tuple(self._idle(thread) for _, thread in sorted(self._threads.items()))
        calls = [thread.call for thread in threads if thread.call]
        locks, others = _file_locks(calls), self._other_ends(calls)
        named = sorted({*(lock.holder for lock in locks), *(end.pid for end in others)} - {-1, 0, target.pid})
        return ProcessDump(
            target.pid, process.name if process else "?", _command_line(target), proc.link("exe"), self._time,
            threads, (*target.opener.problems, *target.modules.problems),
            self._around.children() if any(call.name in _WAIT_FOR_CHILDREN for call in calls) else (),
            locks, others, tuple((pid, process_name(pid)) for pid in named),
            tracer_of_process(proc) if any(t.state == "t" for t in threads) else None,
            self._instants[-1].ran if self._instants else None, target.root,
        )  # fmt: skip

    def _other_ends(self, calls: Iterable[DecodedSyscall]) -> tuple[PeerProcess, ...]:
        """Look through all processes, once: as long as it is the same ends that are looked for."""
        wanted = self._around.peer_links(calls)
        if wanted != self._wanted:
            self._wanted, self._ends = wanted, find_peer_processes(wanted)
        return self._ends

    def _idle(self, thread: ThreadDump) -> ThreadDump:
        last = thread.last_ran
        return thread if last is None else thread._replace(idle_s=self._facts.idle(last))


def _age_ns(born: int) -> int:
    """Return for how long a thread has lived that started so many clock ticks after the machine (proc(5))."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - born * 1_000_000_000 // _TICKS_PER_S


def _file_locks(calls: Sequence[DecodedSyscall]) -> tuple[FileLock, ...]:
    return contended_locks() if any(call.name in _TAKE_FILE_LOCKS for call in calls) else ()


def _command_line(target: LiveProcess) -> list[str]:
    """Return the arguments; a program that has written a title over them gives its words."""
    text = (target.proc.read("cmdline") or b"").decode("utf-8", "surrogateescape").rstrip("\0")
    words = text.split("\0") if text else []
    return words[0].split() if len(words) == 1 and " " in words[0] else words
