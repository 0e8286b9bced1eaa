"""Counts the samples in the window of `top` as rows of a table; pure functions."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sfsample.core.stack import StopReason
from sfsample.modules.location import Location, pid_of
from sfsample.recording.profile import Profile, WindowRecord
from sfsample.recording.sample import ThreadKey

FunctionName = tuple[str, str]  # a function and its module
FindNames = Callable[[Location], Sequence[FunctionName]]  # the innermost inlined function first
TaskKey = ThreadKey | int  # a thread, or the key of a process


class Row(NamedTuple):
    """A row of the table: a function, or a task, which is a thread or a process."""

    name: str
    where: str  # module of the function, or id of the task
    first: int  # own samples of the function, or samples of the task
    second: int  # samples of the function and of its callees, or CPU time of the task in ns
    task: TaskKey | None = None  # None for a function


class Table(NamedTuple):
    """The rows, and the numbers of samples."""

    rows: tuple[Row, ...] = ()
    total: int = 0  # samples in the window
    truncated: int = 0  # samples whose stack does not reach the outermost frame


def make_table(
    records: Sequence[WindowRecord], rows: Iterable[Row], word: str, *, sort_by_second: bool
) -> Table:
    """Return the rows whose `name` or `where` contains a word, the largest first."""
    word = word.lower()
    matches = (row for row in rows if word in row.name.lower() or word in row.where.lower())
    truncated = sum(record.times for record in records if record.key.stop_reason is not StopReason.OUTERMOST)

    def order(row: Row) -> tuple[int, int, str]:
        numbers = (-row.second, -row.first) if sort_by_second else (-row.first, -row.second)
        return (*numbers, row.name)

    return Table(tuple(sorted(matches, key=order)), sum(record.times for record in records), truncated)


def function_rows(
    records: Iterable[WindowRecord], find_names: FindNames, callers_of: str | None
) -> Iterator[Row]:
    """Return a row for each function, or for each caller of the function `callers_of`."""
    own: Counter[FunctionName] = Counter()
    total: Counter[FunctionName] = Counter()
    for record in records:
        names = [name for location in record.key.locations for name in find_names(location)]
        frames = _callers(names, callers_of)
        if frames:
            own[frames[0]] += record.times
        for name in set(frames):
            total[name] += record.times
    return (Row(*name, own[name], total[name]) for name in total)


def _callers(frames: list[FunctionName], function: str | None) -> list[FunctionName]:
    """Return the frames outside the outermost frame of `function`; None: all frames."""
    if function is None:
        return frames
    ends = (at for at, (name, _) in enumerate(frames, 1) if name == function)
    return frames[max(ends, default=len(frames)) :]


def task_rows(records: Iterable[WindowRecord], profile: Profile, *, threads: bool) -> Iterator[Row]:
    """Yield a row for each thread, or for each process; `profile` has their names."""
    samples: Counter[TaskKey] = Counter()
    cpu_ns: Counter[TaskKey] = Counter()
    for record in records:
        task = record.key.thread if threads else record.key.process_key
        samples[task] += record.times
        cpu_ns[task] += record.cpu_ns
    for task, count in samples.items():
        if isinstance(task, ThreadKey):
            name, number = profile.threads.get(task), task.tid or pid_of(task.process_key)
        else:
            name, number = profile.processes.get(task), pid_of(task)
        yield Row(name or "?", str(number), count, cpu_ns[task], task)
