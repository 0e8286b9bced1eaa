"""Stopping one thread: SEIZE, INTERRUPT, wait, registers, DETACH.

Law: `release` lets the thread run again whatever happened since `stop`, even an exception in the middle of
it (Ctrl-C can be raised between any two calls, also in `release`: then `settle` does it), and a signal that
arrived in the window is delivered.  A thread that does not stop in time is never waited for: it is remembered
and released as soon as it does stop, and by the kernel should we die.  SEIZE, not ATTACH: a tracer that is
killed leaves nothing stopped.  All calls come from one OS thread (ptrace is per tracer thread).

Source: ptrace(2).
"""

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from errno import EINTR, EPERM, ESRCH
from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.snapshot import Registers, ThreadSnapshot
from sfsample.process.procfs import stat_of
from sfsample.process.ptrace import PTRACE_DETACH, PtraceError, ptrace
from sfsample.process.registers import NT_ARM_PAC_MASK, decode, layout_of, pac_free
from sfsample.process.syscall_mending import mend
from sfsample.process.vm import Iovec, read_memory

PTRACE_GETSIGINFO, PTRACE_GETREGSET, PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4202, 0x4204, 0x4206, 0x4207
_EVENT_STOP = 128
_WALL = 0x40000000
_WAIT_FLAGS = os.WNOHANG | _WALL
_PEEK = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _WALL
_WNOTHREAD = 0x20000000
_ENDED = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)

_MINUS_EINTR = (1 << 64) - EINTR
_WHOLE = (1 << 64) - 1
# EINTR, and ERESTARTSYS, -NOINTR, -NOHAND, _RESTARTBLOCK of Linux include/linux/errno.h
_INTERRUPTED = (EINTR, 512, 513, 514, 516)

# A thread that runs on another processor stops within tens of microseconds: look for it at once.  One that
# waits for this very processor stops when we get off it: sleep until the kernel sends SIGCHLD for the stop.
# (Polling or sched_yield instead hold it up for milliseconds; waitpid cannot be given a time limit.)
_SPIN_NS = 50_000
_LOOK_AGAIN_S = 0.001  # another thread of ours may have taken the signal
_CHILD = {signal.SIGCHLD}
OTHER_PROCESS = "exited, and its id was given to another process"
_EXCUSE = "in uninterruptible sleep, or the machine is overloaded"
# A thread that waits for a processor on a busy machine is not stopped yet: waiting does it no harm.
PATIENCE_NS = 1_000_000_000
# An execve(2) that ends other threads can make the kernel forget a request to stop (6 of 2,743 on Linux 6.18,
# of a program that does so all the time): it is made again.
_ASK_AGAIN_NS = 10_000_000
_TRACED: set[int] = set()  # by any thread of ours


class NotCaptured(NamedTuple):
    """A thread that could not be stopped.  `gone`: it has ended, which is normal.

    `waiting`: it was asked to stop and will; `stop` may be called for it again.
    `off`: it was not asked to, because it has no processor; what the scheduler had counted for it.
    `runnable`: it wants one.
    `stops`: what was captured of it all the same, as it was stopped in vain.
    """

    gone: bool
    why: str
    errno: int = 0
    waiting: bool = False
    off: bytes | None = None
    runnable: bool = False
    stops: tuple[ThreadSnapshot, ...] = ()


class _Asked(NamedTuple):
    """Of a thread that was asked to stop: when, and when it was last seen not to have; perf_counter_ns."""

    at_ns: int
    runs_ns: int


