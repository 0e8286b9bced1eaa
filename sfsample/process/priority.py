"""Asks the kernel to wake sfsample's own thread exactly at the tick, and to run it soon.

Requests that the kernel does not know or permit have no effect.  A thread with a short time slice runs soon;
this needs no privilege (Linux 6.12).  With the default slice, the sampler on a busy machine often gets a CPU
only when the target falls asleep.  Then too many samples show the code before the sleep (docs/overhead.md).

While sfsample holds a target thread, or has asked it to stop, sfsample runs at the lowest real-time priority
(which needs CAP_SYS_NICE).  Otherwise the thread would stay stopped until sfsample runs again: many
milliseconds on an overloaded machine.  A sampler that stops threads keeps this priority between the stops, as
long as it uses a small share of a CPU (`during_ticks`).  With the normal priority on full CPUs, the sampler
may have to wait 100 ms for a CPU after each step (docs/overhead.md).  A dump begins with this priority
(`hurry`), because users take dumps on overloaded machines.  Other commands have it during their imports, and
recordings while they write the profile, but only for 10 ms at a time (`TURN_S`).

This module imports little: it runs before the imports of a dump, which take most of the dump's CPU time.

Source: sched(7); prctl(2); sched_setattr(2); setitimer(2), ITIMER_PROF; Linux kernel/sched/fair.c, "custom
slice".
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import Struct

from sfsample.core.foreign import total

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "s390x": 345}
# struct sched_attr: size policy flags nice priority runtime deadline period util_min util_max
_ATTR = Struct("IIQiIQQQII")
_PR_SET_TIMERSLACK = 29  # option of prctl(2): ns that a sleep may last longer; the default is 50,000
_SHORT_SLICE_NS = 100_000  # shortest slice that the kernel accepts
_DEFAULT_NS = 0  # as a time slice or a timer slack: the kernel's default
_RAISED = os.SCHED_RR, os.sched_param(1)  # policy and priority of a thread
_USUAL = os.SCHED_OTHER, os.sched_param(0)
_MAX_HURRY_S = 0.3  # seconds of CPU time: most dumps need less, and other programs need CPUs, too
TURN_S = 0.01  # `turn_s` of `hurry` with which other programs wait for at most 16 ms at 250 ticks a second
_REST_S = 0.001  # seconds of CPU time between two turns; the kernel rounds up to its next tick


def wake_promptly() -> None:
    """Make the calling thread's sleeps exact and its time slice short, if its policy is SCHED_OTHER."""
    _schedule(os.SCHED_OTHER, _SHORT_SLICE_NS, slack_ns=1)


def avoid_preempting() -> None:
    """From now on, the calling thread wakes up without preempting another thread: its work can wait.

    Its share of CPU time stays the same.  A nice value would make the share smaller.  On Linux 6.18, with six
    busy loops on two CPUs, a thread with nice 10, alone in its autogroup, did not run for 100 s: the virtual
    time of the other group went backwards.  Source: sched(7), SCHED_BATCH.
    """
    _schedule(os.SCHED_BATCH, _DEFAULT_NS, slack_ns=_DEFAULT_NS)


def _schedule(policy: int, slice_ns: int, *, slack_ns: int) -> None:
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTR.pack(_ATTR.size, policy, 0, nice, 0, slice_ns, 0, 0, 0, 0)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, slack_ns, 0, 0, 0)
    libc.syscall(number, 0, attributes, 0)


@contextmanager
def hurry(turn_s: float = _MAX_HURRY_S) -> Iterator[None]:
    """Run at the lowest real-time priority, until the process has used `_MAX_HURRY_S`.

    After each `turn_s` of CPU time, the priority is the usual one for `_REST_S` of CPU time.  Threads that
    start later inherit the priority.  New processes would also inherit it, so the program must start none.
    Nothing changes if the kernel does not permit the priority, or if the user has chosen a nice value or a
    policy.  Call this function in the main thread.
    """
    is_usual = os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) <= 0
    if is_usual:
        _schedule_threads(*_RAISED)
    if not is_usual or os.sched_getscheduler(0) == os.SCHED_OTHER:
        yield
        return
    last_turn_s = time.process_time() + _MAX_HURRY_S - turn_s

    def change_turns(_number: int, _frame: object) -> None:
        goes_on = time.process_time() < last_turn_s
        is_turn = goes_on and os.sched_getscheduler(0) == os.SCHED_OTHER
        _schedule_threads(*(_RAISED if is_turn else _USUAL))
        signal.setitimer(signal.ITIMER_PROF, (turn_s if is_turn else _REST_S) * goes_on)

    signal.signal(signal.SIGPROF, change_turns)
    signal.setitimer(signal.ITIMER_PROF, turn_s)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, lambda *_: None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _schedule_threads(*_USUAL)


def _schedule_threads(policy: int, parameter: os.sched_param) -> None:
    # without a free descriptor, only the calling thread can be changed
    for tid in total(os.listdir)("/proc/self/task") or ("0",):
        with suppress(OSError):  # the thread has ended, or the kernel refuses
            os.sched_setscheduler(int(tid), policy, parameter)


class RealTimePriority(threading.local):
    """Real-time priority of the calling thread, from the first `begin` to the last `end`."""

    def __init__(self) -> None:
        self._depth = 0  # number of calls to `begin` that no `end` has followed yet
        self._takes_ticks = False  # True: `during_ticks` made one of these calls
        self._is_raised = False
        self._began_s = 0.0  # CPU time of the thread when its priority was raised
        self._used_s = 0.0  # CPU time that the thread used at that priority before `_began_s`
        self.is_allowed = True  # False: the kernel has refused

    def begin(self) -> None:
        """From now on, run before all threads that have a normal priority."""
        self._depth += 1
        policy = os.sched_getscheduler(0)  # another one than SCHED_OTHER is that of the user, or of `hurry`
        if self._depth > 1 or not self.is_allowed or policy != os.SCHED_OTHER:
            return
        self._began_s = time.thread_time()
        try:
            os.sched_setscheduler(0, *_RAISED)
            self._is_raised = True
        except OSError:
            self.is_allowed = False

    def end(self) -> None:
        """End one `begin`."""
        self._depth -= 1
        if not self._depth and self._is_raised:
            os.sched_setscheduler(0, *_USUAL)
            self._is_raised = False
            self._used_s += time.thread_time() - self._began_s

    def used_s(self) -> float:
        """Return the CPU time in s that the calling thread has used at this priority."""
        return self._used_s + (time.thread_time() - self._began_s if self._is_raised else 0.0)

    def during_ticks(self, *, is_wanted: bool) -> None:
        """Begin or end the priority for a sampler's ticks; a call with the same value again has no effect."""
        if is_wanted != self._takes_ticks:
            self._takes_ticks = is_wanted
            (self.begin if is_wanted else self.end)()


REAL_TIME_PRIORITY = RealTimePriority()
