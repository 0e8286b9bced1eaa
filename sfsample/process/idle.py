"""Says why processes did not run, unless they just sleep: they are stopped, or their children run.

Source: proc(5), /proc/PID/stat: times are clock ticks; the children's times are of children waited for.
"""

import os
import time
from contextlib import suppress

from sfsample.process.procfs import stat_of

_LOOK_S = 0.1  # seconds between two looks at the CPU time of the children: ten clock ticks


def why_idle(pids: list[int]) -> tuple[str, str] | None:
    """Return the state of processes that do not run, and a way to get samples; None: they sleep.

    It takes a tenth of a second.
    """
    if all((stat := stat_of(pid)) and stat.state == "T" for pid in pids):
        return "it is stopped", f"to resume it: kill -CONT {' '.join(map(str, pids))}"
    _, before = _children(pids)
    time.sleep(_LOOK_S)
    number, after = _children(pids)
    if after <= before:
        return None
    running = {0: "children that it starts run", 1: "its child runs"}.get(
        number, f"its {number} children run"
    )
    return f"idle, while {running}", "to sample them too: -s"


def _children(pids: list[int]) -> tuple[int, int]:
    """Return the number of descendants of processes, and their CPU time, ended descendants included."""
    family: dict[int, list[tuple[int, int, int]]] = {}  # children by parent
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(OSError, ValueError):
            parent, own_ticks, reaped_ticks = _times(pid)
            family.setdefault(parent, []).append((pid, own_ticks, reaped_ticks))
    own = [entry for entries in family.values() for entry in entries if entry[0] in pids]
    ticks = sum(reaped for *_, reaped in own)
    descendants, queue = 0, [entry[0] for entry in own]
    for parent in queue:  # the loop also visits those that it adds
        for pid, own_ticks, reaped_ticks in family.pop(parent, ()):
            if pid not in pids and pid != os.getpid():
                descendants, ticks = descendants + 1, ticks + own_ticks + reaped_ticks
                queue.append(pid)
    return descendants, ticks


def _times(pid: int) -> tuple[int, int, int]:
    """Return the parent of a process, its CPU time, and that of its children.  Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        data = file.read()
    fields = list(map(int, data[data.rindex(b")") + 4 :].split()[:14]))
    return fields[0], fields[10] + fields[11], fields[12] + fields[13]
