"""`sfsample top` in a real terminal (tmux) shows functions, obeys keys, and leaves the terminal as it was."""

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
    pytest.mark.any_load,
    pytest.mark.skipif(
        shutil.which("tmux") is None, reason="there is no tmux (scripts/setup dev installs it)"
    ),
]


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(tmp_path)
    yield made
    made.close()


# Under emulation, its busy threads would leave too little CPU time for `top` and the terminal.
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


def test_top_shows_functions_and_obeys_keys(terminal, workload):
    before = terminal.settings()
    terminal.run(top(workload, "--window", "1m", *STOPPING))
    for pattern in (r"^ +\d+\.\d % +\d+\.\d %   \w+ +workload$", "pause p50", "missed",
                  rf"^sfsample top  workload {workload}  \d+ samples? in 60 s$"):  # fmt: skip
        terminal.wait_for(f"(?m){pattern}")  # each alone: the screen may be drawn in part
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


def test_top_shows_locks_and_their_holders(terminal):
    script = (
        "import threading, time\nlock = threading.Lock()\n"
        "def take_job():\n    with lock: pass\n"
        "def hold():\n    with lock:\n        threading.Thread(target=take_job).start()\n"
        "        time.sleep(1e6)\nhold()"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 1, "it has two threads")
            flags = ("--mode", "wall", "--blame", "--python", "only", "--window", "10m")
            terminal.resize(60, 10)
            terminal.run(f"LC_ALL=C {top(process.pid, *flags)}")
            terminal.wait_for(r"(?m)^ +\d\d.\d % .*  \[threading.Lock\]")
            terminal.keys("w")
            terminal.wait_for(r"(?m)^ *\d+\.\d\d s  \d\d.\d % +1   \[threading.Lock\] in take_job \(")
            terminal.wait_for(r"(?m)^ +\d+ % of it held by \S+, in hold \(<string>:")
            terminal.keys("Enter")
            terminal.wait_for(r"\(waits for \[threading.Lock\](.|\n)*  0.0 %  100.0 %   take_job \(")
            terminal.keys("Escape")
            terminal.wait_for("AT ONCE   THREADS WAIT FOR")
            terminal.keys("q")
            terminal.wait_for("left=0")
            assert tracers(process.pid) == set()
        finally:
            process.kill()


def test_top_follows_the_size_of_the_terminal(terminal, workload):
    terminal.run(top(workload, "--window", "10m"))  # so long that a row stays, also on a busy machine
    terminal.wait_for(r"workload$|workload\n")
    terminal.resize(140, 40)
    terminal.wait_for(r"(?m)^.{100,}workload$")
    terminal.resize(40, 10)
    wait_until(
        lambda: "sfsample top" in terminal.text() and len(terminal.text().splitlines()) <= 10,
        "the screen fits",
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_leaves_the_terminal_as_it_was(terminal, workload, number):
    before = terminal.settings()
    terminal.run(top(workload))
    terminal.wait_for("q quit")
    os.kill(pid_of_top(workload), number)
    terminal.wait_for("left=0")
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


def test_closed_terminal_ends_top(terminal, workload):
    terminal.run(top(workload, "--window", "10m"))
    terminal.wait_for("find_match")
    pid = pid_of_top(workload)
    terminal.close()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "top has ended")


def test_locale_without_micro_or_wide_letters(terminal):
    script = "def 漢字():\n    print('runs', flush=True)\n    while True: pass\n漢字()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"runs\n"
            terminal.run(f"LC_ALL=C {top(process.pid, '--window', '10m', *STOPPING)}")
            terminal.wait_for(r"pause p50 \d+ us p99")
            terminal.wait_for(r"% +\?\? \(<string>:1\)")
            terminal.keys("q")
            terminal.wait_for("left=0")
        finally:
            process.kill()


HOSTILE = "\x1b]0;x\x07\x1b[2J\n"  # sets a title, and clears the screen


def test_names_of_threads_cannot_control_the_terminal(terminal):
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


def test_end_of_target_ends_top(terminal):
    with subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL) as process:
        terminal.run(top(process.pid, "--window", "10m"))
        terminal.wait_for(
            r"[1-9]\d* samples? in 600 s"
        )  # without a sample, the end of the target is an error
        process.kill()
    terminal.wait_for(rf"sfsample: top has ended with its target: workload {process.pid}(.|\n)*left=0")


def test_error_is_printed_on_a_restored_terminal(terminal, tmp_path):
    terminal.run(top(999999999))
    assert "sfsample: no such process" in terminal.wait_for("left=3")
    with running(FIXTURES / "v3/target", "leaf") as target:
        terminal.run("clear; TERM=unknown-thing " + top(target.pid))
        assert "set TERM" in terminal.wait_for("left=1")
