"""Says why processes did not run, unless they just sleep: they are stopped, or their children run.

Source: proc(5), /proc/PID/stat: times are clock ticks; the children's times are of children waited for.
"""

import time
from contextlib import closing

from sfsample.process.descendants import Descendants
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import stat_of

_LOOK_S = 0.1  # seconds between two looks at the CPU time of the children: ten clock ticks


def why_idle(pids: list[int]) -> tuple[str, str] | None:
    """Return the state of processes that do not run, and a way to get samples; None: they sleep."""
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
    with closing(Descendants(pids, LiveProcess)) as found:
        descendants = [stat for _, stat in found.list_new()]
    reaped = sum(stat.reaped_cpu for pid in pids if (stat := stat_of(pid)))
    return len(descendants), reaped + sum(stat.cpu + stat.reaped_cpu for stat in descendants)
