"""Finds the processes that flags name (-p, -n, --unit, --container ...), or starts that of `-- COMMAND`."""

import os
import pwd
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EACCES

from sfsample.cli.terminal import say
from sfsample.errors import NoSuchProcess, SfsampleError, UsageError
from sfsample.process.procfs import process_name
from sfsample.process.search import (
    CpuTimes,
    find_by_name,
    find_by_unit,
    groups_by_cgroup,
    groups_by_user,
    programs,
    similar,
    similar_names,
    why_no_unit,
)

GROUP_FLAGS = ("cgroup", "container", "pod", "user", "busiest")
_CGROUPS = "/sys/fs/cgroup"
_SHORT_ID = 12  # digits of a container's id, as docker and podman print it
_MAX_SHOWN = 10  # groups that exist
_MAX_SHOWN_COMMAND = 100  # characters
_TERMINATE_TIMEOUT_S = 5


class Targets:
    """The target that the flags name.

    `service` is its name: that of a unit, container, user or process; empty for process ids.
    """

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._given = vars(arguments)
        self._cpu_times = CpuTimes()
        names = (str(self._given[way]) for way in ("name", "unit", *GROUP_FLAGS[:-1]) if self._given.get(way))
        self.service = next(names, "busiest" if self._given.get("busiest") else "")

    def pids(self) -> list[int]:
        """Look for the processes, each time anew.

        Raises NoSuchProcess; UsageError when more match than a flag may select.
        """
        if self._arguments.pid:
            return list(dict.fromkeys(self._arguments.pid))
        way = next((way for way in ("unit", *GROUP_FLAGS) if self._given.get(way)), "name")
        pids: list[int] = getattr(self, f"_by_{way}")(self._given[way])
        return pids

    def _by_unit(self, unit: str) -> list[int]:
        if not (pids := find_by_unit(unit)):
            raise NoSuchProcess(0, f"no such process: no process is in the systemd unit {unit}",
                                *why_no_unit(unit))  # fmt: skip
        return pids

    def _by_name(self, name: str) -> list[int]:
        found = find_by_name(name)
        if not found:
            raise NoSuchProcess(0, f"no such process: no process matches {name}", *_names_like(name),
                                "-n takes the name of a process, or a part of its command line")  # fmt: skip
        if len(found) > 1 and not self._arguments.all:
            lines = [f"{pid}  {' '.join(command.split())[:_MAX_SHOWN_COMMAND]}" for pid, command in found]
            raise UsageError(f"{len(found)} processes match: {name}",
                             "choose one with -p, or take all with --all:", *lines)  # fmt: skip
        return [pid for pid, _ in found]

    def _by_container(self, prefix: str) -> list[int]:
        groups = groups_by_cgroup("container")
        found = _the_group(groups, "container", prefix)
        self.service = found[:_SHORT_ID]
        return _programs(groups[found], f"container {self.service}")

    def _by_pod(self, prefix: str) -> list[int]:
        groups = groups_by_cgroup("pod")
        found = _the_group(groups, "pod", prefix)
        return _programs(groups[found], f"pod {found}")

    def _by_cgroup(self, path: str) -> list[int]:
        groups, path = groups_by_cgroup("cgroup"), path.removeprefix(_CGROUPS).rstrip("/") or "/"
        if path not in groups:
            alike = similar(path, {name: name for name in groups})
            is_there = os.path.isdir(f"{_CGROUPS}{path}")
            raise NoSuchProcess(
                0, f"no such process: no process is in the control group {path}",
                *(["the control group is there, but empty"] if is_there else []),
                f"those with processes and such a path: {', '.join(alike)}" if alike
                else "systemd-cgls shows them; a path is as in /proc/PID/cgroup")  # fmt: skip
        return _programs(groups[path], f"control group {path}")

    def _by_user(self, user: str) -> list[int]:
        groups = groups_by_user()
        try:
            uid = int(user) if user.isascii() and user.isdecimal() else pwd.getpwnam(user).pw_uid
        except (KeyError, ValueError):  # ValueError: more than 4,300 digits
            alike = similar(user, {entry.pw_name: entry.pw_name for entry in pwd.getpwall()})
            remedy = f"did you mean: {', '.join(alike)}" if alike else _users(groups)
            raise UsageError(f"no such user: {user}", remedy) from None
        if not (pids := programs(groups.get(uid, ()))):
            raise NoSuchProcess(0, f"no such process: none is run by user {user}", _users(groups))
        return pids

    def _by_busiest(self, number: int) -> list[int]:
        return _programs(self._cpu_times.busiest(number), "/proc")


