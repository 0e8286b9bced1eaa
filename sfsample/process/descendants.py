"""Descendants of processes, as they are born.

Law: each is opened once, soon after its birth.  /proc is listed when the kernel has given out an id since the
last time, and when it is time to, and only those that are new are asked for their parent.  (Of an id that was
given to another process, /proc has another inode, and that process another start time.)  A process whose
parent has ended before we saw either of the two belongs to init by then, and is not found; neither are we,
nor our children.

Source: proc(5), /proc/PID/stat: the fourth field is the parent.  (/proc/PID/task/TID/children needs
CONFIG_PROC_CHILDREN and would have to be read for every thread of every process.)
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sfsample.errors import NoSuchProcess, TargetError
from sfsample.process.new_ids import NewIds
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import Stat, stat_of


class Descendants:
    """The descendants of `pids`; `open_process` opens one."""

    def __init__(self, pids: Iterable[int], open_process: Callable[[int], LiveProcess]) -> None:
        self._births = NewIds()
        self._open = open_process
        self._members = {pid: stat.starttime for pid in pids if (stat := stat_of(pid))}
        self._seen: set[tuple[int, int]] = set()
        self._waiting: deque[tuple[int, Stat]] = deque()

    def born(self, *, force: bool) -> Iterator[LiveProcess | TargetError]:
        """Yield the descendants that were not there the last time, or why one cannot be looked at.

        `force`: also if no id was given out.  Those that are not asked for come first the next time.
        """
        if not self._waiting and (self._births.any() or force):
            self._waiting.extend(self.newborn())
        while self._waiting:
            pid, stat = self._waiting.popleft()
            if stat.is_over:  # there may be thousands that nobody has waited for
                yield NoSuchProcess(pid, f"process has ended: {pid}")
                continue
            try:
                yield self._open(pid)
            except TargetError as refusal:
                yield refusal

    @property
    def waiting(self) -> int:
        """How many were seen that nobody has asked for yet."""
        return len(self._waiting)

    def newborn(self) -> list[tuple[int, Stat]]:
        """Return the new descendants, parents before their children."""
        with os.scandir("/proc") as entries:
            now = {(int(one.name), one.inode()) for one in entries if one.name.isdecimal()}
        new = {pid: stat for pid, _ in sorted(now - self._seen) if (stat := stat_of(pid))}
        self._seen = now
        others = {pid for pid, stat in new.items() if self._members.get(pid) != stat.starttime}
        alive = {pid for pid, _ in now} - others
        self._members = {pid: born for pid, born in self._members.items() if pid in alive}
        return list(self._join(new))

    def _join(self, new: dict[int, Stat]) -> Iterator[tuple[int, Stat]]:
        """Add those whose parent is a member, until there are no more."""
        new.pop(os.getpid(), None)
        children: dict[int, list[int]] = {}
        for pid, stat in new.items():
            children.setdefault(stat.parent, []).append(pid)
        joined = [pid for parent in self._members for pid in children.pop(parent, ())]
        for pid in joined:  # and those that are added meanwhile
            if pid not in self._members:
                self._members[pid] = new[pid].starttime
                yield pid, new[pid]
            joined += children.pop(pid, ())

    def close(self) -> None:
        """Close the file."""
        self._births.close()
