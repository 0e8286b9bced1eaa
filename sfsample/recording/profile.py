"""A profile: how often each stack was seen, and for how much time it stands.

Law: counts and keeps; names nothing, prints nothing, reads no clock.  Places are kept as (module, vaddr), so
that they can be named later and elsewhere.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import PROCESS_KEY_STEP, Location
from sfsample.recording.stats import Stats

TIMELINE_LIMIT = 4_000_000  # records, 40 bytes each
_HASHED = 64  # places
STACK_LIMIT = 200_000  # stacks told apart, some KB each; of code that is generated all the time any number
THREAD_LIMIT = 20_000  # threads told apart; a service that starts one for each request has any number
PROCESS_LIMIT = 20_000  # processes told apart; a shell script has any number
OTHERS = 0  # the number of those beyond


class Places(tuple[Location, ...]):
    """The places of a stack, innermost first.  Of a deep one, some make its hash: there may be thousands."""

    __slots__ = ()

    def __hash__(self) -> int:
        if len(self) <= 2 * _HASHED:
            return super().__hash__()
        return hash((len(self), self[:_HASHED], self[_HASHED :: len(self) // _HASHED]))


class ThreadKey(NamedTuple):
    """A thread.  `born`: its start time, in clock ticks; its id can be given to another one.

    `pid`, here and in other keys, is the number that `Profile.register_process` has given to the process.
    """

    pid: int
    tid: int
    born: int = 0


class StackKey(NamedTuple):
    """What makes two samples equal.  `locations` are innermost first; `born` is as in `ThreadKey`."""

    pid: int
    tid: int
    locations: tuple[Location, ...]
    stop_reason: StopReason
    born: int = 0

    @property
    def thread(self) -> ThreadKey:
        """Whose stack it is."""
        return ThreadKey(self.pid, self.tid, self.born)


class Timeline:
    """When each sample was taken: parallel arrays, and `keys`, the stacks that `stack` counts into.

    A record stands for `times` samples and for the `wall_ns` that ended `at_ns` after the start of the
    recording.  No more than `limit` records are kept; those beyond it are counted in `dropped`.
    """

    def __init__(self, limit: int = TIMELINE_LIMIT) -> None:
        self.keys: list[StackKey] = []
        self.at_ns = array("q")
        self.stack = array("l")
        self.wall_ns = array("q")
        self.cpu_ns = array("q")
        self.times = array("l")
        self.dropped = 0
        self._limit = limit
        self._indexes: dict[StackKey, int] = {}

    def __len__(self) -> int:
        return len(self.at_ns)

    def add(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        """Keep one record."""
        if len(self) >= self._limit:
            self.dropped += 1
            return
        index = self._indexes.setdefault(key, len(self.keys))
        if index == len(self.keys):
            self.keys.append(key)
        self.at_ns.append(at_ns)
        self.stack.append(index)
        self.wall_ns.append(wall_ns)
        self.cpu_ns.append(cpu_ns)
        self.times.append(times)


class Profile:
    """Stacks with their counts.  `processes` and `threads` give the names of processes and of threads.

    `wall_ns` is the elapsed time that a stack's samples stand for, `cpu_ns` the CPU time that the kernel
    charged to their threads meanwhile; `started_ns` is since the epoch.
    """

    def __init__(self, rate_hz: float, *, timeline: bool = False) -> None:
        self.counts: Counter[StackKey] = Counter()
        self.wall_ns: Counter[StackKey] = Counter()
        self.cpu_ns: Counter[StackKey] = Counter()
        self.timeline = Timeline() if timeline else None
        self.prompt = timeline  # wants each sample when it is taken, not with others that are equal
        self.started_ns = 0
        self.processes: dict[int, str] = {}
        self.threads: dict[ThreadKey, str] = {}
        self.homes: dict[int, ProcessRoot] = {}  # where names are to be looked for
        self._born: dict[int, int] = {}
        self._sampled: set[int] = set()  # processes
        self.stats = Stats(rate_hz)

    def register_process(self, pid: int, born: int, home: ProcessRoot, name: str) -> int:
        """Return the number of a process that started at `born`, the same each time.

        It is the pid, unless another process has had that, or there are too many.
        """
        number = pid
        while self._born.get(number, born) != born:
            number += PROCESS_KEY_STEP
        if number not in self._born and len(self._born) >= PROCESS_LIMIT:
            self.stats.note(f"more than {PROCESS_LIMIT} processes: the later ones are counted together")
            self.processes[OTHERS] = "other processes"
            return OTHERS
        self._born[number], self.homes[number] = born, home
        self.processes.setdefault(number, name)
        return number

    def name_process(self, number: int, name: str) -> None:
        """Note the name that a process has now."""
        if number != OTHERS:
            self.processes[number] = name

    def name_thread(self, thread: ThreadKey, name: str) -> ThreadKey:
        """Note the name of a thread; return what to count it under: its id is 0 when there are too many."""
        if thread not in self.threads and len(self.threads) >= THREAD_LIMIT:
            thread, name = ThreadKey(thread.pid, 0), "other threads"
            self.stats.note(f"more than {THREAD_LIMIT} threads: the later ones are counted together")
        self.threads[thread] = name
        return thread

    def forget_process(self, number: int) -> None:
        """Drop what is kept for a process, if it is in no sample."""
        if number != OTHERS and number not in self._sampled:
            for known in (self.processes, self.homes, self._born):
                known.pop(number, None)

    def add(
        self,
        thread: ThreadKey,
        locations: Iterable[Location],
        stack: Stack,
        *,
        at_ns: int,
        wall_ns: int,
        cpu_ns: int,
        times: int = 1,
    ) -> None:
        """Count a stack `times` times; the times are those of all these samples together.

        `at_ns` is when the last of them was taken, since the start of the recording.
        """
        self.stats.count_stack(stack, times)
        self._sampled.add(thread.pid)
        key = StackKey(thread.pid, thread.tid, Places(locations), stack.stop_reason, thread.born)
        self.keep(key, at_ns, wall_ns, cpu_ns, times)

    def keep(self, key: StackKey, at_ns: int, wall_ns: int, cpu_ns: int, times: int) -> None:
        """Keep what `add` has counted; a profile that keeps it otherwise does that here."""
        if len(self.counts) >= STACK_LIMIT and key not in self.counts:
            key = key._replace(locations=Places())
            self.stats.note(f"more than {STACK_LIMIT} stacks that differ: the later ones have no frames")
        self.counts[key] += times
        self.wall_ns[key] += wall_ns
        self.cpu_ns[key] += cpu_ns
        if self.timeline is not None:
            self.timeline.add(key, at_ns, wall_ns, cpu_ns, times)
