"""Asking the kernel to wake us in time and to let us run soon, for a short time.

Law: changes nothing but how our own thread is scheduled; what a kernel does not know, or does not permit, is
left out.  A short slice needs no privilege (Linux 6.12).  Without it, on a busy machine, the sampler gets the
processor when the target goes to sleep rather than at the tick, and sees too much of whatever comes before
sleeping: on two processors shared with redis and its clients, epoll_wait was 65 % of the samples without,
54-59 % with it (docs/overhead.md).

While a thread of a target is held, or was asked to stop and will, nobody's turn comes before ours (the lowest
real-time priority, which needs CAP_SYS_NICE): it would stay stopped until we run again, on an overloaded
machine for many milliseconds.

Source: sched(7); prctl(2); sched_setattr(2); Linux kernel/sched/fair.c, "custom slice".
"""

import _thread
import ctypes
import os
from struct import Struct

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "s390x": 345}
# struct sched_attr: size policy flags nice priority runtime deadline period util_min util_max
_ATTR = Struct("IIQiIQQQII")
_PR_SET_TIMERSLACK = 29  # ns by which a sleep may last longer; 50,000 unless told otherwise
_SLICE_NS = 100_000  # the shortest that the kernel takes
_USUAL = 0  # of a slice and of the slack
_URGENT, _NORMAL = os.sched_param(1), os.sched_param(0)


def run_promptly() -> None:
    """Make the calling thread's sleeps exact and, if it is scheduled normally, its time slice short."""
    _schedule(os.SCHED_OTHER, _SLICE_NS, slack_ns=1)


def give_way() -> None:
    """Let others go on where the calling thread wakes up, for good: what it does may wait its turn.

    Its share of a processor stays what it was.  A nice value would make it smaller: on Linux 6.18, beside six
    busy loops on two processors, a thread alone in its autogroup with nice 10 did not run for 100 s, as the
    virtual time of the group beside it went backwards (docs/overhead.md).  Source: sched(7), SCHED_BATCH.
    """
    _schedule(os.SCHED_BATCH, _USUAL, slack_ns=_USUAL)


def _schedule(policy: int, slice_ns: int, *, slack_ns: int) -> None:
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTR.pack(_ATTR.size, policy, 0, nice, 0, slice_ns, 0, 0, 0, 0)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, slack_ns, 0, 0, 0)
    libc.syscall(number, 0, attributes, 0)


class RealTimePriority(_thread._local):  # noqa: SLF001 - threading's, which takes its time to import
    """Real-time priority of the calling thread, from the first `begin` to the last `end`."""

    def __init__(self) -> None:
        self._count = 0
        self._may = os.sched_getscheduler(0) == os.SCHED_OTHER  # who has chosen another one, keeps it

    def begin(self) -> None:
        """Go before all that are scheduled normally."""
        self._count += 1
        if self._count == 1 and self._may:
            try:
                os.sched_setscheduler(0, os.SCHED_RR, _URGENT)
            except OSError:
                self._may = False

    def end(self) -> None:
        """Take back one `begin`."""
        self._count -= 1
        if not self._count and self._may:
            os.sched_setscheduler(0, os.SCHED_OTHER, _NORMAL)


REAL_TIME_PRIORITY = RealTimePriority()
