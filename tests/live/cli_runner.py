"""Runs the command line as a script does.

Each run has a time limit, and its stderr is checked for tracebacks and control characters.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

from sfsample.cli import main
from tests.live.targets import HANG_S, status, wait_until

DURATIONS = (0.25, 1, 2, 4, 8, 16, 32)  # seconds
COMMAND = [sys.executable, "-m", "sfsample"]
# Sample by stops, also where no CPU is free: the test checks stops, or waits for them.
STOPPING = ["--no-perf-events"]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Done:
    """The result of a run: exit code, stdout, and the lines of stderr."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out = code, out
        self.err = err.decode().splitlines()
        assert "Traceback" not in err.decode(), err.decode()
        assert all(line.isprintable() for line in err.decode().split("\n")), err

    def refused(self, code: int) -> str:
        """Check that the run failed as the contract says; return the error line and the help lines."""
        assert (self.code, self.out) == (code, b""), self.err
        assert self.err[0].startswith("sfsample: "), self.err
        assert all(line.startswith("  ") for line in self.err[1:]), self.err
        return "\n".join(self.err)

    def stacks(self) -> dict[str, int]:
        """Return stdout as folded stacks."""
        return parse_folded(self.out)


def parse_folded(data: bytes) -> dict[str, int]:
    """Return folded stacks, and check that there is nothing else."""
    text = data.decode("utf-8")
    lines = text.split("\n")
    assert lines.pop() == "", "the file must end in a newline"
    assert lines == sorted(lines)
    assert all(line.isprintable() for line in lines)
    stacks = [(stack, int(count)) for stack, _, count in (line.rpartition(" ") for line in lines)]
    assert len(dict(stacks)) == len(stacks)
    assert all(count > 0 for _, count in stacks)
    return dict(stacks)


def sfsample(*words: object, wrapper: tuple[str, ...] | list[str] = (), **options: object) -> Done:
    """Run a command to its end; `wrapper` is a command line that runs it."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [*wrapper, *COMMAND, *map(str, words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=HANG_S, check=False, **streams)  # type: ignore[call-overload]
    return Done(done.returncode, done.stdout or b"", done.stderr or b"")


def in_this_process(*words: object) -> Done:
    """Run a command without a new interpreter, whose start takes longer than most dumps."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*map(str, words)])
        err.flush()
    return Done(code, out.buffer.getvalue(), err.buffer.getvalue())  # type: ignore[attr-defined]


def sampled(*words: object, enough: Callable[[Done], object] = Done.stacks, **options: object) -> Done:
    """Record briefly, and again for longer until `enough`: on a busy machine there may be no sample."""
    for seconds in DURATIONS:
        done = sfsample(*words, "-d", seconds, **options)
        if enough(done):
            break
    return done


@contextlib.contextmanager
def begun(*words: object, wrapper: tuple[str, ...] | list[str] = ()) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command and wait until it handles signals; it is killed at the end, if it has not ended.

    `wrapper`: a command line that executes it.
    """
    command = [*wrapper, *COMMAND, *map(str, words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as child:
        try:
            wait_until(lambda: child.poll() is not None or catches_sigterm(child.pid), "sfsample has begun")
            yield child
        finally:
            child.kill()


def catches_sigterm(pid: int) -> bool:
    """Whether sfsample handles SIGTERM: it installs the handler just before it begins to work."""
    return bool(int(status(pid).get("SigCgt", "0"), 16) >> (signal.SIGTERM - 1) & 1)


def ended(child: "subprocess.Popen[bytes]") -> Done:
    """Wait for the end of a command; return its result."""
    out, err = child.communicate(timeout=HANG_S)
    return Done(child.returncode, out, err)


def stops_of(pid: int) -> int:
    """Return how often a spinning thread gave up its CPU by itself, which it does only when it is stopped."""
    return int(status(pid)["voluntary_ctxt_switches"])


def wait_until_sampled(pid: int, times: int = 5) -> None:
    """Wait until a spinning target has been stopped a few times."""
    before = stops_of(pid)
    wait_until(lambda: stops_of(pid) >= before + times, "samples are taken")


def is_root() -> bool:
    return os.geteuid() == 0
