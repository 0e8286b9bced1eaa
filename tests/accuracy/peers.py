"""The other unwinders: gdb, kept running and told where to attach, and eu-stack, started each time.

Law: what they print is taken as it is; a stack is its pcs, innermost first, and what they said about its end.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("gdb", "eu-stack")
_PATIENCE_S = 120
_ENVIRONMENT = {**os.environ, "DEBUGINFOD_URLS": "", "LC_ALL": "C"}


class TheirStack(NamedTuple):
    """A stack as another unwinder sees it; `end` is what it says about the outermost frame."""

    pcs: tuple[int, ...]
    end: str


Stacks = dict[int, TheirStack]


class PeerError(Exception):
    """An unwinder gave no answer."""


class Gdb:
    """One gdb for many looks: it keeps the symbols that it has read."""

    def __init__(self, asks: int, answers: int) -> None:
        self._asks = open(asks, "w", encoding="ascii")  # noqa: SIM115 - closed below
        self._answers = open(answers, encoding="utf-8")  # noqa: SIM115

    def close(self) -> None:
        self._asks.close()
        self._answers.close()

    @contextmanager
    def looking(self, pid: int) -> Iterator[Stacks]:
        """Attach, and let go at the end of the block."""
        answer = self._ask(pid)
        try:
            if "stacks" not in answer:
                raise PeerError(f"gdb: {answer['error']}")
            yield {int(tid): TheirStack(tuple(s["pcs"]), s["end"]) for tid, s in answer["stacks"].items()}
        finally:
            self._ask(0)

    def _ask(self, pid: int) -> dict[str, Any]:
        self._asks.write(f"{pid}\n")
        self._asks.flush()
        line = self._answers.readline()
        if not line:
            raise PeerError("gdb: it has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def gdb() -> Iterator[Gdb]:
    """Start gdb with our driver in it."""
    asked, asks = os.pipe()
    answers, answer = os.pipe()
    driver = Path(__file__).with_name("gdb_driver.py")
    environment = {**_ENVIRONMENT, "ASKED": str(asked), "ANSWER": str(answer)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(["gdb", "-nx", "-q", "-batch", "-x", str(driver)], env=environment, stdin=quiet,
                          stdout=quiet, stderr=quiet, pass_fds=(asked, answer)) as process:  # fmt: skip
        os.close(asked)
        os.close(answer)
        running = Gdb(asks, answers)
        try:
            yield running
        finally:
            running.close()
            process.wait(_PATIENCE_S)


_THREAD, _FRAME = re.compile(r"TID (\d+):"), re.compile(r"#\d+ +0x([0-9a-f]+)")
_END = re.compile(r"eu-stack: dwfl_thread_getframes tid (\d+) at .*?: (.*)")


def eu_stack(pid: int) -> Stacks:
    """Run eu-stack; it exits with 1 when a stack is not whole."""
    command = ["eu-stack", "-q", "-n", "0", "-p", str(pid)]
    done = subprocess.run(
        command, env=_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
    )
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