class Tracer:
    """Stops threads of process `pid`, one at a time.  `release` must follow `stop`, whatever it returned.

    `child`: the process is a child of ours, so its end is somebody else's to wait for.  SIGCHLD should be
    blocked in every thread of ours (`TracerThread` does), or a stop is noticed up to a millisecond late.
    """

    def __init__(self, pid: int, arch: Arch, *, child: bool = False) -> None:
        self._pid = pid
        self._child = pid if child else 0
        self._us = os.getpid()
        self._layout = layout_of(arch)
        self._words = (ctypes.c_ulonglong * (self._layout.size // 8))()
        self._parts = tuple(self._make_parts())
        self._sp = self._layout.word(arch.sp)
        self._arch = arch
        self._pac_unknown = arch.ra_mask != _WHOLE
        self._signal = 0
        self._began = 0
        self._held = 0  # tid between stop and release
        self._stopped = False
        self._again_at = 0  # whoever has not stopped by then is asked again
        self.runs_ns = 0  # when a thread that was stopped was last seen not to be
        self._late: dict[int, _Asked] = {}  # seized, not seen to stop yet

    def _make_parts(self) -> Iterator[tuple[int, int, Iovec, int]]:
        """Yield (note type, address of the iovec, iovec, size) of each register set."""
        at = ctypes.addressof(self._words)
        for one in self._layout.sets:
            vector = Iovec(at, one.size)
            yield one.note, ctypes.addressof(vector), vector, one.size
            at += one.size

    @property
    def arch(self) -> Arch:
        """The target's architecture, with its own mask for signed return addresses once one was stopped."""
        return self._arch

    def rehearse(self, tid: int) -> None:
        """Make the calls of the pause on a thread that is not traced.

        They fail at once, and what they run is in the processor's caches when it counts: 12 of 75 µs.
        """
        try:
            os.waitpid(self._us, _WAIT_FLAGS)  # certainly no child of ours, so nothing is reaped
        except ChildProcessError:
            self.registers(tid)

    def stop(self, tid: int, patience_ns: int = PATIENCE_NS) -> NotCaptured | None:
        """Stop a thread; None: it is stopped.

        One that does not within `patience_ns` can be waited for again.
        """
        self._stopped, self._signal, self._held = False, 0, tid
        if tid in self._late:
            self._began, self.runs_ns = self._late.pop(tid)
        elif (refused := self._ask(tid)) is not None:
            return refused
        return self._wait(tid, patience_ns)

    def _ask(self, tid: int) -> NotCaptured | None:
        """Become the tracer of a thread and ask it to stop; None: it will.

        Nothing comes between the two calls: a tracee stops where a signal reaches it, too, so that of a
        thread that handles many we would see little else.
        """
        if tid != self._child:  # whose end is somebody else's to wait for
            _TRACED.add(tid)
        seized = False
        self._began = self.runs_ns = time.perf_counter_ns()
        try:
            ptrace(PTRACE_SEIZE, tid)
            seized = True
            ptrace(PTRACE_INTERRUPT, tid)
        except PtraceError as refusal:
            if seized:
                return NotCaptured(gone=True, why="exited while it was being stopped")
            self._held = 0
            _TRACED.discard(tid)
            return NotCaptured(refusal.errno == ESRCH, str(refusal), refusal.errno)
        return None

    def _wait(self, tid: int, patience_ns: int) -> NotCaptured | None:
        start = now = time.perf_counter_ns()
        spin_until, deadline = start + min(_SPIN_NS, patience_ns), start + patience_ns
        while True:
            try:
                changed, status = self._look(tid)
            except ChildProcessError:
                # another thread's execve(2) took this id away; the tracee now bears the process id
                self._held = self._pid
                return NotCaptured(gone=True, why="exec")
            if changed:
                return self._note(tid, status)
            self.runs_ns, now = now, time.perf_counter_ns()
            if now > deadline:
                self._late[tid] = _Asked(self._began, self.runs_ns)
                self._held = 0  # whatever it does from now on is seen when it has stopped
                waited = (now - self._began) / 1e6
                return NotCaptured(gone=False, waiting=True,
                              why=f"did not stop within {waited:.0f} ms ({_EXCUSE})")  # fmt: skip
            if now > spin_until:
                self._ask_again((tid,) if now - start > _ASK_AGAIN_NS else ())
                await_stop(patience_ns / 1e9)

    def _ask_again(self, tids: Iterable[int]) -> None:
        """Ask threads to stop once more, but not all the time; who will stop, or has, takes no notice."""
        now = time.perf_counter_ns()
        for tid in tids if now > self._again_at else ():
            self._again_at = now + _ASK_AGAIN_NS
            _interrupt(tid)

    def _look(self, tid: int) -> tuple[int, int]:
        """Return (tid, status) of a change, (0, 0) when there is none, (tid, 0) when our child has ended."""
        if tid == self._child:
            seen = os.waitid(os.P_PID, tid, _PEEK)
            if seen is None:
                return 0, 0
            if seen.si_code in _ENDED:
                return tid, 0  # left for whoever started it
        return os.waitpid(tid, _WAIT_FLAGS)

    def _note(self, tid: int, status: int) -> NotCaptured | None:
        if not os.WIFSTOPPED(status):
            self._held = 0
            _TRACED.discard(tid)
            return NotCaptured(gone=True, why="exited")
        # an event stop is ours (or a group stop, which stays in force); anything else carries a signal
        self._signal = 0 if status >> 16 == _EVENT_STOP else os.WSTOPSIG(status)
        self._stopped = True
        return None

    def release(self) -> int:
        """Let the thread run on, delivering the signal it was stopped with; return the pause in ns."""
        tid, self._held = self._held, 0
        # killed while it was stopped: it must still be waited for, or its process cannot exec or be reaped
        if tid and self._stopped and _detach(tid, self._signal):
            _TRACED.discard(tid)
        elif tid:
            self._late[tid] = _Asked(self._began, self.runs_ns)
            self._settle(tid)
        return time.perf_counter_ns() - self._began

    def registers(self, tid: int) -> int | None:
        """Read the stopped thread's registers; return sp.  None: it was killed meanwhile."""
        try:
            for note, vector_at, vector, size in self._parts:
                vector.len = size  # the kernel writes how much it gave
                ptrace(PTRACE_GETREGSET, tid, note, vector_at)
            if self._pac_unknown:
                self._ask_pac(tid)
        except PtraceError:
            return None
        sp: int = self._words[self._sp]
        return sp

    def _ask_pac(self, tid: int) -> None:
        """Learn which bits of a return address are its authentication code, if the machine makes any."""
        words = (ctypes.c_ulonglong * 2)()
        vector = Iovec(ctypes.addressof(words), ctypes.sizeof(words))
        self._pac_unknown = False
        try:
            ptrace(PTRACE_GETREGSET, tid, NT_ARM_PAC_MASK, ctypes.addressof(vector))
        except PtraceError:
            return
        self._arch = pac_free(self._arch, bytes(words))

    def dwarf_registers(self) -> Registers:
        """Return what `registers` read, by DWARF number."""
        raw, registers = memoryview(self._words).cast("B"), Registers()
        for one in self._layout.sets:
            registers |= decode(one, raw, self._arch)
            raw = raw[one.size :]
        return registers

    def mend(self, tid: int) -> bool:
        """Have a call of a stopped thread begin again, if the stop makes it fail; its registers were read."""
        return mend(tid, self._arch, self._words)

    def eintr(self, tid: int, registers: Registers) -> bool:
        """Whether the stop that gave these registers makes a system call of the target fail with EINTR.

        On the way out of an interrupted call the result's register holds what the kernel will do: restart it
        unseen (-ERESTART*), or really return -EINTR (epoll_wait, semop, sigtimedwait; signal(7)).
        """
        size, code = self._layout.call
        if registers[self._layout.result] != _MINUS_EINTR:
            return False
        return read_memory(tid, registers[self._arch.pc] - size, len(code)) == code

    def slept(self, registers: Registers) -> bool:
        """Whether the stop that gave these registers has interrupted a sleep in a system call."""
        return _WHOLE + 1 - registers[self._layout.result] in _INTERRUPTED

    # -- threads that did not stop in time, or were left by an exception

    def has_stopped(self, tid: int) -> bool:
        """Whether it is worth while to call `stop` again for a thread that was asked before."""
        if tid not in self._late:
            return True  # it stopped in the last instant, and was let go
        now = time.perf_counter_ns()
        try:
            stopped = os.waitid(os.P_PID, tid, _PEEK) is not None
        except ChildProcessError:
            return True
        if not stopped:
            self._late[tid] = self._late[tid]._replace(runs_ns=now)
            self._ask_again(one for one, asked in self._late.items() if asked.at_ns < now - _ASK_AGAIN_NS)
        return stopped

    @property
    def late(self) -> Collection[int]:
        """The threads that are still to stop and to be released."""
        return self._late.keys()

    def settle(self) -> bool:
        """Release what is held and the late ones that have stopped by now; call it at every tick.

        True: none is left.
        """
        if self._held:
            self.release()
        for tid in tuple(self._late):
            self._settle(tid)
        return not self._late

    def _settle(self, tid: int) -> bool:
        try:
            changed, status = self._look(tid)
        except ChildProcessError:
            changed, status = tid, 0  # no longer ours, or an execve(2) gave it the process id
            if tid != self._pid:
                self._late.setdefault(self._pid, _Asked(self._began, self._began))
                self._settle(self._pid)
        if not changed or os.WIFSTOPPED(status):  # or its status was lost, or it has stopped since
            if self.registers(tid) is not None:
                self.mend(tid)
            number = 0 if status >> 16 == _EVENT_STOP else os.WSTOPSIG(status)
            let_go = _detach(tid, number if changed else _signal_of(tid))
            if not changed and not let_go and _interrupt(tid):
                return False
        self._late.pop(tid, None)
        _TRACED.discard(tid)
        return True


def reap_killed_tracees() -> None:
    """Reap traced threads that were killed, on any thread of ours.

    An execve(2) in the target waits for that, and PTRACE_SEIZE of another of its threads for the execve: the
    tracing thread would wait for ever, and the target with it.  Whether one has ended is seen first, because
    to wait for an end takes the status of a stop, too (Linux kernel/exit.c, wait_task_stopped).
    """
    for tid in tuple(_TRACED):
        with suppress(ChildProcessError):
            seen = os.waitid(os.P_PID, tid, _PEEK)
            if seen is not None and seen.si_code in _ENDED:
                _reap(tid)


def _reap(tid: int) -> None:
    os.waitid(os.P_PID, tid, os.WEXITED | os.WNOHANG | _WALL)


def detach_newborn_tracees() -> None:
    """Let those run that were born traced by us: by clone(2) with CLONE_PTRACE, of a thread that we held."""
    with suppress(ChildProcessError):
        while True:
            seen = os.waitid(os.P_ALL, 0, _PEEK | _WNOTHREAD)
            if seen is None or seen.si_pid in _TRACED:
                return
            stat = stat_of(seen.si_pid)
            if stat is not None and stat.parent == os.getpid():
                return  # a child of ours; what is behind it cannot be seen
            number = 0 if seen.si_status >> 8 == _EVENT_STOP else seen.si_status
            if seen.si_code in _ENDED:
                _reap(seen.si_pid)
            elif not _detach(seen.si_pid, number):
                return


def await_stop(seconds: float) -> None:
    """Sleep until a thread that was asked to stop does, or it is worth while to look; at most `seconds`."""
    signal.sigtimedwait(_CHILD, min(seconds, _LOOK_AGAIN_S))


def _signal_of(tid: int) -> int:
    """Return the signal that a thread is stopped with, when the wait status was lost; 0: none."""
    info = (ctypes.c_int * 32)()  # siginfo_t: si_signo, si_errno, si_code, ...
    try:
        ptrace(PTRACE_GETSIGINFO, tid, 0, ctypes.addressof(info))
    except PtraceError:
        return 0
    return 0 if info[2] >> 8 == _EVENT_STOP else info[0]


def _interrupt(tid: int) -> bool:
    """Ask to stop (once more does no harm); False when the thread is not traced by us, or has ended."""
    try:
        ptrace(PTRACE_INTERRUPT, tid)
    except PtraceError:
        return False
    return True


def _detach(tid: int, signal: int) -> bool:
    """PTRACE_DETACH; False when the thread is not stopped (or was killed)."""
    try:
        ptrace(PTRACE_DETACH, tid, 0, signal)
    except PtraceError:
        return False
    return True


def may_attach(tid: int) -> bool:
    """PTRACE_SEIZE a thread and leave it so: whoever calls this must be a thread of ours that ends now."""
    try:
        ptrace(PTRACE_SEIZE, tid)
    except PtraceError as refusal:
        return bool(refusal.errno != EPERM)
    return True
