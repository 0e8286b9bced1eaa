"""Programs as processes: built once, started, warmed up, and killed at the end with all their descendants."""

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.accuracy.programs import Program

HERE = Path(__file__).resolve().parent
MACHINE = os.uname().machine
FIXTURES = HERE.parent / "fixtures" / ("" if MACHINE == "x86_64" else MACHINE)
_WARM_UP_TICKS, _MAX_WARM_UP_S = 5, 0.5  # CPU time, or time for programs that sleep
_MAX_WAIT_S = 20.0


class UnavailableError(Exception):
    """A program that cannot be run here; the text says why."""


class Tools(NamedTuple):
    """Functions that make what programs need."""

    toolchain: Callable[[int], Path]  # SFrame version -> directory of the assembler and linker
    real: Callable[[str, int], Path]  # name, SFrame version -> program
    truth: Callable[[Path, list[str]], Path]  # program, command that built it -> directory of debug files


def prepare(program: Program, cache: Path, tools: Tools) -> Path:
    """Return a program; build it if it does not exist.  Raises UnavailableError."""
    missing = [name for name in program.needs if not shutil.which(name)]
    if missing:
        raise UnavailableError(f"{', '.join(missing)}: not installed")
    if program.real:
        return tools.real(program.real, program.generation)
    binary = cache / hashlib.sha256(repr(program).encode() + _sources()).hexdigest()[:16]
    if program.build and not binary.exists():
        new = binary.with_suffix(".new")
        directory = str(tools.toolchain(program.generation)) if program.generation else ""
        words = [w.format(bin=new, src=HERE / "sources", tools=directory) for w in shlex.split(program.build)]
        done = subprocess.run(words, env={**os.environ, "GO111MODULE": "off", "GOCACHE": str(cache / "go")},
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            raise UnavailableError(f"{program.build}: {done.stderr.strip()[-300:]}")
        new.rename(binary)
    return binary


def debug_files(program: Program, binary: Path, tools: Tools) -> Path | None:
    """Return a directory of debug files that only the peers get, or None."""
    if not program.truth:
        return None
    return tools.truth(
        binary, [w.format(bin=binary, src=HERE / "sources") for w in shlex.split(program.build)]
    )


def _sources() -> bytes:
    return b"".join(path.read_bytes() for path in sorted((HERE / "sources").iterdir()))


@contextlib.contextmanager
def started(program: Program, binary: Path) -> Iterator["Running"]:
    """Run a program and its load to the end of the block; then kill both with their descendants."""
    with tempfile.TemporaryDirectory(prefix="sfsample-accuracy-") as tmp, contextlib.ExitStack() as stack:
        names = {"bin": binary, "src": HERE / "sources", "fixtures": FIXTURES, "tmp": tmp}
        running = Running(stack.enter_context(_process(program.command, names)), program.pick)
        if program.load:
            _until(lambda: os.path.exists(f"{tmp}/socket"), f"{program.row} listens")
            stack.enter_context(_process(program.load, names))
        running.warm_up()
        yield running


@contextlib.contextmanager
def _process(command: str, names: dict[str, object]) -> Iterator["subprocess.Popen[bytes]"]:
    words = [word.format(**names) for word in shlex.split(command)]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    try:
        process = subprocess.Popen(words, cwd=str(names["tmp"]), stdin=pipe, stdout=quiet, stderr=quiet,
                                   start_new_session=True)  # fmt: skip
    except OSError as failure:
        raise UnavailableError(str(failure)) from None
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Running:
    """A program that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", pick: str) -> None:
        self._process = process
        self._pick = pick

    def pid(self) -> int:
        """Return the process to compare now, which may change; 0 while there is none.

        Raises UnavailableError when the program has ended.
        """
        if self._process.poll() is not None:
            raise UnavailableError(f"ended with status {self._process.returncode}")
        if not self._pick:
            return self._process.pid
        found = [pid for pid in descendants(self._process.pid) if _comm(pid).startswith(self._pick)]
        return max(found, key=_ticks, default=0)

    def warm_up(self) -> None:
        """Wait until it has used some CPU time, or for a program that sleeps, half a second."""
        end = time.monotonic() + _MAX_WARM_UP_S
        while time.monotonic() < end and _ticks(self.pid()) < _WARM_UP_TICKS:
            time.sleep(0.01)
        _until(self.pid, "the process to compare exists")


def _until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + _MAX_WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise UnavailableError(f"not true after {_MAX_WAIT_S:g} s: {what}")
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return [*children, *(below for child in children for below in descendants(child))]


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _ticks(pid: int) -> int:
    """Return the user and system time in ticks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
