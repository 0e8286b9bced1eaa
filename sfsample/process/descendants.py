"""Finds the descendants of processes as they are created.

sfsample opens each descendant once, soon after its creation.  sfsample lists /proc if the caller requests a
listing, or if the kernel has assigned an id since the last listing, and reads only the new entries.  (A known
id with a new inode belongs to another process.)  If a process ends before sfsample sees its child, the child
belongs to init, and sfsample does not find the child.  sfsample and its own children are left out.

Source: proc(5), /proc/PID/stat: the fourth field is the parent.  (/proc/PID/task/TID/children needs
CONFIG_PROC_CHILDREN, and sfsample would have to read it for every thread of every process.)  Times are clock
ticks; the times of children count only children that the process has waited for.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from sfsample.errors import NoSuchProcess, TargetError
from sfsample.process.proc_text import Stat
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import NewIds, stat_of

_LOOK_S = 0.1  # seconds between two readings of the children's CPU time: ten clock ticks


class Descendants:
    """The descendants of `pids`; `open_process` opens a process by its pid."""

    def __init__(self, pids: Iterable[int], open_process: Callable[[int], LiveProcess]) -> None:
        self._new_ids = NewIds()
        self._open = open_process
        self._members = {pid: stat.starttime for pid in pids if (stat := stat_of(pid))}  # start time by pid
        self._seen: set[tuple[int, int]] = set()  # pid and inode of every process at the last listing
        self.waiting: deque[tuple[int, Stat]] = deque()  # new descendants that are not yet yielded

    def open_new(self, *, force: bool) -> Iterator[LiveProcess | TargetError]:
        """Open and yield new descendants; for a descendant that cannot be opened, yield the error.

        `force`: list /proc even if no id was assigned.  If the caller stops early, the next call continues.
        """
        if not self.waiting and (self._new_ids.any() or force):
            self.waiting.extend(self.list_new())
        while self.waiting:
            pid, stat = self.waiting.popleft()
            if stat.is_over:  # a quick check: there may be thousands of zombies
                yield NoSuchProcess(pid, f"process has ended: {pid}")
                continue
            try:
                yield self._open(pid)
            except TargetError as refusal:
                yield refusal

    def list_new(self) -> list[tuple[int, Stat]]:
        """Return the new descendants, parents before their children."""
        with os.scandir("/proc") as entries:
            now = {(int(entry.name), entry.inode()) for entry in entries if entry.name.isdecimal()}
        new = {pid: stat for pid, _ in sorted(now - self._seen) if (stat := stat_of(pid))}
        self._seen = {(pid, inode) for pid, inode in now if (pid, inode) in self._seen or pid in new}
        others = {pid for pid, stat in new.items() if self._members.get(pid) != stat.starttime}
        alive = {pid for pid, _ in now} - others
        self._members = {pid: start for pid, start in self._members.items() if pid in alive}
        return list(self._join(new))

    def _join(self, new: dict[int, Stat]) -> Iterator[tuple[int, Stat]]:
        """Yield the new processes whose parent is a member; each becomes a member."""
        new.pop(os.getpid(), None)
        children: dict[int, list[int]] = {}
        for pid, stat in new.items():
            children.setdefault(stat.parent, []).append(pid)
        joined = [pid for parent in self._members for pid in children.pop(parent, ())]
        for pid in joined:  # the loop also visits the pids that the loop adds
            if pid not in self._members:
                self._members[pid] = new[pid].starttime
                yield pid, new[pid]
            joined += children.pop(pid, ())

    def close(self) -> None:
        """Close the file of `NewIds`."""
        self._new_ids.close()


def why_no_samples(pids: list[int]) -> tuple[str, str] | None:
    """Return the reason why processes give no samples, and a remedy; None: the processes just sleep."""
    if all((stat := stat_of(pid)) and stat.state == "T" for pid in pids):
        return "it is stopped", f"to resume it: kill -CONT {' '.join(map(str, pids))}"
    _, before = _children(pids)
    time.sleep(_LOOK_S)
    number, after = _children(pids)
    if after <= before:
        return None
    running = {0: "its short-lived children run", 1: "its child runs"}.get(number, "its children run")
    return f"idle, while {running}", "to sample them too: -s"


def _children(pids: list[int]) -> tuple[int, int]:
    """Return the number of descendants of processes, and their CPU time, ended descendants included."""
    with closing(Descendants(pids, LiveProcess)) as found:
        descendants = [stat for _, stat in found.list_new()]
    reaped = sum(stat.reaped_cpu for pid in pids if (stat := stat_of(pid)))
    return len(descendants), reaped + sum(stat.cpu + stat.reaped_cpu for stat in descendants)
