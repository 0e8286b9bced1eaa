"""The other unwinders: gdb, which runs on and attaches on request, and eu-stack, which is started each time.

Their output is used unchanged: a stack is its pcs, innermost first, and their reason for its end.
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
_MAX_ANSWER_S = 30
_ENVIRONMENT = {**os.environ, "DEBUGINFOD_URLS": "", "LC_ALL": "C"}


class PeerStack(NamedTuple):
    """A stack of another unwinder."""

    pcs: tuple[int, ...]
    end: str  # its reason why the stack ends


Stacks = dict[int, PeerStack]


class PeerError(Exception):
    """An unwinder has given no answer."""


class Gdb:
    """One gdb for many stops: it keeps the symbols that it has read.

    It is started on demand, and again when it hangs: it can hang when it attaches to stopped threads with
    pending signals (those of Go).
    """

    def __init__(self) -> None:
        self.debug_files: Path | None = None  # for the next gdb
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1

    def _start(self) -> "subprocess.Popen[bytes]":
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        driver = str(Path(__file__).with_name("gdb_driver.py"))
        environment = {**_ENVIRONMENT, "REQUESTS": str(requests), "ANSWERS": str(answers)}
        environment["DEBUG_FILES"] = _with_system(self.debug_files)
        pipes, quiet = (requests, answers), subprocess.DEVNULL
        process = subprocess.Popen(["gdb", "-nx", "-q", "-batch", "-x", driver], env=environment, stdin=quiet,
                                   stdout=quiet, stderr=quiet, pass_fds=pipes)  # fmt: skip
        for end in pipes:
            os.close(end)
        return process

    def close(self) -> None:
        """Kill gdb, which releases the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            os.close(self._requests)
            os.close(self._answers)

    @contextmanager
    def attached(self, pid: int) -> Iterator[Stacks]:
        """Attach and yield the stacks; detach at the end of the block, also after an exception."""
        try:
            yield _stacks(self._request(pid))
        except BaseException:
            self.close()
            raise
        self._request(0)

    def _request(self, pid: int) -> dict[str, Any]:
        self._process = self._process or self._start()
        os.write(self._requests, f"{pid}\n".encode())
        line, end = b"", time.monotonic() + _MAX_ANSWER_S
        while not line.endswith(b"\n"):
            ready = select.select([self._answers], [], [], max(0, end - time.monotonic()))[0]
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                self.close()
                raise PeerError("gdb: it has ended" if ready else f"gdb: no answer for {_MAX_ANSWER_S} s")
            line += data
        answer: dict[str, Any] = json.loads(line)
        return answer


def _stacks(answer: dict[str, Any]) -> Stacks:
    if "stacks" not in answer:
        raise PeerError(f"gdb: {answer['error']}")
    return {int(tid): PeerStack(tuple(s["pcs"]), s["end"]) for tid, s in answer["stacks"].items()}


@contextmanager
def gdb() -> Iterator[Gdb]:
    """Yield a gdb, and end it after the block."""
    debugger = Gdb()
    try:
        yield debugger
    finally:
        debugger.close()


_THREAD, _FRAME = re.compile(r"TID (\d+):"), re.compile(r"#\d+ +0x([0-9a-f]+)")
_END = re.compile(r"eu-stack: dwfl_thread_getframes tid (\d+) at .*?: (.*)")


def _with_system(debug_files: Path | None) -> str:
    return f"{debug_files}:/usr/lib/debug" if debug_files else "/usr/lib/debug"


def eu_stack(pid: int, debug_files: Path | None = None) -> Stacks:
    """Run eu-stack; its exit status is 1 when a stack is not whole."""
    path = f"--debuginfo-path=:.debug:{_with_system(debug_files)}"
    command = ["eu-stack", "-q", "-n", "0", path, "-p", str(pid)]
    try:
        done = subprocess.run(
            command, env=_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=_MAX_ANSWER_S
        )
    except subprocess.TimeoutExpired:  # it can loop for ever
        raise PeerError(f"eu-stack: no answer for {_MAX_ANSWER_S} s") from None
    ends = {int(tid): why for tid, why in _END.findall(done.stderr)}
    pcs: dict[int, list[int]] = {}
    for line in done.stdout.splitlines():
        if thread := _THREAD.match(line):
            current = pcs.setdefault(int(thread[1]), [])
        elif frame := _FRAME.match(line):
            current.append(int(frame[1], 16))
    if not pcs:
        raise PeerError(f"eu-stack: {done.stderr.strip()[-200:]}")
    return {tid: PeerStack(tuple(found), ends.get(tid, "")) for tid, found in pcs.items()}


def missing() -> list[str]:
    """Return the unwinders that are not installed."""
    return [name for name in NAMES if not shutil.which(name)]
