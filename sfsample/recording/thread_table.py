"""Says which threads of a process are due at a tick.

Of fewer than 16 threads each is due at every tick.  Of more, threads that have long been idle take turns: the
next turn comes after a random number of ticks, at most a quarter of the time that the thread has been idle,
and such that about 16 idle threads are due in one tick.  A sample stands for all ticks since the one before:
that is exact for a thread whose scheduler counters have not changed, and right on average for one whose
counters have, because the turns are random.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from sfsample.core.stack import Stack
from sfsample.modules.location import Located
from sfsample.process.thread import Thread
from sfsample.recording.sample import Places, TickTime
from sfsample.recording.schedule import uniform

_FULL_TURN_THREADS = 16
_MAX_TICKS_BETWEEN_TURNS = 64
FLUSH_NS = 1_000_000_000  # idle time after which the samples of a thread that does not run are counted
_tid_of = attrgetter("tid")


class SampledThread:
    """A thread of a recording, between two of its samples.

    `counted` is the tick up to which samples of it were counted, `idle_until` the tick up to which it is
    known not to have run.  `last` is where its frames were in its last sample.

    While the scheduler's counters are still `off_cpu_counters`, the thread has not run, and `last_stack` is
    counted again; None: samples of it do not count until it has run (cpu mode).
    """

    __slots__ = (
        "counted", "counted_start_time", "file_holder", "files", "flush_ns", "gone", "idle_ticks",
        "idle_until", "last", "last_stack", "name", "off_cpu_counters", "process_thread", "ran_ns",
        "start_time", "stopped_ns", "tid", "uncounted_cpu_ns",
    )  # fmt: skip

    def __init__(self, thread: Thread, counted: TickTime, ran_ns: int) -> None:
        self.process_thread = thread
        self.tid = thread.tid
        self.files = thread.files
        self.name = ""
        self.start_time = 0  # clock ticks since boot
        self.file_holder: int | None = (
            None  # whose /proc files were read when it was due (`ThreadFiles.holder`)
        )
        self.counted_start_time = -1  # when it was counted in `Stats.threads`: an id can be reused
        self.counted = self.idle_until = counted
        self.off_cpu_counters: bytes | None = None
        self.last_stack: tuple[Stack, Places] | None = None
        self.flush_ns = FLUSH_NS
        self.last = Located()
        self.ran_ns = ran_ns  # its CPU time at its last turn
        self.uncounted_cpu_ns = 0  # CPU time that no sample stands for yet
        self.stopped_ns = 0  # for how long sfsample has held it, in all
        self.idle_ticks = 0  # for which it has not run
        self.gone = False

    def forget_idle_time(self) -> None:
        """Note that the thread has run: what it did when it was off the CPU no longer holds."""
        self.idle_ticks, self.flush_ns = 0, FLUSH_NS
        self.last_stack = self.off_cpu_counters = None


class ThreadTable:
    """Threads by id, and by the tick at which they are due."""

    def __init__(self, random: Callable[[], float] = uniform) -> None:
        self._random = random
        self._threads: dict[int, SampledThread] = {}
        self._due: dict[int, list[SampledThread]] = {}
        self._due_next: list[SampledThread] = []
        # most ticks that an idle thread is not due, by the number of threads; 0: all are due at each tick
        self._spread = 0

    def __iter__(self) -> Iterator[SampledThread]:
        return iter(self._threads.values())

    def __len__(self) -> int:
        return len(self._threads)

    def add(self, thread: SampledThread, tick: int) -> None:
        """Add a thread that is due at `tick`."""
        self._threads[thread.tid] = thread
        self._due.setdefault(tick, []).append(thread)
        self._set_spread()

    def _set_spread(self) -> None:
        self._spread = min(2 * (len(self._threads) // _FULL_TURN_THREADS), _MAX_TICKS_BETWEEN_TURNS)

    def drop(self, thread: SampledThread) -> None:
        """Forget a thread that has ended."""
        thread.gone = True
        if self._threads.get(thread.tid) is thread:
            del self._threads[thread.tid]
            self._set_spread()

    def compare(self, tids: Iterable[int]) -> tuple[list[int], list[SampledThread]]:
        """Return the ids that are new, and the threads that are no longer there."""
        now = set(tids)
        return sorted(now - self._threads.keys()), [t for t in self if t.tid not in now]

    def all_if_always_due(self, tick: int) -> list[SampledThread]:
        """Return all threads, if there are so few that each is due at every tick; [] if one is new."""
        return [] if self._spread or tick in self._due else [*self._threads.values()]

    def due(self, tick: int) -> list[SampledThread]:
        """Return the threads that are due now, by id; each must be given its next turn."""
        due, self._due_next = [*self._due_next, *self._due.pop(tick, ())], []
        return sorted([thread for thread in due if not thread.gone], key=_tid_of)

    def give_next_turn(self, threads: Iterable[SampledThread], tick: int) -> None:
        """Say when threads that were due at `tick` are due again."""
        for thread in threads:
            most_skipped = min(self._spread, thread.idle_ticks // 4)
            skipped = int(self._random() * most_skipped) if most_skipped else 0
            if skipped:
                self._due.setdefault(tick + 1 + skipped, []).append(thread)
            else:
                self._due_next.append(thread)