def target_pids(arguments: Namespace) -> list[int]:
    """Return the pids of the target.  Raises NoSuchProcess, UsageError."""
    return Targets(arguments).pids()


def _the_group(groups: dict[str, list[int]], kind: str, prefix: str) -> str:
    """Return the only container (`kind`) or pod whose id begins so.  Raises NoSuchProcess, UsageError."""
    found = [name for name in groups if name.startswith(prefix)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} {kind}s match: {prefix}", "give more of the id:",
                         *_shown(groups, kind, found))  # fmt: skip
    if not found:
        where = (f"the {kind}s with processes:", *_shown(groups, kind, groups)) if groups else (
            f"no process that sfsample sees is in a {kind}; inside a container, only its own are seen",
            "(docker: --pid=host, Kubernetes: hostPID: true)")  # fmt: skip
        raise NoSuchProcess(0, f"no such process: no process is in a {kind} {prefix}", *where)
    return found[0]


def _shown(groups: dict[str, list[int]], kind: str, names: Iterable[str]) -> list[str]:
    """Return lines with ids, and the name of a process in each."""
    length = _SHORT_ID if kind == "container" else None
    lines = [f"{name[:length]}  {process_name(min(groups[name]))}" for name in sorted(names)]
    more = [f"and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return lines[:_MAX_SHOWN] + more


def _programs(pids: list[int], where: str) -> list[int]:
    if not (found := programs(pids)):
        raise NoSuchProcess(0, f"no such process: there is none to sample in {where}",
                            "kernel threads, zombies and sfsample itself are left out")  # fmt: skip
    return found


def _users(groups: dict[int, list[int]]) -> str:
    """Return a line with the users that run processes."""
    with_processes = [uid for uid, pids in sorted(groups.items()) if programs(pids)]
    names = {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}
    return f"users with processes: {', '.join(names.get(uid, str(uid)) for uid in with_processes)}"


def _names_like(name: str) -> list[str]:
    return [f"processes with such a name: {', '.join(found)}"] if (found := similar_names(name)) else []


@contextmanager
def targets(arguments: Namespace) -> Iterator[list[int]]:
    """Yield the pids to record; the program of `-- COMMAND` is started for it, and ended afterwards.

    Raises SfsampleError when it cannot be started, NoSuchProcess when it ends too early.
    """
    if arguments.program is None:
        yield target_pids(arguments)
        return
    child = _start(arguments)
    try:
        yield [child.pid]
    except NoSuchProcess:
        raise NoSuchProcess(child.pid, f"ended before the first sample: {arguments.program[0]}",
                            *_exit_help(child)) from None  # fmt: skip
    finally:
        _terminate(child, quiet=arguments.quiet)


def _start(arguments: Namespace) -> subprocess.Popen[bytes]:
    # stdout carries only the result: where that goes to stdout, the output of the program goes to stderr
    stdout = sys.stderr if arguments.output == "-" else None
    try:
        return subprocess.Popen(arguments.program, stdout=stdout)
    except OSError as failure:
        remedy = (
            "it must be a file that may be executed (chmod +x)"
            if failure.errno == EACCES
            else "give a program on PATH, or a path"
        )
        raise SfsampleError(
            f"cannot start: {arguments.program[0] or repr('')}: {failure.strerror}", remedy
        ) from None


def _exit_help(child: subprocess.Popen[bytes]) -> tuple[str, ...]:
    status = child.poll()
    if status is None:
        return ()
    if status < 0:
        return (f"signal {-status} killed it",)
    too_brief = () if status else ("it ended too soon; to sample a brief program, run it many times",)
    return (f"its exit status is {status}", *too_brief)


def _terminate(child: subprocess.Popen[bytes], *, quiet: bool) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            say(f"{child.pid} still runs: it ignores SIGTERM")
            return
        if not quiet:
            say(f"terminated {child.pid}, which this command started")
