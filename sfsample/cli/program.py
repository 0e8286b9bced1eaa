"""Starts the program of `record -- COMMAND`, and ends it."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES

from sfsample.cli.options import RecordCommand
from sfsample.cli.terminal import say
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.process.find_target import target_pids

_TERMINATE_TIMEOUT_S = 5


@contextmanager
def targets(command: RecordCommand) -> Iterator[list[int]]:
    """Yield the pids to record; start the program of `-- COMMAND` before, and end it afterwards.

    Raises SfsampleError if it cannot be started, NoSuchProcess if it ends too early.
    """
    if command.program is None:
        yield target_pids(command.target)
        return
    child = _start(command.program, has_stdout=command.output.path != "-")
    try:
        yield [child.pid]
    except NoSuchProcess:
        raise NoSuchProcess(child.pid, f"ended before the first sample: {command.program[0]}",
                            *_exit_help(child)) from None  # fmt: skip
    finally:
        _terminate(child, quiet=command.quiet)


def _start(program: Sequence[str], *, has_stdout: bool) -> subprocess.Popen[bytes]:
    # stdout carries only the result: if the result goes to stdout, the output of the program goes to stderr
    try:
        return subprocess.Popen(program, stdout=None if has_stdout else sys.stderr)
    except OSError as failure:
        remedy = (
            "it must be a file that may be executed (chmod +x)"
            if failure.errno == EACCES
            else "give a program on PATH, or a path"
        )
        raise SfsampleError(f"cannot start: {program[0] or repr('')}: {failure.strerror}", remedy) from None


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
