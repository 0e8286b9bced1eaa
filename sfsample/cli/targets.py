"""Finds the processes that the flags -p, -n and --unit name."""

from argparse import Namespace

from sfsample.errors import NoSuchProcess, UsageError
from sfsample.process.find import find_by_name, find_by_unit

_MAX_SHOWN_COMMAND = 100  # characters


def target_pids(arguments: Namespace) -> list[int]:
    """Return the pids.  Raises NoSuchProcess; UsageError when several processes match -n without --all."""
    if arguments.pid:
        return list(dict.fromkeys(arguments.pid))
    if getattr(arguments, "unit", None):
        return _pids_of_unit(arguments.unit)
    found = find_by_name(arguments.name)
    if not found:
        raise NoSuchProcess(0, f"no such process: no process matches {arguments.name}",
                            "-n takes the name of a process, or a part of its command line")  # fmt: skip
    if len(found) > 1 and not arguments.all:
        lines = [f"{pid}  {' '.join(command.split())[:_MAX_SHOWN_COMMAND]}" for pid, command in found]
        raise UsageError(f"{len(found)} processes match: {arguments.name}",
                         "choose one with -p, or take all with --all:", *lines)  # fmt: skip
    return [pid for pid, _ in found]


def _pids_of_unit(unit: str) -> list[int]:
    found = find_by_unit(unit)
    if not found:
        raise NoSuchProcess(0, f"no such process: no process is in the systemd unit {unit}",
                            "systemctl status UNIT shows the processes of a unit")  # fmt: skip
    return found
