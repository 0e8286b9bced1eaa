"""Compiles programs that hang, starts them, and reads what `sfsample dump` says about them.

A test begins when the kernel shows the hang, every thread in the expected system call, never after a sleep.
Afterwards no thread is traced or stopped.
"""

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sfsample.process.syscall_names import syscall_name
from tests.live.cli_runner import in_this_process, sfsample
from tests.live.targets import Target, assert_untraced, is_forgotten, started, tids, wait_until

WAITED = r"has waited [0-9.]+ s for"  # how a verdict says since when a thread waits
SOURCES = Path(__file__).parent / "hangs"
_COMPILERS = {".c": ["cc", "-O1", "-g", "-Wall", "-Werror"], ".cpp": ["c++", "-O1", "-g", "-Wall", "-Werror"]}


def build(name: str, directory: Path) -> Path:
    """Compile a program of hangs/."""
    source = SOURCES / name
    program = directory / source.stem
    words = [*_COMPILERS[source.suffix], str(source), "-o", str(program), "-pthread", "-lresolv"]
    subprocess.run(words, check=True, timeout=300)
    return program


# Names of system calls elsewhere, and those of x86-64: AArch64 has ppoll only, libc on s390x uses socketcall
# (3: connect, 10: recv, ...)
_X86_NAMES = {
    "ppoll": "poll", "socketcall 0x3": "connect", "socketcall 0x5": "accept", "socketcall 0x9": "sendto",
    "socketcall 0xa": "recvfrom", "socketcall 0xb": "sendto", "socketcall 0xc": "recvfrom",
    "socketcall 0x11": "recvmsg", "socketcall 0x12": "accept4",
}  # fmt: skip


def calls(pid: int) -> Counter[str]:
    """Count the system calls that threads sleep in, by their names on x86-64."""
    found: Counter[str] = Counter()
    for tid in tids(pid):
        try:
            with open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
                words = file.read().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words and words[0].isdecimal():
            name = syscall_name(int(words[0])) or words[0]
            found[_X86_NAMES.get(" ".join((name, words[1])), _X86_NAMES.get(name, name))] += 1
    return found


def wait_for_calls(pid: int, **expected: int) -> None:
    """Wait until exactly so many threads sleep in each of these calls."""
    wait_until(lambda: calls(pid) == expected, f"{pid} hangs in {expected}, not {calls(pid)}")


@contextmanager
def hung(
    program: Path, scenario: str, *arguments: object, child: bool = False, **expected: int
) -> Iterator[Target]:
    """Start a scenario and wait until it hangs; with `child` it prints a pid first, kept as `target.child`.

    It is started again if the kernel has lost the time at which one of its threads last ran (`thread_facts`).
    """
    done = False
    while not done:
        with started([str(program), scenario, "{fd}", *map(str, arguments)]) as target:
            target.child = target.reader.number("child") if child else 0
            target.await_ready()
            if expected:
                wait_for_calls(target.pid, **expected)
            if done := not is_forgotten(target.pid):
                yield target
                assert target.process.poll() is None
                assert_untraced(target.pid)


class Dumped:
    """A dump of processes: `verdict` (its wrapped lines joined), the `rest` of the `text`, and the JSON."""

    def __init__(self, *pids: int, flags: tuple[object, ...] = (), code: int | None = 0) -> None:
        words = ["dump", "-p", ",".join(map(str, pids)), *flags]
        codes = (0, 5) if code is None else (code,)
        done = sfsample(*words)
        assert done.code in codes, done.err
        self.text = done.out.decode()
        _, _, self.rest = self.text.partition("\n\n")
        lines = [line for line in self.text.partition("\n\n")[0].splitlines() if line.startswith(("=>", " "))]
        self.verdict = re.sub(r"\n {5}|\n {3}(?!-)", " ", "\n".join(lines))
        done = in_this_process(*words, "--json")
        assert done.code in codes, done.err
        self.document: dict[str, Any] = json.loads(done.out)

    @property
    def kinds(self) -> list[str]:
        """Kinds of the findings, in order."""
        return [finding["kind"] for finding in self.document["verdict"]]

    def thread(self, name: str) -> dict[str, Any]:
        """Return the one thread of that name."""
        (thread,) = (t for p in self.document["processes"] for t in p["threads"] if t["name"] == name)
        return thread

    def assert_says(self, pattern: str) -> None:
        """Assert that the verdict matches a pattern."""
        assert re.search(pattern, self.verdict), self.verdict


def names(pid: int) -> dict[str, int]:
    """Return the tids of the threads by their names."""
    found = {}
    for tid in tids(pid):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="ascii") as file:
            found[file.read().strip()] = tid
    return found


def find(program: str) -> str | None:
    """Return the path of a program on PATH, or where Debian installs PostgreSQL; None when there is none."""
    places = [*os.get_exec_path(), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)]
    return next((f"{place}/{program}" for place in places if os.access(f"{place}/{program}", os.X_OK)), None)
