"""The processes of a recording: processes that the user named, and descendants that sfsample finds."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sfsample.errors import NoSuchProcess, ReadFailed, TargetError
from sfsample.process.descendants import Descendants
from sfsample.process.image_cache import ImageCache
from sfsample.process.process import LiveProcess
from sfsample.process.stuck import SetAside
from sfsample.recording.options import RecordOptions
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats


class Processes:
    """The open processes: `named` by the user, and `descendants` that sfsample has found."""

    def __init__(self, named: Iterable[LiveProcess], finder: Descendants | None = None) -> None:
        self.named = list(named)
        self.descendants: list[LiveProcess] = []
        self._finder = finder
        self.follows_births = finder is not None  # True: descendants are part of the recording

    def open_named(
        self, pids: Iterable[int], open_process: Callable[[int], LiveProcess], stats: Stats, *, all_of: bool
    ) -> None:
        """Open the named processes, except processes that are set aside or cannot be read.

        Without `all_of`, leave out every process that cannot be opened.  Raises the first TargetError if no
        process could be opened.
        """
        refusals: list[TargetError] = []
        for pid in pids:
            try:
                self.named.append(open_process(pid))
            except TargetError as refusal:
                if all_of and not isinstance(refusal, (SetAside, ReadFailed)):
                    raise
                refusals.append(refusal)
        if not self.named:
            raise refusals[0]
        for left_out in refusals:
            if not isinstance(left_out, NoSuchProcess):
                _note(f"process not recorded: {left_out}", left_out, stats)

    @property
    def all(self) -> list[LiveProcess]:
        """The processes that have not ended."""
        return [*self.named, *self.descendants]

    def tids(self) -> list[int]:
        """Return the present thread ids of all processes."""
        return [tid for process in self.all for tid in process.proc.threads()]

    def cpu_ns(self) -> int:
        """Return the CPU time in ns of the processes that have not ended, ended threads included."""
        return sum(process.proc.cpu_ns() or 0 for process in self.all)

    def open_new(self, stats: Stats, time_s: float, *, force: bool) -> Iterator[LiveProcess]:
        """Open and yield new descendants for at most `time_s`; `force`: list /proc even without a new id."""
        until = time.perf_counter() + time_s
        for found in self._finder.open_new(force=force) if self._finder else ():
            if isinstance(found, NoSuchProcess):
                stats.subprocesses.short_lived += 1
            elif isinstance(found, TargetError):
                stats.subprocesses.refused += 1
                _note(f"subprocess not recorded: {found}", found, stats)
            else:
                stats.subprocesses.watched += 1
                self.descendants.append(found)
                yield found
            if time.perf_counter() >= until:
                break

    def end(self, process: LiveProcess) -> None:
        """Close a process that has ended."""
        for processes in (self.named, self.descendants):
            if process in processes:
                processes.remove(process)
        process.close()

    def leave_open(self, images: ImageCache | None) -> None:
        """Keep processes open for the next recording; close older ones that this recording did not use."""
        if images is None:
            return
        processes, self.named, self.descendants = self.all, [], []
        for process in processes:
            process.release()
        for process in images.processes.values():
            process.close()
        images.processes = {process.pid: process for process in processes}

    def close(self, stats: Stats) -> None:
        """Close every process, and count the descendants that were not opened."""
        for process in self.all:
            self.end(process)
        if self._finder:
            if self._finder.waiting:
                text = "subprocess not recorded: the recording ended before its turn"
                stats.note(text, len(self._finder.waiting))
            self._finder.close()


class Recording(NamedTuple):
    """The task of a sampler: processes, options, and the profile that counts the samples."""

    processes: Processes
    options: RecordOptions
    profile: Profile
    duration: float | None = None  # seconds; None: until the processes end
    start: float | None = None  # time.monotonic when the replaced sampler started; None: it replaces none
    tell: Callable[[str], object] = str  # called with a text after missed ticks, at most once a second
    images: ImageCache | None = None  # opened files, for processes that are opened during the recording


def _note(text: str, refusal: TargetError, stats: Stats) -> None:
    stats.note(text)
    if isinstance(refusal, SetAside):
        stats.set_aside.append(text)
