"""What `watch` starts runs its own code: not that of the current directory, of PYTHON*, HOME or PATH.

Every hostile file leaves its name in a file before it does anything else.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsample.history.store import History
from sfsample.watching import own_program as programs
from sfsample.watching.own_program import own_program
from tests.builders.histories import minute
from tests.live.cli_runner import catches_sigterm, ended
from tests.live.targets import HANG_S, Target, wait_until
from tests.watching.push.fake_backend import backend

pytestmark = [pytest.mark.live, pytest.mark.any_load]
MODULES = [
    "sqlite3",
    "json",
    "http",
    "tomllib",
    "webbrowser",
    "psutil",
    "ptrace",
    "sitecustomize",
    "usercustomize",
]


class Trap:
    """A directory with hostile modules and programs; `mark` has the names of those that ran."""

    def __init__(self, root: Path) -> None:
        self.mark, self.directory = root / "mark", root / "trap"
        self._code = f"open({str(self.mark)!r}, 'a').write(__file__ + '\\n')\n"
        site = sysconfig.get_path("purelib", f"{os.name}_user", {"userbase": str(root / ".local")})
        for each in (self.directory, self.directory / "sfsample", Path(site)):
            each.mkdir(parents=True)
        for each in (self.directory, Path(site)):
            for name in MODULES:
                (each / f"{name}.py").write_text(self._code)
        self.programs = [self.directory / name for name in ("python3", "sfsample.sh", "gcc", "ldconfig")]
        for program in self.programs:
            program.write_text(f"#!/bin/sh\necho {program} >> {self.mark}\n")
            program.chmod(0o755)
        self.environment = {
            **os.environ, "PYTHONPATH": str(self.directory), "PYTHONUSERBASE": str(root / ".local"),
            "HOME": str(root), "PYTHONSTARTUP": str(self.directory / "json.py"),
            "PATH": f"{self.directory}:{os.environ['PATH']}", "PYTHONWARNINGS": "error::json.Hostile",
        }  # fmt: skip

    def add_package(self) -> None:
        """Put a hostile sfsample there, too."""
        for name in ("__init__.py", "__main__.py"):
            (self.directory / "sfsample" / name).write_text(self._code)

    def caught(self) -> str:
        return self.mark.read_text() if self.mark.exists() else ""


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@contextmanager
def watching(words: list[str], **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, **options) as child:  # type: ignore[call-overload]
        try:
            wait_until(lambda: child.poll() is not None or catches_sigterm(child.pid), "it has begun")
            yield child
        finally:
            child.kill()


def test_trap_catches_what_python_does_by_itself(trap: Trap) -> None:
    """Without this, the tests below could not fail."""
    trap.add_package()
    subprocess.run([sys.executable, "-m", "sfsample"], cwd=trap.directory, check=False)
    assert "sfsample/__init__.py" in trap.caught()
    subprocess.run([sys.executable, "-c", ""], env=trap.environment, check=False, stderr=subprocess.DEVNULL)
    assert "customize.py" in trap.caught()


@pytest.mark.parametrize("removed", [False, True], ids=["hostile directory", "removed directory"])
def test_children_of_watch_run_its_own_code(
    leaf: Target, trap: Trap, tmp_path: Path, *, removed: bool
) -> None:
    """They prune, push, take a dump and execute the watch anew."""
    trap.add_package()
    old = History(str(tmp_path / "h"))
    old.add(minute(0))  # which is too old to be kept
    old.close()
    [old_file] = (tmp_path / "h").glob("*.sqlite")
    with backend() as fake:
        config = tmp_path / "watch.toml"
        config.write_text(f'pid = {leaf.pid}\nevery = "1s"\nhistory = "{tmp_path}/h"\n'
                          f'output-dir = "{tmp_path}/o"\npush = "parca={fake.address}"\n')  # fmt: skip
        words = own_program("watch", "--config", str(config))
        with watching(words, cwd=trap.directory, env=trap.environment) as child:
            if removed:
                shutil.rmtree(trap.directory)
            wait_until(lambda: not old_file.exists(), "a child has pruned")
            wait_until(lambda: len(fake.taken) > 1, "a child has pushed")
            child.send_signal(signal.SIGUSR1)
            wait_until(lambda: [*(tmp_path / "o").glob("*.dump.txt")], "a child has taken a dump")
            wait_until(lambda: catches_sigterm(child.pid), "it goes on")
            child.send_signal(signal.SIGHUP)
            seen = len(fake.taken)
            wait_until(lambda: len(fake.taken) > seen + 1, "it goes on when it was executed anew")
            child.send_signal(signal.SIGTERM)
            done = ended(child)
    assert (done.code, trap.caught()) == (0, "")
    assert [line for line in done.err if line.endswith("the configuration is read again")]
    assert not [line for line in done.err if "cannot" in line]
    leaf.assert_unharmed()


@pytest.mark.parametrize(
    "words", [["history", "list", "--history", "/dev/null"], ["convert", "x"], ["dump", "0"]]
)
def test_python_m_imports_nothing_later_from_the_current_directory(trap: Trap, words: list[str]) -> None:
    (trap.directory / "sfsample").rmdir()
    done = subprocess.run([sys.executable, "-m", "sfsample", *words], cwd=trap.directory, check=False,
                          capture_output=True, text=True, timeout=HANG_S)  # fmt: skip
    assert (trap.caught(), done.stderr.startswith("sfsample: ")) == ("", True), done.stderr


def test_package_is_the_running_one_and_its_directory_is_the_last(trap: Trap, tmp_path: Path) -> None:
    """A copy outside the search path is run by its path, although another sfsample is installed."""
    package = Path(programs._MAIN).parent
    copy = trap.directory / "sfsample"
    copy.rmdir()
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "cli" / "commands.py").write_text("raise ImportError(__file__)\n")
    done = subprocess.run([sys.executable, "-I", copy / "__main__.py", "--help"], cwd=tmp_path, check=False,
                          capture_output=True, text=True, timeout=HANG_S)  # fmt: skip
    assert f"cannot start: {copy}/cli/commands.py" in done.stderr
    assert trap.caught() == ""


def test_interpreter_is_named_by_an_absolute_path() -> None:
    code = "from sfsample.watching.own_program import own_program; print(own_program()[0])"
    bin_directory, name = os.path.split(sys.executable)
    where, there = os.path.split(bin_directory)
    environment = {**os.environ, "PATH": there}
    found = subprocess.run(["/bin/sh", "-c", f"exec {name} -c '{code}'"], cwd=where, env=environment,
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert found.stdout.strip() == sys.executable


def test_python_ptrace_starts_no_program() -> None:
    """To find the C library, ctypes would start ldconfig or a compiler from PATH."""
    code = ("import sys, sfsample.process.syscall_names as names\n"
            "sys.addaudithook(lambda event, _: event == 'subprocess.Popen' and print(event))\n"
            "assert names.syscall_number('read') is not None\n"
            "import sfsample.process.ptrace")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
