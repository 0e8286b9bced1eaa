"""The other unwinders: gdb, kept running and told where to attach, and eu-stack, started each time.

Law: what they print is taken as it is; a stack is its pcs, innermost first, and what they said about its end.
"""

import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("gdb", "eu-stack")
_PATIENCE_S = 30
_ENVIRONMENT = {**os.environ, "DEBUGINFOD_URLS": "", "LC_ALL": "C"}


class TheirStack(NamedTuple):
    """A stack as another unwinder sees it; `end` is what it says about the outermost frame."""

    pcs: tuple[int, ...]
    end: str


Stacks = dict[int, TheirStack]


class PeerError(Exception):
    """An unwinder gave no answer."""


class Gdb:
    """One gdb for many looks: it keeps the symbols that it has read.

    Started when it is needed, and anew when it has hung: it can, when it attaches to stopped threads for
    which signals are pending (Go's).
    """

    def __init__(self) -> None:
        self.debug_files: Path | None = None  # for the next one that is started
        self._process: subprocess.Popen[bytes] | None = None
        self._asks = self._answers = -1

    def _start(self) -> "subprocess.Popen[bytes]":
        asked, self._asks = os.pipe()
        self._answers, answer = os.pipe()
        driver = str(Path(__file__).with_name("gdb_driver.py"))
        environment = {**_ENVIRONMENT, "ASKED": str(asked), "ANSWER": str(answer)}
        environment["DEBUG_FILES"] = _with_system(self.debug_files)
        pipes, quiet = (asked, answer), subprocess.DEVNULL
        process = subprocess.Popen(["gdb", "-nx", "-q", "-batch", "-x", driver], env=environment, stdin=quiet,
                                   stdout=quiet, stderr=quiet, pass_fds=pipes)  # fmt: skip
        for theirs in pipes:
            os.close(theirs)
        return process

    def close(self) -> None:
        """End it; whatever it holds is let go."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            os.close(self._asks)
            os.close(self._answers)

    @contextmanager
    def looking(self, pid: int) -> Iterator[Stacks]:
        """Attach, and let go at the end of the block; also when it is left by an exception."""
        try:
            yield _stacks(self._ask(pid))
        except BaseException:
            self.close()
            raise
        self._ask(0)

    def _ask(self, pid: int) -> dict[str, Any]:
        self._process = self._process or self._start()
        os.write(self._asks, f"{pid}\n".encode())
        line, end = b"", time.monotonic() + _PATIENCE_S
        while not line.endswith(b"\n"):
            ready = select.select([self._answers], [], [], max(0, end - time.monotonic()))[0]
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                self.close()
                raise PeerError("gdb: it has ended" if ready else f"gdb: no answer for {_PATIENCE_S} s")
            line += data
        answer: dict[str, Any] = json.loads(line)
        return answer


def _stacks(answer: dict[str, Any]) -> Stacks:
    if "stacks" not in answer:
        raise PeerError(f"gdb: {answer['error']}")
    return {int(tid): TheirStack(tuple(s["pcs"]), s["end"]) for tid, s in answer["stacks"].items()}


@contextmanager
def gdb() -> Iterator[Gdb]:
    """Have gdb for a block."""
    asked = Gdb()
    try:
        yield asked
    finally:
        asked.close()


_THREAD, _FRAME = re.compile(r"TID (\d+):"), re.compile(r"#\d+ +0x([0-9a-f]+)")
_END = re.compile(r"eu-stack: dwfl_thread_getframes tid (\d+) at .*?: (.*)")


def _with_system(debug_files: Path | None) -> str:
    return f"{debug_files}:/usr/lib/debug" if debug_files else "/usr/lib/debug"


def eu_stack(pid: int, debug_files: Path | None = None) -> Stacks:
    """Run eu-stack; it exits with 1 when a stack is not whole."""
    path = f"--debuginfo-path=:.debug:{_with_system(debug_files)}"
    command = ["eu-stack", "-q", "-n", "0", path, "-p", str(pid)]
    try:
        done = subprocess.run(
            command, env=_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:  # it can go round in circles
        raise PeerError(f"eu-stack: no answer for {_PATIENCE_S} s") from None
    ends = {int(tid): why for tid, why in _END.findall(done.stderr)}
    pcs: dict[int, list[int]] = {}
    for line in done.stdout.splitlines():
        if thread := _THREAD.match(line):
            current = pcs.setdefault(int(thread[1]), [])
        elif frame := _FRAME.match(line):
            current.append(int(frame[1], 16))
    if not pcs:
        raise PeerError(f"eu-stack: {done.stderr.strip()[-200:]}")
    return {tid: TheirStack(tuple(found), ends.get(tid, "")) for tid, found in pcs.items()}


def missing() -> list[str]:
    """Return the unwinders that are not installed."""
    return [name for name in NAMES if not shutil.which(name)]
