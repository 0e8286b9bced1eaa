"""Starts fixture programs as live targets, waits for their messages, and checks them at the end.

A test continues when the target has written a message, never after a sleep; each wait has a time limit that
fails the test.  `running` checks at its end that the target was left as it was found: alive, in the expected
state, and without a tracer.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.process.permission.check import check
from sfsample.process.procfs import ProcFs


def extended(*values: object) -> object:
    """Return parameters of a test that run with --all only, where others say nearly the same."""
    return pytest.param(*values, marks=pytest.mark.extended)


_ALL = Path(__file__).parents[1] / "fixtures"
ARCH = check(ProcFs(os.getpid()))  # this machine's
FIXTURES = _ALL if ARCH is AMD64 else _ALL / ARCH.name
GENERATIONS = tuple(sorted(path.name for path in FIXTURES.glob("v?")))
# For tests where every generation runs the same code of sfsample: older ones run with --all only.
EACH_GENERATION = [*(extended(generation) for generation in GENERATIONS[:-1]), GENERATIONS[-1]]
# A guard against hangs.  A wait takes less than a second; under load several, under emulation a hundred.
HANG_S = 30.0 if ARCH is AMD64 else 300.0
_POLL_INTERVAL_S = 0.002 if ARCH is AMD64 else 0.05  # under emulation, polling takes CPU time from the target


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = HANG_S) -> None:
    """Poll until the condition holds; fail the test after `deadline_s` seconds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"still not true after {deadline_s:g} s: {what}"
        time.sleep(_POLL_INTERVAL_S)


def status(pid: int, tid: int | None = None) -> dict[str, str]:
    """Return the fields of /proc/PID[/task/TID]/status; empty after its end."""
    where = f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status"
    try:
        with open(where, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def tids(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return []


def states(pid: int) -> set[str]:
    """Return the state letters of the threads (proc_pid_status(5), State)."""
    found = (status(pid, tid) for tid in tids(pid))
    return {line["State"][0] for line in found if line}


def wait_until_busy(pid: int) -> None:
    """Wait until a program, which writes its message just before its work, has used 10 ms of CPU time."""

    def cpu_ns() -> int:
        files = (Path(f"/proc/{pid}/task/{tid}/schedstat") for tid in tids(pid))
        return sum(int(file.read_text().split()[0]) for file in files if file.exists())

    before = cpu_ns()
    wait_until(lambda: cpu_ns() >= before + 10_000_000, f"{pid} works")


def is_forgotten(pid: int) -> bool:
    """Whether the kernel has lost the time at which one of the threads ran last (see `thread_facts`)."""
    files = (Path(f"/proc/{pid}/task/{tid}/sched") for tid in tids(pid))
    return any(re.search(r"se\.exec_start *: *0\.0+\n", file.read_text()) for file in files if file.exists())


def tracers(pid: int) -> set[int]:
    """Return the processes that trace any of the threads; TracerPid names the tracing thread."""
    found = (status(pid, tid) for tid in tids(pid))
    threads = {int(line["TracerPid"]) for line in found if line} - {0}
    return {int(status(tracer).get("Tgid", tracer)) for tracer in threads}


def is_readable(fd: int, wait_s: float) -> bool:
    """Wait for data, or for the end, of a pipe; select(2) would refuse descriptors from 1024 on."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


class LineReader:
    """Reads lines from a pipe, with a time limit."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = b""

    def line(self, deadline_s: float = HANG_S) -> str:
        """Return the next line; fail when none comes in time or the writer has closed the pipe."""
        end = time.monotonic() + deadline_s
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            ready = left > 0 and is_readable(self._fd, left)
            assert ready, f"no line within {deadline_s:g} s; so far {self._pending!r}"
            data = os.read(self._fd, 4096)
            assert data, f"the writer closed the pipe; so far {self._pending!r}"
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def number(self, word: str) -> int:
        """Return N of the next line, which must be `WORD N`."""
        line = self.line()
        assert line.startswith(f"{word} "), line
        return int(line.split()[1])

    def available(self) -> list[str]:
        """Return the complete lines that are there now."""
        while is_readable(self._fd, 0) and (data := os.read(self._fd, 65536)):
            self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        return [line.decode() for line in lines]


class Target:
    """A program that runs and has written `ready PID`."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: LineReader) -> None:
        self.process = process
        self.pid = process.pid
        self.reader = reader

    def send(self, data: bytes = b"\n") -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def await_ready(self) -> None:
        """Wait for the (next) handshake."""
        assert self.reader.number("ready") == self.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Whether it has ended; Popen.poll() would take a ptrace stop for its end."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop_and_wait(self) -> None:
        """Stop it as a shell does, and wait until it is stopped."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: states(self.pid) == {"T"}, "job-stopped")

    def assert_unharmed(self, *, stopped: bool = False) -> None:
        """Assert that it runs without a tracer and without stopped threads; `stopped`: with all stopped."""
        assert self.process.poll() is None, f"the target ended: {self.process.returncode}"
        assert_untraced(self.pid, stopped=stopped)


def assert_untraced(pid: int, *, stopped: bool = False) -> None:
    """Assert that no thread is traced now, and none is left stopped (the kernel may need a moment)."""
    assert tracers(pid) == set()
    if stopped:
        wait_until(lambda: states(pid) == {"T"}, f"every thread of {pid} job-stopped again")
    else:
        wait_until(lambda: not states(pid) & {"t", "T"}, f"no thread of {pid} stopped")


def fixture(generation: str, binary: str = "target") -> Path:
    return FIXTURES / generation / binary


@contextmanager
def running(
    program: str | Path,
    *arguments: str | int,
    ends: bool = False,
    stopped: bool = False,
    wrapper: tuple[str, ...] = (),
) -> Iterator[Target]:
    """Run `program SCENARIO FD ARGUMENT...` from its message to the end of the block.

    `ends`: it may end by itself; `stopped`: at the end of the block it must be job-stopped; `wrapper`: words
    of a command before the program, which executes it.
    """
    scenario, *rest = map(str, arguments)
    with started([*wrapper, str(program), scenario, "{fd}", *rest]) as target:
        target.await_ready()
        yield target
        if not ends:
            target.assert_unharmed(stopped=stopped)


@contextmanager
def started(words: list[str], **options: object) -> Iterator[Target]:
    """Start a program with a pipe, whose number replaces `{fd}` in the words; kill and reap it at the end."""
    read_end, write_end = os.pipe()
    words = [word.replace("{fd}", str(write_end)) for word in words]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(write_end,), **options)  # type: ignore[call-overload]
    os.close(write_end)
    try:
        yield Target(process, LineReader(read_end))
    finally:
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(HANG_S)
        os.close(read_end)


@contextmanager
def python(code: str, *arguments: str | int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Python code in another process (a sampler, a tracer); its stdin, stdout and stderr are pipes."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def sampler(pid: int, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `sfsample -p PID`; only its stderr is a pipe."""
    words = [sys.executable, "-m", "sfsample", "-p", str(pid), *flags]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def first_line(child: "subprocess.Popen[bytes]") -> str:
    """Return the first line that a child prints."""
    assert child.stdout is not None
    return LineReader(child.stdout.fileno()).line()
