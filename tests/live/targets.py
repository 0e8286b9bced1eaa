"""Fixture programs as live targets: started, shaken hands with, and checked when they are left.

Law: a test goes on when the target has said so, never after a sleep; every wait has an end that fails the
test.  Whoever leaves `running` without an exception has a target that was left as it was found: running, in
the state it is expected in, and traced by nobody.
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

from sfsample.core.arch import AMD64
from sfsample.process.find import check
from sfsample.process.procfs import ProcFs

_ALL = Path(__file__).parents[1] / "fixtures"
ARCH = check(ProcFs(os.getpid()))  # this machine's
FIXTURES = _ALL if ARCH is AMD64 else _ALL / ARCH.name
GENERATIONS = tuple(sorted(path.name for path in FIXTURES.glob("v?")))
# nothing here takes a second; a machine under load may need several, one that is emulated a hundred
HANG_S = 30.0 if ARCH is AMD64 else 300.0
# where all is emulated, whoever asks takes the time from whom it waits for
_STEP_S = 0.002 if ARCH is AMD64 else 0.05


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = HANG_S) -> None:
    """Ask until it is so; fail the test when it never is."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {deadline_s:g} s: {what}"
        time.sleep(_STEP_S)


def status(pid: int, tid: int | None = None) -> dict[str, str]:
    """/proc/PID[/task/TID]/status; empty when it has ended."""
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
    """State letters of the threads."""
    found = (status(pid, tid) for tid in tids(pid))
    return {line["State"][0] for line in found if line}


def wait_until_busy(pid: int) -> None:
    """Wait until a program that says ready just before it gets to work has worked for 10 ms."""

    def worked_ns() -> int:
        files = (Path(f"/proc/{pid}/task/{tid}/schedstat") for tid in tids(pid))
        return sum(int(file.read_text().split()[0]) for file in files if file.exists())

    before = worked_ns()
    wait_until(lambda: worked_ns() >= before + 10_000_000, f"{pid} works")


def is_forgotten(pid: int) -> bool:
    """Whether the kernel has forgotten when one of the threads ran last (see `thread_facts`)."""
    files = (Path(f"/proc/{pid}/task/{tid}/sched") for tid in tids(pid))
    return any(re.search(r"se\.exec_start *: *0\.0+\n", file.read_text()) for file in files if file.exists())


def tracers(pid: int) -> set[int]:
    """The processes that trace any of the threads.  (TracerPid names the tracing thread.)"""
    found = (status(pid, tid) for tid in tids(pid))
    threads = {int(line["TracerPid"]) for line in found if line} - {0}
    return {int(status(tracer).get("Tgid", tracer)) for tracer in threads}


class LineReader:
    """Lines from a pipe, with an end to the patience."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = b""

    def line(self, deadline_s: float = HANG_S) -> str:
        """Return the next line; fail when there is none in time or the writer has gone."""
        end = time.monotonic() + deadline_s
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self._fd], [], [], left)[0]
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
        while select.select([self._fd], [], [], 0)[0] and (data := os.read(self._fd, 65536)):
            self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        return [line.decode() for line in lines]


class Target:
    """A program that runs and has said `ready PID`."""

    def __init__(self, process: "subprocess.Popen[bytes]", reader: LineReader) -> None:
        self.process = process
        self.pid = process.pid
        self.reader = reader

    def tell(self, data: bytes = b"\n") -> None:
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
        """Ask in a way that may be used while it is traced: poll() takes the tracer's stop for its death."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop_and_wait(self) -> None:
        """Stop it as a shell does, and see it stopped."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: states(self.pid) == {"T"}, "job-stopped")

    def assert_unharmed(self, *, stopped: bool = False) -> None:
        """It runs, nobody traces it, no thread is left stopped (`stopped`: every one is, as before)."""
        assert self.process.poll() is None, f"the target ended: {self.process.returncode}"
        assert_untraced(self.pid, stopped=stopped)


def assert_untraced(pid: int, *, stopped: bool = False) -> None:
    """Nobody traces a thread of it now, and none is left stopped (the kernel may need an instant)."""
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
    """Run `program SCENARIO FD ARGUMENT...` from its handshake to the end of the block.

    `ends`: it may end by itself; `stopped`: at the end of the block it must be job-stopped; `wrapper`:
    words before the program (they exec it).
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
    ours, theirs = os.pipe()
    words = [word.replace("{fd}", str(theirs)) for word in words]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(theirs,), **options)  # type: ignore[call-overload]
    os.close(theirs)
    try:
        yield Target(process, LineReader(ours))
    finally:
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(HANG_S)
        os.close(ours)


@contextmanager
def python(code: str, *arguments: str | int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run Python code beside us (another sampler, another tracer); its stdout is a pipe."""
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
    """Run the command line on a process."""
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
