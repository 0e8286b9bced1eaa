"""Finds processes: by name, systemd unit, control group, container, pod, user or CPU time.

`watch` searches again for every slice.  So each search is one pass over /proc that reads only one file of
most processes: 2,000 processes take some 50 ms (scripts/bench/watch).  Searches leave out sfsample itself,
and kernel threads and zombies, which have no command line.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from shlex import quote

from sfsample.errors import NotPermitted
from sfsample.process import proc_text
from sfsample.process.procfs import HIDDEN, read_text, stat_of

_UNIT_SUFFIXES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
_PARSERS: dict[str, Callable[[str], Iterable[str]]] = {
    "container": proc_text.container_ids,
    "pod": proc_text.pod_uids,
    "cgroup": proc_text.cgroup_paths,
    "unit": proc_text.control_groups,
}
_COMM_LENGTH = 15  # bytes after which the kernel cuts the name of a process
_FIRST_LOOK_S = 1.0  # seconds over which the first call of `busiest` measures CPU time


def find_by_name(name: str) -> list[tuple[int, str]]:
    """Return pid and command line of the processes called `name`.

    If no process is called `name`, return the processes whose command line contains `name`, except other
    instances of sfsample.  The ancestors of sfsample are left out, because the shell's command line contains
    `name`.  Raises NotPermitted.
    """
    import psutil  # a module that no other search needs

    if not _pids():
        raise NotPermitted(0, f"not permitted to look for: {name}", *HIDDEN)
    own_pids = {os.getpid()}
    with suppress(psutil.Error):  # /proc may hide ancestors (hidepid)
        own_pids |= {ancestor.pid for ancestor in psutil.Process().parents()}
    exact, partial = [], []
    for process in psutil.process_iter(["pid", "name", "cmdline", "exe"]):
        info = process.info
        words = info["cmdline"]
        if info["pid"] in own_pids or not words:
            continue
        found, program = (info["pid"], " ".join(words)), info["name"] or ""
        if name in (program, os.path.basename(info["exe"] or "")):
            exact.append(found)
        elif name in found[1] and not _is_sfsample(program, words):
            partial.append(found)
    return exact or partial


def similar_names(name: str) -> list[str]:
    """Return the names of processes that the user may have meant by `name`."""
    programs = (_name(pid, words) for pid in _pids() if pid != os.getpid() and (words := _command(pid)))
    return similar(name, {program: program for program in programs})


def similar(spelling: str, names: dict[str, str]) -> list[str]:
    """Return the names whose key resembles `spelling`, in upper or lower case."""
    from difflib import get_close_matches

    lower = {key.lower(): name for key, name in sorted(names.items())}
    return [lower[key] for key in get_close_matches(spelling.lower(), lower)]


def groups_by_cgroup(kind: str, proc: str = "/proc") -> dict[str, list[int]]:
    """Return the pids in each container, pod, control group or unit (`kind`), by name."""
    parse = _PARSERS[kind]
    groups: dict[str, list[int]] = {}
    for pid in _pids(proc):
        for name in parse(read_text(f"{proc}/{pid}/cgroup")):
            groups.setdefault(name, []).append(pid)
    return groups


def groups_by_user(proc: str = "/proc") -> dict[int, list[int]]:
    """Return the pids of each effective user id (the owner of /proc/PID may be another user)."""
    groups: dict[int, list[int]] = {}
    for pid in _pids(proc):
        if users := proc_text.parse_status(read_text(f"{proc}/{pid}/status")).get("Uid", "").split():
            groups.setdefault(int(users[1]), []).append(pid)
    return groups


def programs(pids: Iterable[int], proc: str = "/proc") -> list[int]:
    """Return the processes that can be targets: processes with a command line, except sfsample."""
    found = [(pid, words) for pid in pids if pid != os.getpid() and (words := _command(pid, proc))]
    return sorted(pid for pid, words in found if not _is_sfsample(_name(pid, words, proc), words))


class CpuTimes:
    """Measures which processes use the most CPU time between two calls."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], int] = {}  # CPU time in clock ticks, by pid and start time

    def busiest(self, number: int) -> list[int]:
        """Return the processes with the most CPU time since the last call.  The first call takes a second."""
        if not self._before:
            self._before = self._look()
            time.sleep(_FIRST_LOOK_S)
        before, self._before = self._before, self._look()
        used = {key[0]: (cpu - before.get(key, 0), cpu) for key, cpu in self._before.items()}
        ranked = sorted(used, key=used.__getitem__, reverse=True)[: 2 * number]
        targets = {*programs(ranked)}
        return [pid for pid in ranked if pid in targets][:number]

    def _look(self) -> dict[tuple[int, int], int]:
        stats = ((pid, stat) for pid in _pids() if pid != os.getpid() and (stat := stat_of(pid)))
        return {(pid, stat.starttime): stat.cpu for pid, stat in stats
                if not (stat.flags & proc_text.PF_KTHREAD or stat.is_over)}  # fmt: skip


def find_by_unit(unit: str, proc: str = "/proc") -> list[int]:
    """Return the pids of a systemd unit and of groups below it; "nginx" means "nginx.service"."""
    return programs(groups_by_cgroup("unit", proc).get(_unit_name(unit), ()), proc)


def why_no_unit(unit: str, proc: str = "/proc") -> list[str]:
    """Return help lines for a systemd unit without a process."""
    name, groups = _unit_name(unit), groups_by_cgroup("unit", proc)
    units = {os.path.splitext(group)[0]: group for group in groups if group.endswith(_UNIT_SUFFIXES)}
    alike = similar(os.path.splitext(name)[0], units)
    lines = [f"units with processes and similar names: {', '.join(alike)}"] if alike else []
    return [*lines, f"does the unit exist, and is it active?  systemctl status {quote(name)}"]


def _unit_name(unit: str) -> str:
    return unit if unit.endswith(_UNIT_SUFFIXES) else f"{unit}.service"


def _pids(proc: str = "/proc") -> list[int]:
    return [int(entry) for entry in os.listdir(proc) if entry.isdecimal()]


def _command(pid: int, proc: str = "/proc") -> list[str]:
    """Return the command line; empty: a kernel thread, a zombie, or hidden by /proc."""
    text = read_text(f"{proc}/{pid}/cmdline").rstrip("\0")
    return text.split("\0") if text else []


def _name(pid: int, words: list[str], proc: str = "/proc") -> str:
    """Return the name of a process; if the kernel has cut the name, the command line has the whole name."""
    name, program = read_text(f"{proc}/{pid}/comm").rstrip("\n"), os.path.basename(words[0])
    return program if len(name) >= _COMM_LENGTH and program.startswith(name) else name


def _is_sfsample(name: str, words: list[str]) -> bool:
    is_run_by_path = " ".join(words[1:3]).endswith("/sfsample/__main__.py")
    return name == "sfsample" or words[1:3] == ["-m", "sfsample"] or is_run_by_path
