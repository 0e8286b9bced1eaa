"""Lets a whole dump run before all that is scheduled normally: dumps are taken on overloaded machines.

This module imports little, because it runs before the imports of the dump, which take most of its CPU time.

Source: sched(7), "Scheduling policies" and "nice value"; setitimer(2), ITIMER_PROF.
"""

import atexit
import os
import signal

_MAX_CPU_S = 0.3  # seconds of CPU time: most dumps need less, and other programs need their CPUs, too


def hurry() -> None:
    """Give the calling thread the lowest real-time priority, until the program has used `_MAX_CPU_S`.

    The threads that it starts inherit the priority; processes would, too, so it must start none.  It changes
    nothing if the kernel does not permit it, or if the user has made the program nice or chosen a policy.
    Call it in the main thread.
    """
    if os.sched_getscheduler(0) == os.SCHED_OTHER and os.getpriority(os.PRIO_PROCESS, 0) <= 0:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except OSError:
            return
        signal.signal(signal.SIGPROF, _end_hurry)
        signal.setitimer(signal.ITIMER_PROF, _MAX_CPU_S)
        atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)  # later, Python has no handler any more


def _end_hurry(_signal_number: int, _frame: object) -> None:
    try:
        tids = os.listdir("/proc/self/task")
    except OSError:  # no files left: only the calling thread can be found
        tids = ["0"]
    for tid in tids:
        try:
            os.sched_setscheduler(int(tid), os.SCHED_OTHER, os.sched_param(0))
        except OSError:  # the thread has ended
            continue
