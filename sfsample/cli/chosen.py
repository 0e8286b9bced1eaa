"""Finds the processes that the user names, and prints the processes that -n has selected."""

from sfsample.cli.terminal import say
from sfsample.process.find_target import TargetFinder
from sfsample.process.procfs import process_name
from sfsample.process.target import Target


def chosen_pids(target: Target, *, quiet: bool = False) -> list[int]:
    """Return the pids of the target; with -n, print them.  Raises NoSuchProcess, UsageError."""
    pids = TargetFinder(target).pids()
    if target.name and not quiet:
        say(f"{target.name} is process {', '.join(f'{pid} ({process_name(pid)})' for pid in pids)}")
    return pids
