"""Finds the processes that the flags -p, -n and --unit name, or starts the one of `record -- COMMAND`."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES

from sfsample.cli.terminal import say
from sfsample.errors import NoSuchProcess, SfsampleError, UsageError
from sfsample.process.find import find_by_name, find_by_unit, similar_names, why_no_unit

_MAX_SHOWN_COMMAND = 100  # characters
_TERMINATE_TIMEOUT_S = 5


def target_pids(arguments: Namespace) -> list[int]:
    """Return the pids.  Raises NoSuchProcess; UsageError when several processes match -n without --all."""
    if arguments.pid:
        return list(dict.fromkeys(arguments.pid))
    if getattr(arguments, "unit", None):
        if not (pids := find_by_unit(arguments.unit)):
            raise NoSuchProcess(0, f"no such process: no process is in the systemd unit {arguments.unit}",
                                *why_no_unit(arguments.unit))  # fmt: skip
        return pids
    found = find_by_name(arguments.name)
    if not found:
        raise NoSuchProcess(0, f"no such process: no process matches {arguments.name}",
                            *_names_like(arguments.name),
                            "-n takes the name of a process, or a part of its command line")  # fmt: skip
    if len(found) > 1 and not arguments.all:
        lines = [f"{pid}  {' '.join(command.split())[:_MAX_SHOWN_COMMAND]}" for pid, command in found]
        raise UsageError(f"{len(found)} processes match: {arguments.name}",
                         "choose one with -p, or take all with --all:", *lines)  # fmt: skip
    return [pid for pid, _ in found]


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
