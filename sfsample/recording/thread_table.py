"""The threads of one target, and when each is to be looked at again.

Law: of fewer than 16 threads, each is looked at at every tick.  Of more, those that have long been idle take
turns: the next look comes after a random number of ticks, at most a quarter of the time that the thread has
been idle, and such that about 16 idle threads are looked at in one tick.  A look stands for all ticks since
the one before: scheduler counters that have not moved prove it, and where they have, chance makes it right on
average.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from sfsample.core.stack import Stack
from sfsample.modules.location import Located, Location
from sfsample.process.thread import Thread
from sfsample.recording.schedule import uniform

_AT_ONCE = 16
_LONGEST = 64  # ticks from one look to the next
PUT_OFF_NS = 1_000_000_000
_tid_of = attrgetter("tid")


class SampledThread:
    """What is known of a thread between two looks.

    `still` is what the scheduler counted when it was last seen off the processor; `seen` its stack then;
    `last` what was seen last, also when it does not hold any more.  `tick` and `at_ns` are those
    until which it was counted, `idle_tick` and `idle_at_ns` those until which it is known not to have run.
    `ran_ns` is its CPU time at the last look, `charged_ns` what of it has not been told to the profile.
    """

    __slots__ = (
        "at_ns", "charged_ns", "counted", "gone", "holder", "idle", "idle_at_ns", "idle_tick", "last", "name",
        "put_off_ns", "ran_ns", "seen", "starttime", "still", "stopped_ns", "thread", "tick", "tid",
    )  # fmt: skip

    def __init__(self, thread: Thread, tick: int, at_ns: int, ran_ns: int) -> None:
        self.thread = thread
        self.tid = thread.tid
        self.name = ""
        self.starttime = 0
        self.holder: int | None = None  # of the id, when its turn came (`ProcFs.holder`)
        self.counted = -1  # its start time when it was counted among the threads; an id can be used again
        self.tick = self.idle_tick = tick
        self.at_ns = self.idle_at_ns = at_ns
        self.still: bytes | None = None
        self.seen: tuple[Stack, tuple[Location, ...]] | None = None
        self.put_off_ns = PUT_OFF_NS  # what is seen again and again is told after so much time
        self.last = Located()
        self.ran_ns = ran_ns
        self.charged_ns = 0
        self.stopped_ns = 0  # for how long we have stopped it, in all
        self.idle = 0  # ticks for which it has not run
        self.gone = False


class ThreadTable:
    """Threads by id, and by the tick at which they are due."""

    def __init__(self, random: Callable[[], float] = uniform) -> None:
        self._random = random
        self._threads: dict[int, SampledThread] = {}
        self._due: dict[int, list[SampledThread]] = {}
        self._next: list[SampledThread] = []  # those that are due at the next tick
        self._spread = 0  # most ticks between two looks at an idle thread, for their number

    def __iter__(self) -> Iterator[SampledThread]:
        return iter(self._threads.values())

    def __len__(self) -> int:
        return len(self._threads)

    def add(self, thread: SampledThread, tick: int) -> None:
        """Add a thread that is to be looked at at `tick`."""
        self._threads[thread.tid] = thread
        self._due.setdefault(tick, []).append(thread)
        self._count()

    def _count(self) -> None:
        self._spread = min(2 * (len(self._threads) // _AT_ONCE), _LONGEST)

    def drop(self, thread: SampledThread) -> None:
        """Forget a thread that has ended."""
        thread.gone = True
        if self._threads.get(thread.tid) is thread:
            del self._threads[thread.tid]
            self._count()

    def compare(self, tids: Iterable[int]) -> tuple[list[int], list[SampledThread]]:
        """Return the ids that are new, and the threads that are no longer there."""
        now = set(tids)
        return sorted(now - self._threads.keys()), [t for t in self if t.tid not in now]

    def few(self, tick: int) -> list[SampledThread]:
        """Return all threads, if they are so few that each has a turn at every tick; none, if one is new."""
        return [] if self._spread or tick in self._due else [*self._threads.values()]

    def due(self, tick: int) -> list[SampledThread]:
        """Return the threads to look at now, by id; each must be given its next turn."""
        due, self._next = [*self._next, *self._due.pop(tick, ())], []
        return sorted([thread for thread in due if not thread.gone], key=_tid_of)

    def again(self, threads: Iterable[SampledThread], tick: int) -> None:
        """Give threads their next turn after a look at them."""
        for thread in threads:
            longest = min(self._spread, thread.idle // 4)
            later = int(self._random() * longest) if longest else 0
            if later:
                self._due.setdefault(tick + 1 + later, []).append(thread)
            else:
                self._next.append(thread)
