"""Finds the thread that had a thread id when the kernel copied a stack.

The copies are read later, and meanwhile the ids of ended threads may be reused.  The kernel writes births and
names among the copies, in order of time.  /proc describes only the thread that has the id now.

Invariant: the facts of /proc are used for a copy only if its thread was born when the copied thread was
(tests/recording/test_tid_history.py).
"""

import os
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from sfsample.process.perf_records import Born, Named
from sfsample.process.thread import Thread
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.sample import BEGINNING

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")  # clock ticks, in which /proc gives start times


class TidHistory:
    """The threads of one process, by thread id.

    `thread_of` gives the thread that has an id now, `leader_name` the name of a thread whose own is unknown.
    """

    def __init__(self, thread_of: Callable[[int], Thread], leader_name: Callable[[], str]) -> None:
        self._thread_of = thread_of
        self._leader_name = leader_name
        self._threads: dict[int, SampledThread] = {}  # threads with a sample
        self._names: dict[int, str] = {}  # names in the kernel's records; /proc has none of ended threads
        self._births: dict[int, int] = {}  # start times in clock ticks since boot
        self._looked_up: set[int] = set()  # ids that were looked up in /proc since `begin`
        self.begin()

    def begin(self) -> None:
        """Begin to read new records: each thread is looked up in /proc once more."""
        self._looked_up.clear()
        # Start times are on CLOCK_BOOTTIME, which also goes on while the machine is suspended.
        self._boot_clock_ahead_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()

    def note_birth(self, record: Born) -> None:
        """Note that the id belongs to a new thread from now on; it has the name of its creator."""
        tid, creator = record.tid, self._threads.get(record.creator)
        name = self._names.get(record.creator) or (creator.name if creator else self._leader_name())
        self._threads.pop(tid, None)
        self._looked_up.discard(tid)
        self._names[tid], self._births[tid] = name, self._ticks(record.at_ns)

    def note_name(self, record: Named) -> None:
        """Note the name that a thread was given."""
        self._names[record.tid] = record.name
        if record.tid in self._threads:
            self._threads[record.tid].name = record.name

    def thread_at(self, tid: int, at_ns: int) -> SampledThread:
        """Return the thread that had an id at `at_ns` (perf_counter_ns)."""
        thread = self._threads.get(tid)
        if tid in self._looked_up and thread is not None:
            return thread
        self._looked_up.add(tid)
        birth, stat = self._births.get(tid), self._thread_of(tid).files.stat()
        if stat is not None:
            # the time of a birth record is a little later than the start time
            first, last = (0, self._ticks(at_ns)) if birth is None else (birth - 1, birth)
            stat = stat if first <= stat.starttime <= last else None
        if thread is None or (stat is not None and stat.starttime != thread.start_time):
            thread = self._threads[tid] = SampledThread(self._thread_of(tid), BEGINNING, 0)
            thread.name, thread.start_time = self._names.get(tid, self._leader_name()), birth or 0
        if stat is not None:
            thread.name, thread.start_time = stat.name, stat.starttime
        return thread

    def _ticks(self, at_ns: int) -> int:
        return (at_ns + self._boot_clock_ahead_ns) * _TICKS_PER_S // 1_000_000_000

    @property
    def known(self) -> set[int]:
        """The thread ids that are kept."""
        return self._threads.keys() | self._names.keys()

    def keep_only(self, living: AbstractSet[int]) -> None:
        """Drop ended threads; `living` has the ids of the others."""
        for tid in self.known - living:
            for kept in (self._threads, self._names, self._births):
                kept.pop(tid, None)
