"""Starts the program of `record -- COMMAND`, and ends it after the recording."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from sfsample.cli.terminal import say
from sfsample.errors import NoSuchProcess, SfsampleError

_TERMINATE_TIMEOUT_S = 5


@contextmanager
def launched(arguments: Namespace) -> Iterator[int]:
    """Start the program; yield its pid.  Raises SfsampleError, or NoSuchProcess when it ends too early."""
    child = _start(arguments)
    try:
        yield child.pid
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
        raise SfsampleError(f"cannot start: {arguments.program[0] or repr('')}: {failure.strerror}",
                            "give a program on PATH, or a path") from None  # fmt: skip


def _exit_help(child: subprocess.Popen[bytes]) -> tuple[str, ...]:
    status = child.poll()
    if status is None:
        return ()
    return (f"signal {-status} killed it" if status < 0 else f"its exit status is {status}",)


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
