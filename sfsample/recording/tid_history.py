"""Who had a thread id when a copy was made: copies wait to be read, and meanwhile ids are given again.

Law: the kernel tells births and names among the copies, in order of time.  What /proc says is about who has
the id now; it is believed of a copy only if that thread was born when the one that was copied was.
"""

import os
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from sfsample.process.perf_records import Born, Named
from sfsample.process.proc_text import Stat
from sfsample.process.thread import Thread
from sfsample.recording.sample import BEGINNING
from sfsample.recording.thread_table import SampledThread

_HERTZ = os.sysconf("SC_CLK_TCK")


class TidHistory:
    """The threads of one process.  `stat_of` asks /proc; `leader` is the name of who is not known."""

    def __init__(self, stat_of: Callable[[int], Stat | None], leader: Callable[[], str]) -> None:
        self._stat_of = stat_of
        self._leader = leader
        self._threads: dict[int, SampledThread] = {}  # that were sampled
        self._names: dict[int, str] = {}  # as told by the kernel, for threads that end before we look
        self._births: dict[int, int] = {}  # in clock ticks since boot
        self._asked: set[int] = set()
        self._ahead_ns = 0
        self.begin()

    def begin(self) -> None:
        """Begin to read what has come: each thread is asked for once more."""
        self._asked.clear()
        # of the clock that start times are told by; it goes on while the machine sleeps
        self._ahead_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.perf_counter_ns()

    def born(self, record: Born) -> None:
        """Note that the id is another thread's from now on, which has its creator's name."""
        tid, creator = record.tid, self._threads.get(record.creator)
        name = self._names.get(record.creator) or (creator.name if creator else self._leader())
        self._threads.pop(tid, None)
        self._asked.discard(tid)
        self._names[tid], self._births[tid] = name, self._ticks(record.at_ns)

    def named(self, record: Named) -> None:
        """Note the name that a thread was given."""
        self._names[record.tid] = record.name
        if record.tid in self._threads:
            self._threads[record.tid].name = record.name

    def untold(self) -> None:
        """Drop what is known of ids that may have been given again, as births were not told until now."""
        self._drop([tid for tid in self._known() if not self._still_has(tid)])

    def _still_has(self, tid: int) -> bool:
        thread, birth, stat = self._threads.get(tid), self._births.get(tid), self._stat_of(tid)
        if stat is None:
            return False
        return stat.starttime == thread.start_time if thread else birth is not None and _is_of(stat, birth)

    def thread(self, tid: int, at_ns: int) -> SampledThread:
        """Return what is known of the thread that was copied then."""
        thread = self._threads.get(tid)
        if tid in self._asked and thread is not None:
            return thread
        self._asked.add(tid)
        birth, stat = self._births.get(tid), self._stat_of(tid)
        if stat is not None:
            same = stat.starttime <= self._ticks(at_ns) if birth is None else _is_of(stat, birth)
            stat = stat if same else None
        if thread is None or (stat is not None and stat.starttime != thread.start_time):
            thread = self._threads[tid] = SampledThread(Thread(tid), BEGINNING, 0)
            thread.name, thread.start_time = self._names.get(tid, self._leader()), birth or 0
        if stat is not None:
            thread.name, thread.start_time = stat.name, stat.starttime
        return thread

    def _ticks(self, at_ns: int) -> int:
        return (at_ns + self._ahead_ns) * _HERTZ // 1_000_000_000

    def __len__(self) -> int:
        return len(self._threads)

    @property
    def known(self) -> int:
        """Of how many ids something is kept."""
        return len(self._known())

    def _known(self) -> set[int]:
        return self._threads.keys() | self._names.keys()

    def keep_only(self, lives: AbstractSet[int]) -> None:
        """Drop what is kept for threads that have ended."""
        self._drop(self._known() - lives)

    def _drop(self, tids: Iterable[int]) -> None:
        for tid in tids:
            for kept in (self._threads, self._names, self._births):
                kept.pop(tid, None)


def _is_of(stat: Stat, birth: int) -> bool:
    """Return whether that is the thread that was born then, which is told a little later."""
    return birth - 1 <= stat.starttime <= birth
