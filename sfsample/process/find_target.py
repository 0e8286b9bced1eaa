"""Finds the processes that a `Target` names: by id, by name, by unit, by container ..."""

import os
import pwd
from collections.abc import Iterable

from sfsample.errors import NoSuchProcess, UsageError
from sfsample.process import search
from sfsample.process.procfs import process_name
from sfsample.process.target import Target

_CGROUPS = "/sys/fs/cgroup"
_SHORT_ID = 12  # digits of a container's id, as docker and podman print it
_MAX_SHOWN = 10  # containers, pods or users listed under an error message
_MAX_SHOWN_COMMAND = 100  # characters of a command line


class TargetFinder:
    """Finds the processes of one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cpu_times = search.CpuTimes()
        names = (target.name, target.unit, target.cgroup, target.container, target.pod, target.user)
        # name of the unit, container, user or process; "" for process ids
        self.service = next(filter(None, names), "busiest" if target.busiest else "")

    def pids(self) -> list[int]:
        """Search for the pids anew.  Raises NoSuchProcess, and UsageError if too many processes match."""
        target = self._target
        if target.pid:
            return list(dict.fromkeys(target.pid))
        if target.busiest:
            return _programs(self._cpu_times.busiest(target.busiest), "/proc")
        for value, find in ((target.unit, self._by_unit), (target.cgroup, self._by_cgroup),
                            (target.container, self._by_container), (target.pod, self._by_pod),
                            (target.user, self._by_user)):  # fmt: skip
            if value:
                return find(value)
        return self._by_name(target.name or "")

    def _by_unit(self, unit: str) -> list[int]:
        if not (pids := search.find_by_unit(unit)):
            raise NoSuchProcess(0, f"no such process: no process is in the systemd unit {unit}",
                                *search.why_no_unit(unit))  # fmt: skip
        return pids

    def _by_name(self, name: str) -> list[int]:
        found = search.find_by_name(name)
        if not found:
            alike = search.similar_names(name)
            raise NoSuchProcess(0, f"no such process: no process matches {name}",
                                *([f"processes with similar names: {', '.join(alike)}"] if alike else []),
                                "-n takes the name of a process, or a part of its command line")  # fmt: skip
        if len(found) > 1 and not self._target.all:
            lines = [f"{pid}  {' '.join(command.split())[:_MAX_SHOWN_COMMAND]}" for pid, command in found]
            raise UsageError(f"{len(found)} processes match: {name}",
                             "choose one with -p, or take all with --all:", *lines)  # fmt: skip
        return [pid for pid, _ in found]

    def _by_container(self, prefix: str) -> list[int]:
        name, pids = _the_group("container", prefix)
        self.service = name[:_SHORT_ID]
        return _programs(pids, f"container {self.service}")

    def _by_pod(self, prefix: str) -> list[int]:
        self.service, pids = _the_group("pod", prefix)
        return _programs(pids, f"pod {self.service}")

    def _by_cgroup(self, path: str) -> list[int]:
        groups, path = search.groups_by_cgroup("cgroup"), path.removeprefix(_CGROUPS).rstrip("/") or "/"
        if path not in groups:
            alike = search.similar(path, {name: name for name in groups})
            is_there = os.path.isdir(f"{_CGROUPS}{path}")
            raise NoSuchProcess(
                0, f"no such process: no process is in the control group {path}",
                *(["the control group is there, but empty"] if is_there else []),
                f"similar paths of groups with processes: {', '.join(alike)}" if alike
                else "systemd-cgls shows them; a path is as in /proc/PID/cgroup")  # fmt: skip
        return _programs(groups[path], f"control group {path}")

    def _by_user(self, user: str) -> list[int]:
        groups = search.groups_by_user()
        try:
            uid = int(user) if user.isascii() and user.isdecimal() else pwd.getpwnam(user).pw_uid
        except (KeyError, ValueError):  # ValueError: number of more than 4,300 digits
            raise UsageError(f"no such user: {user}", _users(groups)) from None
        if not (pids := search.programs(groups.get(uid, ()))):
            raise NoSuchProcess(0, f"no such process: no process runs as user {user}", _users(groups))
        return pids


def _the_group(kind: str, prefix: str) -> tuple[str, list[int]]:
    """Return id and pids of the only container or pod (`kind`) whose id begins with `prefix`."""
    groups = search.groups_by_cgroup(kind)
    prefix = prefix.lower().replace("_", "-")  # the spelling in cgroup paths
    found = [name for name in groups if name.startswith(prefix)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} {kind}s match: {prefix}", "give a longer part of the id:",
                         *_shown(groups, kind, found))  # fmt: skip
    if not found:
        where = (f"the {kind}s with processes:", *_shown(groups, kind, groups)) if groups else (
            f"no process that sfsample sees is in a {kind}; inside a container, sfsample sees only the",
            "processes of this container (docker: --pid=host, Kubernetes: hostPID: true)")  # fmt: skip
        raise NoSuchProcess(0, f"no such process: no process is in a {kind} {prefix}", *where)
    return found[0], groups[found[0]]


def _shown(groups: dict[str, list[int]], kind: str, names: Iterable[str]) -> list[str]:
    """Return help lines: the id of each group, and the name of a process in it."""
    length = _SHORT_ID if kind == "container" else None
    lines = [f"{name[:length]}  {process_name(min(groups[name]))}" for name in sorted(names)]
    more = [f"and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return lines[:_MAX_SHOWN] + more


def _programs(pids: list[int], where: str) -> list[int]:
    if not (found := search.programs(pids)):
        raise NoSuchProcess(0, f"no such process: no process in {where} can be sampled",
                            "kernel threads, zombies and sfsample itself are left out")  # fmt: skip
    return found


def _users(groups: dict[int, list[int]]) -> str:
    with_processes = [uid for uid, pids in sorted(groups.items()) if search.programs(pids)]
    names = {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}
    return f"users with processes: {', '.join(names.get(uid, str(uid)) for uid in with_processes)}"
