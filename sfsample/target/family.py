"""Descendants of processes, as they are born.

Law: each is opened once, soon after its birth.  /proc is listed only when the kernel has given out an id
since the last time, and only those that are new are asked for their parent.  A process whose parent has ended
before we saw either of the two belongs to init by then, and is not found; neither are we, nor our children.

Source: proc(5), /proc/PID/stat: the fourth field is the parent.  (/proc/PID/task/TID/children needs
CONFIG_PROC_CHILDREN and would have to be read for every thread of every process.)
"""

import os
from collections.abc import Callable, Iterable, Iterator

from sfsample.errors import TargetError
from sfsample.target.births import Births
from sfsample.target.live import LiveProcess
from sfsample.target.procfs import parent_of


class Family:
    """The descendants of `pids`; `open_process` opens one."""

    def __init__(self, pids: Iterable[int], open_process: Callable[[int], LiveProcess]) -> None:
        self._births = Births()
        self._open = open_process
        self._members = set(pids)
        self._seen = {os.getpid()}

    def born(self) -> Iterator[LiveProcess | TargetError]:
        """Yield the descendants that were not there the last time, or why one cannot be looked at."""
        for pid in self.newborn() if self._births.any() else ():
            try:
                yield self._open(pid)
            except TargetError as refusal:
                yield refusal

    def newborn(self) -> list[int]:
        """Return the new descendants, parents before their children."""
        now = {int(name) for name in os.listdir("/proc") if name.isdecimal()} | {os.getpid()}
        parents = {pid: parent_of(pid) for pid in sorted(now - self._seen)}
        self._seen = now
        self._members &= now
        return list(self._join(parents))

    def _join(self, parents: dict[int, int | None]) -> Iterator[int]:
        """Add those whose parent is a member, until there are no more."""
        while joined := [pid for pid, parent in parents.items() if parent in self._members]:
            for pid in joined:
                del parents[pid]
                if pid not in self._members:
                    self._members.add(pid)
                    yield pid

    def close(self) -> None:
        """Close the file."""
        self._births.close()
