"""`sfsample top` in a real terminal (tmux): it shows, obeys, resizes, and leaves the terminal as it was."""

import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from sfsample.core.arch import AMD64
from tests.live.cli_runner import STOPPING
from tests.live.targets import ARCH, FIXTURES, running, tracers, wait_until
from tests.live.terminal import Terminal

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        shutil.which("tmux") is None, reason="there is no tmux (scripts/setup dev installs it)"
    ),
]


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(tmp_path)
    yield made
    made.close()


# where all is emulated, its busy threads would leave too little to `top` and the terminal
COMMAND = (*(() if ARCH is AMD64 else ("nice", "-n", "19")), FIXTURES / "v3/workload", "0")


@pytest.fixture
def workload():
    with subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL) as process:
        try:
            yield process.pid
            assert tracers(process.pid) == set()
        finally:
            process.kill()


def top(pid: int, *flags: str) -> str:
    return shlex.join([sys.executable, "-m", "sfsample", "top", "-p", str(pid), *flags]) + "; echo left=$?"


def test_it_shows_obeys_and_leaves(terminal, workload):
    before = terminal.settings()
    terminal.run(top(workload, "--window", "1m", *STOPPING))
    for shown in (r"^ +\d+\.\d % +\d+\.\d %   \w+ +workload$", "pause p50", "missed",
                  rf"^sfsample top  workload {workload}  \d+ samples? in 60 s$"):  # fmt: skip
        terminal.wait_for(f"(?m){shown}")  # each: what is shown may have been drawn in part
    terminal.keys("t")
    terminal.wait_for(r"SHARE\* +CPU +TID +THREAD(.|\n)*%")
    terminal.wait_for(r"\d+  ingest")
    terminal.keys("t")
    terminal.wait_for(rf"{workload}  workload\n")
    terminal.keys("t", "/")
    terminal.keys("-l", "find_match")
    terminal.keys("Enter")
    terminal.wait_for(r"(?m)^ +\d.*  find_match")
    terminal.keys("c")
    assert "compress_block" in terminal.wait_for("CALLERS OF find_match(.|\n)*compress_block")
    terminal.keys("q")
    terminal.wait_for("left=0")
    assert terminal.settings() == before


def test_the_window_is_written_as_a_flame_graph(terminal, workload, tmp_path):
    terminal.run(top(workload, "--window", "10m"))
    terminal.wait_for(r"find_match +workload")
    terminal.keys("w")
    terminal.wait_for(r"written: sfsample-\d+-\w+\.html")
    [page] = tmp_path.glob("*.html")
    assert "find_match" in page.read_text()
    terminal.keys("C-c")
    terminal.wait_for("left=0")


def test_it_follows_the_size_of_the_terminal(terminal, workload):
    terminal.run(top(workload, "--window", "10m"))  # a row that was there stays, however busy the machine
    terminal.wait_for(r"workload$|workload\n")
    terminal.resize(140, 40)
    terminal.wait_for(r"(?m)^.{100,}workload$")
    terminal.resize(40, 10)
    wait_until(
        lambda: "sfsample top" in terminal.text() and len(terminal.text().splitlines()) <= 10, "it fits"
    )
    terminal.resize(3, 2)
    terminal.resize(80, 24)
    terminal.wait_for("q quit")
    terminal.keys("q")
    terminal.wait_for("left=0")


def pid_of_top(workload: int) -> int:
    found = subprocess.run(
        ["pgrep", "-f", f"sfsample top -p {workload}( |$)"], capture_output=True, text=True, check=True
    )
    [pid] = [int(word) for word in found.stdout.split() if "python" in os.readlink(f"/proc/{word}/exe")]
    return pid


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGHUP, 0), (signal.SIGQUIT, 131)]
)
def test_a_signal_leaves_the_terminal_as_it_was(terminal, workload, number, code):
    before = terminal.settings()
    terminal.run(top(workload))
    terminal.wait_for("q quit")
    os.kill(pid_of_top(workload), number)
    terminal.wait_for(f"left={code}")
    assert terminal.settings() == before


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it(terminal, workload):
    terminal.run(top(workload))
    terminal.wait_for("q quit")
    terminal.keys("C-z")
    terminal.wait_for("Stopped")
    assert tracers(workload) == set()
    assert "-echo " not in terminal.settings()
    terminal.run("fg")
    terminal.wait_for("q quit")
    terminal.keys("q")
    terminal.run("clear; echo $((40 + 2))")
    terminal.wait_for("(?m)^42$")


def test_a_terminal_that_goes_away_ends_it(terminal, workload):
    terminal.run(top(workload, "--window", "10m"))
    terminal.wait_for("find_match")
    number = pid_of_top(workload)
    terminal.close()
    wait_until(lambda: not os.path.exists(f"/proc/{number}"), "top has ended")


HOSTILE = "\x1b]0;x\x07\x1b[2J\n"  # a title, and an empty screen


def test_names_of_threads_do_nothing_to_the_terminal(terminal):
    script = f"open('/proc/self/comm', 'w').write({HOSTILE!r})\nprint('named', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"named\n"
            terminal.run(top(process.pid, "--window", "10m"))
            terminal.wait_for(rf"(?m)^sfsample top  \?]0;x\?\?\[2J\?? {process.pid}")
            terminal.keys("t")
            terminal.wait_for(rf"(?m)^ *\d.* %  +{process.pid}  \?]0;x\?\?\[2J")
            terminal.keys("q")
            terminal.wait_for("left=0")
        finally:
            process.kill()


def test_the_target_s_end_ends_it(terminal):
    with subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL) as process:
        terminal.run(top(process.pid, "--window", "10m"))
        terminal.wait_for(r"[1-9]\d* samples? in 600 s")  # one that ends before its first sample is an error
        process.kill()
    terminal.wait_for("left=0")


def test_mistakes_are_told_on_a_terminal_as_it_was(terminal, tmp_path):
    terminal.run(top(999999999))
    assert "sfsample: no such process" in terminal.wait_for("left=3")
    with running(FIXTURES / "v3/target", "leaf") as target:
        terminal.run("clear; TERM=unknown-thing " + top(target.pid))
        assert "set TERM" in terminal.wait_for("left=1")


def test_without_a_terminal_it_says_what_to_do_instead():
    command = [sys.executable, "-m", "sfsample", "top", "-p", "1"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sfsample: top needs a terminal\n  for a file: sfsample record")
