"""Asks threads to stop and releases them: the only module that knows the ptrace state of a thread.

A `StopRequest` has the state of one thread, and `Tracer` changes this state:

    IDLE, RELEASED, LOST --stop--> REQUESTED --stop (again)--> STOPPED --release--> RELEASED
    REQUESTED --the thread ends, or an execve(2) takes its id--> LOST
    REQUESTED --release_pending, once the thread has stopped--> RELEASED
    STOPPED --release, but the thread was killed meanwhile--> REQUESTED (sfsample must wait for its end)

`release` lets the thread run again, even if `stop` or later code has raised an exception.  Python can raise
Ctrl-C between any two calls; if that happens in `release`, `release_pending` does the work.  `release` also
delivers a signal that arrived while the thread was stopped.  A thread that does not stop in time stays
REQUESTED.  When this thread stops, `RunningCapture.collect_stopped` captures and releases it, and
`ProcessSampler.collect` counts the sample.  If sfsample dies, the kernel releases all tracees.  ptrace(2)
binds a tracee to its tracing thread, so all calls for one process come from one OS thread.

Source: ptrace(2), "Attaching and detaching", "PTRACE_EVENT stops", "execve(2) under ptrace"; wait(2).
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from errno import EINTR, EPERM, ESRCH
from typing import TYPE_CHECKING

from sfsample.core.arch import Arch
from sfsample.core.snapshot import Registers
from sfsample.process.exec_guard import TOO_YOUNG, stops_cost_privileges
from sfsample.process.had_cpu import BeforeStop
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.procfs import stat_of
from sfsample.process.ptrace import (
    PTRACE_EVENT_STOP,
    PtraceError,
    RegisterReader,
    detach,
    interrupt,
    seize,
    signal_of,
)
from sfsample.process.registers import layout_of
from sfsample.process.syscall_mending import mend
from sfsample.process.vm import read_memory

if TYPE_CHECKING:
    from sfsample.process.thread import Thread

_WALL = 0x40000000
_WAIT_FLAGS = os.WNOHANG | _WALL
_PEEK = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _WALL
_WNOTHREAD = 0x20000000
_ENDED = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)

_WORD = 1 << 64
_MINUS_EINTR = _WORD - EINTR
# EINTR, and ERESTARTSYS, -NOINTR, -NOHAND, _RESTARTBLOCK of Linux include/linux/errno.h
_INTERRUPTED = (EINTR, 512, 513, 514, 516)

# A thread that runs on another CPU stops within tens of microseconds, so sfsample polls for that long.  A
# thread that waits for sfsample's CPU can stop only while sfsample sleeps.  So after the polling, sfsample
# sleeps until the kernel sends SIGCHLD for the stop.
# (Longer polling, or sched_yield, would delay the stop by milliseconds; waitpid has no time limit.)
_POLL_NS = 50_000
_LONGEST_SLEEP_S = 0.001  # limit in seconds: another thread of sfsample may have taken the signal
_SIGCHLD = {signal.SIGCHLD}
# A long wait does no harm: a thread that waits for a CPU on a busy machine is not stopped yet.
PATIENCE_NS = 1_000_000_000
_SLOW_STOP = "in uninterruptible sleep, or the machine is overloaded"
# An execve(2) that ends other threads can make the kernel forget a request to stop (6 of 2,743 requests on
# Linux 6.18, with a program that only calls execve).  So sfsample repeats the request.
_REPEAT_REQUEST_NS = 10_000_000
# ids of the threads that any OS thread of sfsample may be tracing; children of sfsample are left out
_TRACED: set[int] = set()


class StopState(Enum):
    """The ptrace state of a thread."""

    IDLE = "never asked to stop"
    REQUESTED = "asked to stop, not seen to be stopped yet"
    STOPPED = "stopped, and held by sfsample"
    RELEASED = "runs again, no longer traced"
    LOST = "ended, or its id was taken by an execve"


class StopRequest:
    """The stop of one thread.  Times are perf_counter_ns."""

    __slots__ = ("before", "last_running_ns", "requested_ns", "signal_number", "state", "thread", "tid")

    def __init__(self, tid: int, thread: "Thread | None" = None) -> None:
        self.tid = tid
        self.thread = thread  # None: an execve(2) gave this thread id to a tracee
        self.state = StopState.IDLE
        self.requested_ns = 0
        self.last_running_ns = 0  # last time when sfsample saw that the thread was not stopped
        self.signal_number = 0  # signal that the release delivers
        self.before = BeforeStop()  # the scheduler's figures just before the request

    @property
    def is_pending(self) -> bool:
        """True if the thread was asked to stop, and sfsample has not yet seen it stopped."""
        return self.state is StopState.REQUESTED


class Tracer:
    """Stops threads of process `pid`, one at a time.  `release` must follow `stop`, whatever `stop` returned.

    `child`: the process is a child of sfsample; the code that started it waits for its end.  Every thread of
    sfsample should block SIGCHLD (`TracerThread` does); otherwise sfsample may notice a stop 1 ms late.
    """

    def __init__(self, pid: int, arch: Arch, *, child: bool = False) -> None:
        self._pid = pid
        self._is_guarded = True  # False: no stop can cost the process privileges any more
        self._child = pid if child else 0
        self._own_pid = os.getpid()
        self._layout = layout_of(arch)
        self.reader = RegisterReader(arch)
        self._held: StopRequest | None = None  # the request between `stop` and `release`
        self._repeat_at_ns = 0
        self.pending = dict[int, StopRequest]()  # thread id -> REQUESTED request for which no `stop` waits

    def rehearse(self, tid: int) -> None:
        """Make the system calls of the pause beforehand, on a thread that is not traced.

        The calls fail at once, but bring their code into the CPU's caches.  So the pause takes 63 us, not 75.
        """
        try:
            os.waitpid(self._own_pid, _WAIT_FLAGS)  # a process is not its own child: nothing is reaped
        except ChildProcessError:
            self.reader.read(tid)

    # -- the thread that is being stopped

    def stop(self, request: StopRequest, patience_ns: int = PATIENCE_NS) -> NotCaptured | None:
        """Stop a thread; None: the thread is stopped.

        A thread that does not stop within `patience_ns` stays REQUESTED; then call `stop` again.
        """
        self._held = request
        earlier = self.pending.pop(request.tid, None)
        if earlier is not None:  # this request, or the request of a tracee that got this id by an execve
            request.state, request.signal_number = earlier.state, 0
            request.requested_ns, request.last_running_ns = earlier.requested_ns, earlier.last_running_ns
        elif (refusal := self._request(request)) is not None:
            return refusal
        return self._wait(request, patience_ns)

    def _request(self, request: StopRequest) -> NotCaptured | None:
        """Become the tracer of a thread and ask it to stop; None: the thread will stop.

        PTRACE_INTERRUPT follows PTRACE_SEIZE at once, because a tracee also stops at each signal.  With a
        delay in between, samples of a thread with many signals would show only the arrival of signals.
        """
        tid = request.tid
        if self._is_guarded and not request.before.asleep:
            self._is_guarded = stops_cost_privileges(self._pid)
            if self._is_guarded:
                self._held = None
                return NotCaptured(Reason.NOT_STOPPABLE, TOO_YOUNG)
        if tid != self._child:  # the code that started a child waits for its end
            _TRACED.add(tid)
        seized = False
        request.signal_number = 0
        request.requested_ns = request.last_running_ns = time.perf_counter_ns()
        try:
            seize(tid)
            seized = True
            request.state = StopState.REQUESTED
            if not interrupt(tid):
                return NotCaptured(Reason.GONE, "exited while it was being stopped")
        except PtraceError as refusal:
            if seized:  # `seize` has succeeded: `release` will release the thread
                raise
            self._held = None
            _TRACED.discard(tid)
            return _refused(refusal)
        return None

    def _wait(self, request: StopRequest, patience_ns: int) -> NotCaptured | None:
        start = now = time.perf_counter_ns()
        poll_until, deadline = start + min(_POLL_NS, patience_ns), start + patience_ns
        while True:
            try:
                changed, status = self._poll(request.tid)
            except ChildProcessError:
                self._held = self._taken_by_execve(request)
                return NotCaptured(Reason.GONE, "exec")
            if changed:
                return self._note(request, status)
            request.last_running_ns, now = now, time.perf_counter_ns()
            if now > deadline:
                self.pending[request.tid] = request
                self._held = None  # `pending` keeps the request from now on
                waited_ms = (now - request.requested_ns) / 1e6
                detail = f"did not stop within {waited_ms:.0f} ms ({_SLOW_STOP})"
                return NotCaptured(Reason.PENDING, detail)
            if now > poll_until:
                self._repeat_requests((request,) if now - start > _REPEAT_REQUEST_NS else ())
                await_stop(patience_ns / 1e9)

    def _taken_by_execve(self, request: StopRequest) -> StopRequest | None:
        """Mark a request as LOST: an execve(2) took the id.  Return a request for the tracee, now the pid."""
        request.state = StopState.LOST
        _TRACED.discard(request.tid)
        if self._pid in self.pending or request.tid == self._pid:
            return None
        leader = StopRequest(self._pid)
        leader.state = StopState.REQUESTED
        leader.requested_ns = leader.last_running_ns = request.requested_ns
        return leader

    def _repeat_requests(self, requests: Iterable[StopRequest]) -> None:
        """Repeat PTRACE_INTERRUPT at a limited rate, in case the kernel has forgotten the first request."""
        now = time.perf_counter_ns()
        for request in requests if now > self._repeat_at_ns else ():
            self._repeat_at_ns = now + _REPEAT_REQUEST_NS
            interrupt(request.tid)

    def _poll(self, tid: int) -> tuple[int, int]:
        """Return (tid, status) of a change; (0, 0): none; (tid, 0): a child of sfsample has ended."""
        if tid == self._child:
            seen = os.waitid(os.P_PID, tid, _PEEK)
            if seen is None:
                return 0, 0
            if seen.si_code in _ENDED:
                return tid, 0  # the code that started the child waits for it
        return os.waitpid(tid, _WAIT_FLAGS)

    def _note(self, request: StopRequest, status: int) -> NotCaptured | None:
        if not os.WIFSTOPPED(status):
            self._held = None
            request.state = StopState.LOST
            _TRACED.discard(request.tid)
            return NotCaptured(Reason.GONE, "exited")
        # A stop by sfsample, or a group stop, is an event stop without a signal; any other stop has a signal.
        request.signal_number = 0 if status >> 16 == PTRACE_EVENT_STOP else os.WSTOPSIG(status)
        request.state = StopState.STOPPED
        return None

    def release(self) -> int:
        """Let the thread run on, and deliver the signal at which it stopped; return the pause in ns."""
        request, self._held = self._held, None
        if request is None:
            return 0
        if request.state is StopState.STOPPED and detach(request.tid, request.signal_number):
            request.state = StopState.RELEASED
            _TRACED.discard(request.tid)
        else:  # killed: the process can neither exec nor be reaped until sfsample reaps the thread
            request.state = StopState.REQUESTED
            self.pending[request.tid] = request
            self._release(request)
        return time.perf_counter_ns() - request.requested_ns

    # -- facts about a stopped thread

    def eintr(self, tid: int, registers: Registers) -> bool:
        """Return True if the stop that gave these registers makes a system call fail with EINTR.

        On the way out of an interrupted call, the register of the result shows the kernel's next step: to
        restart the call (-ERESTART*), or to return -EINTR (epoll_wait, semop, sigtimedwait; signal(7)).
        """
        size, code = self._layout.call
        if registers[self._layout.result] != _MINUS_EINTR:
            return False
        return read_memory(tid, registers[self.reader.arch.pc] - size, len(code)) == code

    def interrupted_sleep(self, registers: Registers) -> bool:
        """Return True if the stop that gave these registers interrupted a sleep in a system call."""
        return _WORD - registers[self._layout.result] in _INTERRUPTED

    # -- threads that did not stop in time, or that an exception has left

    def has_stopped(self, request: StopRequest) -> bool:
        """Return True if `stop` for a pending request would return at once."""
        if not request.is_pending:
            return True  # the thread has stopped, and sfsample has released it
        now = time.perf_counter_ns()
        try:
            stopped = os.waitid(os.P_PID, request.tid, _PEEK) is not None
        except ChildProcessError:
            return True
        if not stopped:
            request.last_running_ns = now
            late = [r for r in self.pending.values() if r.requested_ns < now - _REPEAT_REQUEST_NS]
            self._repeat_requests(late)
        return stopped

    def release_pending(self) -> bool:
        """Release the held thread, and pending threads that have stopped; return True if none is left."""
        if self._held:
            self.release()
        for request in tuple(self.pending.values()):
            self._release(request)
        return not self.pending

    def _release(self, request: StopRequest) -> None:
        """Release a pending thread if it is stopped, or reap it if it has ended."""
        tid = request.tid
        try:
            changed, status = self._poll(tid)
        except ChildProcessError:
            # sfsample no longer traces the thread, or an execve(2) gave the process id to the tracee
            changed, status = tid, 0
            if tid != self._pid and (leader := self._taken_by_execve(request)) is not None:
                self.pending[leader.tid] = leader
                self._release(leader)
        ended = bool(changed) and not os.WIFSTOPPED(status)
        if not ended:  # the thread is stopped (perhaps only now), or its status was lost, or it still runs
            if self.reader.read(tid) is not None:
                mend(tid, self.reader)
            number = 0 if status >> 16 == PTRACE_EVENT_STOP else os.WSTOPSIG(status)
            released = detach(tid, number if changed else signal_of(tid))
            if not changed and not released and interrupt(tid):
                return
        request.state = StopState.LOST if ended else StopState.RELEASED
        del self.pending[tid]
        _TRACED.discard(tid)


def _refused(refusal: PtraceError) -> NotCaptured:
    if refusal.errno == ESRCH:
        return NotCaptured(Reason.GONE, str(refusal))
    return NotCaptured(Reason.REFUSED if refusal.errno == EPERM else Reason.NOT_STOPPABLE, str(refusal))


def traces_others_than(pid: int | None) -> bool:
    """Return True if sfsample traces, or has asked to stop, a thread that does not belong to `pid`."""
    return any(stat_of(f"{pid}/task/{tid}") is None for tid in tuple(_TRACED))


def reap_killed_tracees() -> None:
    """Reap traced threads that were killed; any thread of sfsample may call this.

    An execve(2) in the target waits until its killed threads are reaped, and PTRACE_SEIZE of another thread
    waits for the execve.  Without the reaping, the tracing thread and the target would wait for ever.  The
    first waitid(2) only peeks: another call would consume the status of a thread that has only stopped
    (Linux kernel/exit.c, wait_task_stopped).
    """
    for tid in tuple(_TRACED):
        with suppress(ChildProcessError):
            seen = os.waitid(os.P_PID, tid, _PEEK)
            if seen is not None and seen.si_code in _ENDED:
                _reap(tid)


def _reap(tid: int) -> None:
    os.waitid(os.P_PID, tid, os.WEXITED | os.WNOHANG | _WALL)


def detach_newborn_tracees() -> None:
    """Release unwanted tracees, which a held thread creates if it calls clone(2) with CLONE_PTRACE."""
    with suppress(ChildProcessError):
        while True:
            seen = os.waitid(os.P_ALL, 0, _PEEK | _WNOTHREAD)
            if seen is None or seen.si_pid in _TRACED:
                return
            stat = stat_of(seen.si_pid)
            if stat is None or stat.parent == os.getpid():
                return  # perhaps a child of sfsample: as long as it is not reaped, it hides later tracees
            number = 0 if seen.si_status >> 8 == PTRACE_EVENT_STOP else seen.si_status
            if seen.si_code in _ENDED:
                _reap(seen.si_pid)
            elif not detach(seen.si_pid, number):
                return


def await_stop(seconds: float) -> None:
    """Sleep until a requested stop may have happened, for at most `seconds`."""
    signal.sigtimedwait(_SIGCHLD, min(seconds, _LONGEST_SLEEP_S))
