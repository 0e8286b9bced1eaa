"""What sfsample prints to a new user about a process: every screen, in golden/first-hour.txt.

What it prints without a process, for its words or for a file, is in golden/refused.txt (test_refused.py).

Words in capitals stand for a pid, a path or a name of this run; N for a number that depends on it.  Left out
are screens that depend on the machine (`doctor`) and lines that depend on its load.

`pytest tests/cli/test_first_hour.py --update-golden` writes an intended change.  Read it as such a user: each
screen must say what is wrong, why, and what to do next.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from sfsample import __version__
from sfsample.cli import main
from sfsample.history.facts import Slice
from sfsample.history.store import History
from sfsample.report.report import Report
from sfsample.report.stats import ReportStats
from sfsample.report.time_slices import TIME_UNIT_NS
from tests.builders.histories import report
from tests.cli.screens import make_files, read_screens, write_screens
from tests.live.cli_runner import NOBODY, is_root, stops_of
from tests.live.targets import HANG_S, LineReader, fixture, running, states, status, tids, wait_until
from tests.live.test_cli_errors import make_public, unused_pid

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/first-hour.txt"
SECOND = 10**9 // TIME_UNIT_NS  # in the unit of rows
BACK_S = 1_793_512_800  # 2026-11-01 06:00 UTC: clocks are set back in New York
ATTEMPTS = 5  # for a screen that depends on the load of the machine
# Lines that depend on the load, and what depends on the machine: its libc, its kernel, and how it was built.
LOAD = re.compile(
    r"\n(?:  (?:skipped|coverage|pause|timers|cost) | {12}p50)[^\n]*"
    r"|(?m:^\S*\[runnable: no CPU\].*\n)|(?<= missed) \([\d.N]+ Hz\)"
    r"|\n  waiting   [\d.N]+ % of the threads' time: cpu [\d.N]+ %(?=\n)"
)
MACHINE = re.compile(r"\n  (?:callers|modules) [^\n]*|(?<=;)\S*(?=main;outer)|, at \w+")
BUSY = (
    "BUSY",
    "CHILD",
)  # they are stopped where a screen does not need them: the commands take long beside them


SENTENCE = "| sed '/^$/,$d' | paste -sd' ' | tr -s ' '"
HANGS = {  # name -> Python program; it prints a line just before it hangs
    "LOCKED": """
import os, threading
lock, is_held = threading.RLock(), threading.Event()
def read_config():
    with lock:
        is_held.set()
        os.read(os.pipe()[0], 1)
threading.Thread(target=read_config, name="reader").start()
is_held.wait()
print(flush=True)
lock.acquire()
""",
    "LOOP": """
import asyncio, time
async def fetch():
    print(flush=True)
    time.sleep(1000)
asyncio.run(fetch())
""",
    "QUEUE": """
import os
os.mkfifo("queue")
print(flush=True)
open("queue")
""",
    "REAPER": """
