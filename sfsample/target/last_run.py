"""When we were given the processor, on the scheduler's own clock.

Law: a thread that lost it to us, and has not been woken since, says the same (`ProcFs.last_run`).  None where
the kernel does not tell (before 6.15 /proc/PID/task/TID/sched was left out without CONFIG_SCHED_DEBUG).

Source: Linux kernel/sched/debug.c, proc_sched_show_task; kernel/sched/fair.c, put_prev_entity and
set_next_entity: `exec_start` and the average's `last_update_time` of both come from one reading of the run
queue's clocks; requeue_delayed_entity, enqueue_entity: the latter is renewed when a sleeper is woken.
"""

import os

from sfsample.model import LastRun
from sfsample.target.procfs import parse_last_run

_CHUNK = 4096


class OwnLastRun:
    """That of the calling thread, which must be the only one that asks."""

    def __init__(self) -> None:
        self._fd = -1

    def read(self) -> LastRun | None:
        """Return when this thread was given the processor that it has."""
        try:
            if self._fd < 0:
                self._fd = os.open("/proc/thread-self/sched", os.O_RDONLY | os.O_CLOEXEC)
            return parse_last_run(os.pread(self._fd, _CHUNK, 0))
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
