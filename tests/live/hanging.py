"""Programs that hang, compiled on the spot, and what `dump` says of them.

Law: a test begins when the kernel shows the hang (every thread in the system call it is to hang in), never
after a sleep; afterwards nobody is traced or stopped.
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
from tests.live.cli_runner import sfsample
from tests.live.targets import Target, assert_untraced, is_forgotten, started, tids, wait_until

SOURCES = Path(__file__).parent / "hangs"
_COMPILERS = {".c": ["cc", "-O1", "-g", "-Wall", "-Werror"], ".cpp": ["c++", "-O1", "-g", "-Wall", "-Werror"]}


def build(name: str, directory: Path) -> Path:
    """Compile a program of hangs/."""
    source = SOURCES / name
    program = directory / source.stem
    words = [*_COMPILERS[source.suffix], str(source), "-o", str(program), "-pthread", "-lresolv"]
    subprocess.run(words, check=True, timeout=300)
    return program


# AArch64 has ppoll only; libc on s390x uses socketcall (3: connect, 10: recv, ...)
_SAME = {"ppoll": "poll", "socketcall 0x3": "connect", "socketcall 0x5": "accept", "socketcall 0x9": "sendto",
         "socketcall 0xa": "recvfrom", "socketcall 0xb": "sendto", "socketcall 0xc": "recvfrom",
         "socketcall 0x11": "recvmsg", "socketcall 0x12": "accept4"}  # fmt: skip


def calls(pid: int) -> Counter[str]:
    """The system calls that threads sleep in, by the names of x86-64, which has most."""
    found: Counter[str] = Counter()
    for tid in tids(pid):
        try:
            with open(f"/proc/{pid}/task/{tid}/syscall", encoding="ascii") as file:
                words = file.read().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words and words[0].isdecimal():
            name = syscall_name(int(words[0])) or words[0]
            found[_SAME.get(" ".join((name, words[1])), _SAME.get(name, name))] += 1
    return found


def wait_for_calls(pid: int, **wanted: int) -> None:
    """Wait until exactly so many threads sleep in each of these calls."""
    wait_until(lambda: calls(pid) == wanted, f"{pid} hangs in {wanted}, not {calls(pid)}")


@contextmanager
def hung(
    program: Path, scenario: str, *arguments: object, child: bool = False, **wanted: int
) -> Iterator[Target]:
    """Start a scenario and wait until it hangs; `child`: it tells a child first, kept as `target.child`.

    It is started again where the kernel has forgotten since when a thread of it sleeps (`thread_facts`).
    """
    asked = False
    while not asked:
        with started([str(program), scenario, "{fd}", *map(str, arguments)]) as target:
            target.child = target.reader.number("child") if child else 0
            target.await_ready()
            if wanted:
                wait_for_calls(target.pid, **wanted)
            if asked := not is_forgotten(target.pid):
                yield target
                assert target.process.poll() is None
                assert_untraced(target.pid)


class Seen:
    """What `dump` says: its verdict in words (lines joined), the rest of the text, and the JSON."""

    def __init__(self, *pids: int, flags: tuple[object, ...] = (), code: int | None = 0) -> None:
        words = ["dump", "-p", ",".join(map(str, pids)), *flags]
        expected = (0, 5) if code is None else (code,)
        done = sfsample(*words)
        assert done.code in expected, done.err
        self.text = done.out.decode()
        _, _, self.rest = self.text.partition("\n\n")
        lines = self.text.partition("\n\n")[0].splitlines()[1:]
        self.verdict = re.sub(r"\n {5}|\n {3}(?!-)", " ", "\n".join(lines))
        done = sfsample(*words, "--json")
        assert done.code in expected, done.err
        self.document: dict[str, Any] = json.loads(done.out)

    @property
    def kinds(self) -> list[str]:
        """Of the findings, in order."""
        return [finding["kind"] for finding in self.document["verdict"]]

    def thread(self, name: str) -> dict[str, Any]:
        """The one thread of that name."""
        (found,) = (t for p in self.document["processes"] for t in p["threads"] if t["name"] == name)
        return found

    def says(self, pattern: str) -> bool:
        """Whether the verdict has such words; addresses, times and ids may be left to the pattern."""
        assert re.search(pattern, self.verdict), self.verdict
        return True


def names(pid: int) -> dict[str, int]:
    """Names of the threads, with their ids."""
    found = {}
    for tid in tids(pid):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="ascii") as file:
            found[file.read().strip()] = tid
    return found


def installed(*programs: str) -> bool:
    """Whether programs are on PATH, or where Debian hides them."""
    return all(find(program) for program in programs)


def find(program: str) -> str | None:
    """Return a program's path."""
    places = [*os.get_exec_path(), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)]
    return next((f"{place}/{program}" for place in places if os.access(f"{place}/{program}", os.X_OK)), None)