import os
child = os.fork() or os.execlp("sleep", "sleep", "1000")
print(flush=True)
os.waitpid(child, 0)
""",
}


class Screen(NamedTuple):
    """A command line.

    `numbers`: the numbers in it depend on the run; busy processes run meanwhile.  `other_user`: the user is
    not that of the process.  `interrupt`: Ctrl-C ends it when this was printed, or samples were taken.
    """

    command: str
    numbers: bool = False
    other_user: bool = False
    interrupt: str | None = None

    @property
    def prompt(self) -> str:
        """The first line of the screen."""
        return (
            f"{'nobody' if self.other_user else ''}$ {self.command}{'' if self.interrupt is None else ' ^C'}"
        )


SCREENS = [
    # the first words
    Screen("sfsample --version"),
    Screen("sfsample help | head -20"),
    Screen("sfsample help record | head -9"),
    Screen("sfsample watch --help | head -8"),
    # a process that cannot be sampled
    Screen("sfsample GONE"),
    Screen("sfsample BUSY GONE"),
    Screen("sh -c 'exec sfsample $$'", numbers=True),
    Screen("sfsample 2"),
    Screen("sfsample dump 2"),
    Screen("sfsample watch 2 --output-dir FOLDER/new"),
    Screen("sfsample ZOMBIE"),
    Screen("sfsample dump ZOMBIE"),
    Screen("sfsample watch ZOMBIE --output-dir FOLDER/new"),
    Screen("sfsample THREAD"),
    Screen("sfsample -n TWIN -d 1", numbers=True),
    Screen("sfsample -n x-TWIN"),
    Screen("sfsample -n no-such-program"),
    Screen("sfsample watch -n no-such-program --output-dir FOLDER/new", numbers=True, interrupt="comes once"),
    Screen("sfsample BUSY -d 1 2>&1 | head -4", other_user=True),
    # a process that gives no sample
    Screen("sfsample SLEEPING -d 0.2 --no-perf-events", numbers=True),
    Screen("sfsample STOPPED -d 0.2 --no-perf-events", numbers=True),
    Screen("sfsample MASTER -d 0.2 --no-perf-events", numbers=True),
    Screen("sfsample watch SLEEPING --mode cpu --for 200ms --no-perf-events --output-dir FOLDER/new",
           numbers=True, interrupt="mode wall"),
    Screen("sfsample dump STOPPED --depth 1", numbers=True),
    # a process that hangs: its first sentence, in one line
    Screen(f"sfsample dump LOCKED {SENTENCE}", numbers=True),
    Screen(f"sfsample dump LOOP {SENTENCE}", numbers=True),
    Screen(f"sfsample dump QUEUE {SENTENCE}", numbers=True),
    Screen(f"sfsample dump REAPER {SENTENCE}", numbers=True),
    Screen("sfsample dump -n TMP/queue.py 2>&1 >/dev/null", numbers=True),
    Screen("sfsample dump -s STOPPED GONE --depth 1 2>&1 >/dev/null", numbers=True),
    Screen("sfsample -- true"),
    Screen("sfsample -- sh -c 'exit 3'"),
    # files
    Screen("sfsample BUSY -o /dev/full -d 0.2 --mode wall"),
    Screen("sfsample BUSY -o FOLDER/out.html", other_user=True),
    Screen("sfsample watch BUSY --output-dir notes.txt"),
    # it works
    Screen("sfsample BUSY --mode wall --no-perf-events", numbers=True, interrupt=""),
    Screen("sfsample BUSY --mode wall --no-perf-events -d 0.2 -o out.html", numbers=True),
    Screen("sfsample BUSY --mode wall --no-perf-events -d 0.2 -q -t | head -1", numbers=True),
    Screen("sfsample BUSY -d 0.2 >&-"),
    Screen("sfsample top BUSY </dev/null"),
    Screen("sfsample convert good.json"),
    Screen("sfsample diff good.json missing.json"),
    Screen("sfsample diff good.json other.json"),
    # a history, in a night in which clocks are set back
    Screen("sfsample history"),
    Screen("TZ=EST5EDT,M3.2.0,M11.1.0 sfsample history list --history kept"),
    Screen("sfsample history list --history kept --utc -v"),
    Screen("TZ=EST5EDT,M3.2.0,M11.1.0 sfsample history list --history kept "
           "--at '2026-11-01 01:30:00-05:00' --for 1m"),
    Screen("TZ=IST-5:30 sfsample history show --history kept"),
    Screen("sfsample history diff --utc --history kept --at '2026-11-01 06:30' --for 1m "
           "--with '2026-11-01 06:31'"),
    Screen("sfsample history diff --utc --history kept --at '2026-11-01 06:30' --for 1m "
           "--with '2026-11-01 06:31' --mode wall 2>&1 | tail -5"),
    Screen("sfsample history prune --history folder"),
    Screen("sfsample watch --config watch.toml --check"),
    Screen("sfsample service install --config FOLDER/missing.toml"),
]  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start the processes and make the files; return what the words in capitals stand for."""
    tmp = tmp_path_factory.mktemp("first-hour")
    make_public(tmp)
    make_files(tmp)
    make_command(tmp / "bin")
    make_history(tmp / "kept")
    (tmp / "other.folded").write_text("redis;main;serve 300\nredis;main;flush 10\n")
    assert main(["convert", f"{tmp}/other.folded", "-o", f"{tmp}/other.json", "-q"]) == 0
    (tmp / "watch.toml").write_text('name = "redis"\nevery = "0.5s"\n')
    twin, target = f"w{os.getpid()}", tmp / "target"
    for copy in (tmp / twin, target):
        shutil.copy(fixture("v3"), copy)
    shutil.copy(fixture("v3", "libcallee.so"), tmp)
    with ExitStack() as stack:

        def started(program: Path | str, scenario: str, **flags: bool) -> int:
            return stack.enter_context(running(program, scenario, **flags)).pid

        pids = {"BUSY": started(target, "leaf"), "SLEEPING": started(target, "sleep"),
                "STOPPED": started(target, "leaf", stopped=True), "GONE": unused_pid(),
                "THREADED": started(target, "threads", stopped=True),
                "TWIN_A": started(tmp / twin, "sleep"), "TWIN_B": started(tmp / twin, "sleep")}  # fmt: skip
        pids["THREAD"] = tids(pids["THREADED"])[-1]
        pids |= stack.enter_context(shell("MASTER", "CHILD", "while :; do :; done & echo $!; wait"))
        pids |= stack.enter_context(shell("PARENT", "ZOMBIE", "true & echo $!; exec sleep 1000"))
        (tmp / "app").symlink_to(sys.executable)
        pids |= {name: stack.enter_context(hung(tmp, name)) for name in HANGS}
        wait_until(lambda: status(pids["ZOMBIE"]).get("State", "").startswith("Z"), "a zombie")
        wait_until(lambda: status(pids["PARENT"]).get("Name") == "sleep", "its parent has called execve(2)")
        for name in ("STOPPED", "THREADED", *BUSY):
            os.kill(pids[name], signal.SIGSTOP)
        wait_until(lambda: states(pids["STOPPED"]) == {"T"}, "it is stopped")
        yield {**{name: str(pid) for name, pid in pids.items()}, "TWIN": twin, "TMP": str(tmp),
               "FOLDER": str(tmp / "folder"), "ROOT": str(ROOT), "PYTHON": sys.executable,
               "VERSION": __version__}  # fmt: skip
        os.kill(pids["BUSY"], signal.SIGCONT)


