"""Finds the thread to which a thread id belonged when the kernel copied the thread's stack.

When sfsample reads a copy, the thread may have ended, and its id may belong to a new thread.  So sfsample
follows the kernel's records of births and names, which lie among the copies in order of time.  /proc shows
only the present thread of an id, so sfsample prefers the kernel's records.
"""

import os
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from sfsample.process.perf_records import Born, Named
from sfsample.process.thread import Thread
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.sample import BEGINNING

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")  # clock ticks per second; /proc has start times in clock ticks


class TidHistory:
    """The threads of one process, by thread id."""

    def __init__(self, thread_of: Callable[[int], Thread], leader_name: Callable[[], str]) -> None:
        self._thread_of = thread_of  # function that returns the thread that has an id now
        self._leader_name = leader_name  # function that returns the name for threads whose name is unknown
        self._threads: dict[int, SampledThread] = {}  # threads with a sample
        self._names: dict[int, str] = {}  # names in the kernel's records
        self._births: dict[int, int] = {}  # start times in clock ticks since boot
        # Start times are on CLOCK_BOOTTIME, which also goes on while the machine is suspended.
        self._boot_clock_ahead_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()

    def note_birth(self, record: Born) -> None:
        """Note the birth of a thread, which has the name of its creator at first."""
        tid, creator = record.tid, self._threads.get(record.creator)
        name = self._names.get(record.creator) or (creator.name if creator else self._leader_name())
        self._threads.pop(tid, None)
        born_ns = record.at_ns + self._boot_clock_ahead_ns
        self._names[tid], self._births[tid] = name, born_ns * _TICKS_PER_S // 1_000_000_000

    def note_name(self, record: Named) -> None:
        """Note a new name of a thread."""
        self._names[record.tid] = record.name
        if record.tid in self._threads:
            self._threads[record.tid].name = record.name

    def thread_of(self, tid: int) -> SampledThread:
        """Return the thread that had an id at the time of the last noted record."""
        thread = self._threads.get(tid)
        if thread is None:
            holder = self._thread_of(tid)
            stat = None if tid in self._births else holder.files.stat()
            thread = self._threads[tid] = SampledThread(holder, BEGINNING, 0)
            thread.name = self._names.get(tid) or (stat.name if stat else self._leader_name())
            thread.start_time = self._births.get(tid) or (stat.starttime if stat else 0)
        return thread

    @property
    def tids(self) -> set[int]:
        """The ids of all threads that were noted."""
        return self._threads.keys() | self._names.keys()

    def keep_only(self, living: AbstractSet[int]) -> None:
        """Forget every thread whose id is not in `living`."""
        for tid in self.tids - living:
            for table in (self._threads, self._names, self._births):
                table.pop(tid, None)
