"""What `top` counts: a window of samples as rows.

Law: values in, values out: no terminal, no clock, no process.  A function by its own samples and by those
with what it calls; a thread or process by its samples and by the CPU time that the kernel charged to it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sfsample.core.stack import StopReason
from sfsample.modules.location import Location, pid_of
from sfsample.recording.live_window import Record
from sfsample.recording.profile import Profile
from sfsample.recording.sample import ThreadKey

FUNCTIONS, THREADS, PROCESSES = VIEWS = ("functions", "threads", "processes")

Name = tuple[str, str]  # a function and its module
Names = Callable[[Location], Sequence[Name]]  # the most inlined first


class Who(NamedTuple):
    """A thread; a process when `tid` is None.  `born` is as in `ThreadKey`."""

    pid: int
    tid: int | None = None
    born: int = 0

    def covers(self, thread: ThreadKey) -> bool:
        """Whether a thread is this one, or one of this process."""
        return self in (thread, (thread.pid, None, 0))


class Row(NamedTuple):
    """A line of the table; `where` is a module, or the number of a thread or process."""

    name: str
    where: str
    first: int  # own samples; samples
    second: int  # samples with what is called; CPU time in ns
    who: Who | None = None  # of a thread's or a process's line


class Table(NamedTuple):
    """Rows, and the samples that they are shares of."""

    rows: tuple[Row, ...] = ()
    total: int = 0
    truncated: int = 0


def chosen_samples(records: Iterable[Record], only: Who | None) -> list[Record]:
    """Return the samples of a thread or process; of all, when none is chosen."""
    return [one for one in records if only is None or only.covers(one.key.thread)]


def as_table(records: Sequence[Record], rows: Iterable[Row], word: str, *, by_second: bool) -> Table:
    """Return the rows that hold a word, the largest first."""
    small = word.lower()
    found = (row for row in rows if small in row.name.lower() or small in row.where.lower())
    truncated = sum(one.times for one in records if one.key.stop_reason is not StopReason.OUTERMOST)
    order = _by_second if by_second else _by_first
    return Table(tuple(sorted(found, key=order)), sum(one.times for one in records), truncated)


def _by_first(row: Row) -> tuple[int, int, str]:
    return -row.first, -row.second, row.name


def _by_second(row: Row) -> tuple[int, int, str]:
    return -row.second, -row.first, row.name


def functions(records: Iterable[Record], names: Names, callers_of: str | None) -> Iterator[Row]:
    """Yield a row for each function; for each caller of one, when one is given."""
    own: Counter[Name] = Counter()
    total: Counter[Name] = Counter()
    for record in records:
        frames = _callers([name for place in record.key.locations for name in names(place)], callers_of)
        if frames:
            own[frames[0]] += record.times
        for name in set(frames):
            total[name] += record.times
    return (Row(*name, own[name], total[name]) for name in total)


def _callers(frames: list[Name], of: str | None) -> list[Name]:
    """Return the frames outside the outermost one of a function; all, when none is given."""
    if of is None:
        return frames
    return frames[max((at for at, (name, _) in enumerate(frames, 1) if name == of), default=len(frames)) :]


def people(records: Iterable[Record], known: Profile, *, threads: bool) -> Iterator[Row]:
    """Yield a row for each thread, or process; `known` knows their names."""
    samples: Counter[Who] = Counter()
    cpu_ns: Counter[Who] = Counter()
    for record in records:
        who = Who(*record.key.thread) if threads else Who(record.key.pid)
        samples[who] += record.times
        cpu_ns[who] += record.cpu_ns
    for who, count in samples.items():
        yield Row(_name(who, known) or "?", str(who.tid or pid_of(who.pid)), count, cpu_ns[who], who)


def _name(who: Who, known: Profile) -> str | None:
    if who.tid is None:
        return known.processes.get(who.pid)
    return known.threads.get(ThreadKey(who.pid, who.tid, who.born))