@contextmanager
def hung(tmp: Path, name: str) -> Iterator[int]:
    """Start a program of HANGS; yield its pid once it sleeps."""
    program = tmp / f"{name.lower()}.py"
    program.write_text(HANGS[name])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([tmp / "app", program], cwd=tmp, start_new_session=True, **pipes) as child:
        try:
            assert LineReader(child.stdout.fileno()).line() == ""
            wait_until(lambda: states(child.pid) == {"S"}, f"{name} hangs")
            yield child.pid
        finally:
            os.killpg(child.pid, signal.SIGKILL)


class shell(ExitStack):  # noqa: N801 - used as a function
    """Run a shell whose first line is the pid of a child; return both pids, and end both at the end."""

    def __init__(self, name: str, child_name: str, code: str) -> None:
        super().__init__()
        self._names, self._code = (name, child_name), code

    def __enter__(self) -> dict[str, int]:  # type: ignore[override]
        shell = subprocess.Popen(["sh", "-c", self._code], stdout=subprocess.PIPE, start_new_session=True)
        self.callback(shell.wait, HANG_S)
        self.callback(os.killpg, shell.pid, signal.SIGKILL)
        assert shell.stdout is not None
        self.enter_context(shell.stdout)
        child = int(LineReader(shell.stdout.fileno()).line())
        return dict(zip(self._names, (shell.pid, child), strict=True))


def make_history(directory: Path) -> None:
    """Make a history: half an hour before clocks are set back, half an hour later, and a busy minute."""
    history = History(str(directory))
    for begin_s, cpu_s in ((BACK_S - 1800, 2), (BACK_S + 1800, 2), (BACK_S + 1860, 50)):
        rows = [("main;serve", 19 * cpu_s, cpu_s * SECOND, cpu_s * SECOND),
                ("main;epoll_wait", 19 * (60 - cpu_s), (60 - cpu_s) * SECOND, 0)]  # fmt: skip
        closed = timed(*rows)._replace(labels={"env": "prod"}, started_ns=begin_s * 10**9)
        history.add(Slice(float(begin_s), begin_s + 60.0, "redis", closed))
    history.close()


def timed(*rows: tuple[str, int, int, int]) -> Report:
    """Return a report of a minute in wall mode at 19 Hz."""
    cpu_ns = sum(row[3] for row in rows) * TIME_UNIT_NS
    counts = {"cpu_charged_ns": cpu_ns, "cpu_sampled_ns": cpu_ns, "ticks": 1140}
    return report(*rows)._replace(stats=ReportStats({"mode": "wall", **counts}))


def make_command(directory: Path) -> None:
    """Make the command `sfsample` in directory/bin."""
    directory.mkdir()
    program = directory / "sfsample"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sfsample "$@"\n')
    program.chmod(0o755)


def environment(directory: Path) -> dict[str, str]:
    path = f"{directory}/bin:{os.environ['PATH']}"
    return {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        "HOME": str(directory),
    }


