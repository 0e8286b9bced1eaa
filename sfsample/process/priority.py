"""Sets how the kernel schedules sfsample's own thread: wake it at the tick, and run it soon for a short time.

Requests that the kernel does not know or permit have no effect.  A short time slice needs no privilege (Linux
6.12).  Without it, on a busy machine, the sampler gets a CPU when the target falls asleep rather than at the
tick, and sees too much of the code that runs before the sleep (docs/overhead.md).

While sfsample holds a target thread, or has asked it to stop, sfsample runs at the lowest real-time priority
(which needs CAP_SYS_NICE).  Otherwise the thread would stay stopped until sfsample runs again: many
milliseconds on an overloaded machine.  A dump has this priority from its beginning (`process.hurry`).

Source: sched(7); prctl(2); sched_setattr(2); Linux kernel/sched/fair.c, "custom slice".
"""

import ctypes
import os
import threading
from struct import Struct

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "s390x": 345}
# struct sched_attr: size policy flags nice priority runtime deadline period util_min util_max
_ATTR = Struct("IIQiIQQQII")
_PR_SET_TIMERSLACK = 29  # option of prctl(2): ns by which a sleep may last longer; the default is 50,000
_SHORT_SLICE_NS = 100_000  # shortest slice that the kernel accepts
_DEFAULT_NS = 0  # value for a slice or a slack: the kernel's default
_REAL_TIME, _NORMAL = os.sched_param(1), os.sched_param(0)


def wake_promptly() -> None:
    """Make the calling thread's sleeps exact and its time slice short, if its policy is SCHED_OTHER."""
    _schedule(os.SCHED_OTHER, _SHORT_SLICE_NS, slack_ns=1)


def avoid_preempting() -> None:
    """From now on, do not let the calling thread preempt others when it wakes up: its work can wait.

    Its share of CPU time stays the same.  A nice value would make the share smaller: on Linux 6.18, beside
    six busy loops on two CPUs, a thread alone in its autogroup with nice 10 did not run for 100 s, because
    the other group's virtual time went backwards (docs/overhead.md).  Source: sched(7), SCHED_BATCH.
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


class RealTimePriority(threading.local):
    """Real-time priority of the calling thread, from the first `begin` to the last `end`."""

    def __init__(self) -> None:
        self._depth = 0  # number of open calls to `begin`
        self._is_refused = self._is_raised = False

    def begin(self) -> None:
        """From now on, run before all threads that are scheduled normally."""
        self._depth += 1
        # another policy is that of `hurry`, or the user has chosen it: it stays
        if self._depth == 1 and not self._is_refused and os.sched_getscheduler(0) == os.SCHED_OTHER:
            try:
                os.sched_setscheduler(0, os.SCHED_RR, _REAL_TIME)
                self._is_raised = True
            except OSError:
                self._is_refused = True

    def end(self) -> None:
        """End one `begin`."""
        self._depth -= 1
        if not self._depth and self._is_raised:
            os.sched_setscheduler(0, os.SCHED_OTHER, _NORMAL)
            self._is_raised = False


REAL_TIME_PRIORITY = RealTimePriority()