def shown(screen: Screen, names: dict[str, str]) -> str:
    """Type the command; return what the user sees, and the exit code."""
    tmp = Path(names["TMP"])
    if screen.numbers:
        signal_busy(names, signal.SIGCONT)
    command = f"{in_this_run(screen.command, names)}\necho [exit $?]\n"
    if screen.other_user:  # by setpriv itself, which can read what belongs to root
        command = command.replace("sfsample", shlex.join([*NOBODY, sys.executable, "-m", "sfsample"]), 1)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(["sh", "-c", command], cwd=tmp, env=environment(tmp), **streams) as child:
        text = b""
        if screen.interrupt is not None:
            text = interrupted(child, screen.interrupt, int(names["BUSY"]))
        text += child.communicate(timeout=HANG_S)[0]
    signal_busy(names, signal.SIGSTOP)
    shutil.rmtree(tmp / "folder" / "new", ignore_errors=True)
    return text.decode().strip("\n")


def signal_busy(names: dict[str, str], number: int) -> None:
    for name in BUSY:
        os.kill(int(names[name]), number)


def interrupted(shell: "subprocess.Popen[bytes]", when_shown: str, busy: int) -> bytes:
    """Send Ctrl-C to the command that a shell runs; return what it has printed."""
    text, before = b"", stops_of(busy)
    assert shell.stdout is not None
    if when_shown:
        reader = LineReader(shell.stdout.fileno())
        lines = [reader.line()]
        while when_shown not in lines[-1]:
            lines.append(reader.line())
        text = "".join(f"{line}\n" for line in lines).encode()
    else:
        wait_until(lambda: stops_of(busy) > before + 5, "samples are taken")
    for child in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGINT)
    return text


def in_this_run(text: str, names: dict[str, str]) -> str:
    """Return a text with what the words in capitals stand for."""
    pattern = "|".join(sorted(names, key=len, reverse=True))
    return re.sub(rf"\b({pattern})\b", lambda match: names[match[0]], text)


def in_general(text: str, names: dict[str, str]) -> str:
    """Return a text with words in capitals instead of what they stand for in this run."""
    values = {value: name for name, value in names.items()}
    longest = sorted(values, key=len, reverse=True)
    pattern = "|".join(rf"(?<!\d){re.escape(value)}(?!\d)" for value in longest)
    return re.sub(pattern, lambda match: values[match[0]], text)


def compared(screen: Screen, text: str) -> str:
    """Return a text without what depends on the run."""
    if not screen.numbers:
        return text
    text = MACHINE.sub("", LOAD.sub("", text))
    text = re.sub(r"0x[0-9a-fN]+", "0xN", re.sub(r"\d\d\d\d-\d\d-\d\dT[\d:]+Z", "TIME", text))
    text = re.sub(r"(?<=\d )(ms|min|h)\b", "s", text)
    return re.sub(r"(?<![\w(])\d+(\.\d+)?(?!\w)(?<!exit .)", "N", text).replace("samples", "sample")


def is_kernel_thread(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & 0x00200000)
    except OSError:
        return False


def can_show(screen: Screen) -> bool:
    return (is_root() or not screen.other_user) and ("2" not in screen.command.split() or is_kernel_thread(2))


@pytest.mark.parametrize("screen", SCREENS, ids=[screen.prompt for screen in SCREENS])
def test_screen(screen: Screen, names: dict[str, str], pytestconfig: pytest.Config) -> None:
    if not can_show(screen):
        pytest.skip("needs root and setpriv" if screen.other_user else "process 2 is no kernel thread here")
    golden = read_screens(GOLDEN)
    wanted = compared(screen, in_this_run(golden.get(screen.prompt, ""), names))
    for _ in range(ATTEMPTS if screen.numbers else 1):
        text = shown(screen, names)
        if compared(screen, text) == wanted:
            break
    assert "Traceback" not in text
    if pytestconfig.option.update_golden and compared(screen, text) != wanted:
        golden[screen.prompt] = compared(screen, in_general(text, names))
        known = [each.prompt for each in SCREENS if each.prompt in golden]
        write_screens(GOLDEN, {prompt: golden[prompt] for prompt in known})
        return
    assert compared(screen, text) == wanted


def test_every_screen_is_in_the_golden_file_once() -> None:
    assert list(read_screens(GOLDEN)) == [screen.prompt for screen in SCREENS]
    assert len({screen.prompt for screen in SCREENS}) == len(SCREENS)
