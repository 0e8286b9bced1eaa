"""Ctrl-C and a lack of memory while sfsample imports its modules are no tracebacks.

The child imports through a finder that does what is asked when a certain module is imported.
"""

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            {action}
sys.meta_path.insert(0, Finder())
{start}
"""
STARTS = {
    "console script": "from sfsample.__main__ import main; sys.exit(main())",
    "-m": "import runpy; runpy.run_module('sfsample', run_name='__main__', alter_sys=True)",
}


def run(start: str, module: str, action: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run sfsample; the statement `action` is executed when it imports `module`."""
    code = CODE.format(module=module, action=action, start=STARTS[start])
    return subprocess.run([sys.executable, "-c", code, *words], input="a;b 1\n", capture_output=True,
                          text=True, check=False, timeout=60)  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
def test_sigusr1_does_not_end_a_watch_that_begins(start: str) -> None:
    words = ("watch", "1", "--check", "--history", "unused")
    done = run(start, "sfsample.cli.parse", "os.kill(os.getpid(), signal.SIGUSR1)", *words)
    assert (done.returncode, done.stderr) == (0, "sfsample: flags: no mistake found\n")


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("module", ["sfsample.cli", "sfsample.cli.parse", "sfsample.cli.convert", "zlib"])
def test_ctrl_c_while_modules_are_imported_ends_the_process_silently(start: str, module: str) -> None:
    done = run(start, module, "os.kill(os.getpid(), signal.SIGINT)", "convert", "-")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_handled_before_large_modules_are_imported() -> None:
    code = "import sys; import sfsample.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"enum", "functools", "signal"} & {*done.stdout.split()}


@pytest.mark.parametrize("start", STARTS)
def test_ctrl_c_while_a_command_runs_aborts_it(start: str) -> None:
    module = "sfsample.report.formats.folded"  # imported when the format of the input is known
    done = run(start, module, "os.kill(os.getpid(), signal.SIGINT)", "convert", "-")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "sfsample: aborted\n")


@pytest.mark.parametrize("start", STARTS)
def test_ignored_ctrl_c_stays_ignored(start: str) -> None:
    action = "os.kill(os.getpid(), signal.SIGINT)"
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN); " + STARTS[start]
    whole = CODE.format(module="sfsample.cli", action=action, start=code)
    done = subprocess.run([sys.executable, "-c", whole, "convert", "-"], input="a;b 1\n", capture_output=True,
                          text=True, check=False, timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "a;b 1\n", "")


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("module", ["sfsample.cli", "sfsample.cli.parse", "sfsample.report.formats.folded"])
@pytest.mark.parametrize(
    "failure",
    [
        "MemoryError", "SystemError('error return without exception set')", "SyntaxError('no memory')",
        "ImportError('libm.so.6: failed to map segment from shared object')",
        "OSError(12, 'Cannot allocate memory')",
    ],
)  # fmt: skip
def test_import_that_fails_is_one_sentence(start: str, module: str, failure: str) -> None:
    done = run(start, module, f"raise {failure}", "convert", "-")
    first, *more = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert first.startswith("sfsample: ")
    assert [line[:8] for line in more] == ["  allow "]


def test_installed_command_is_this_module() -> None:
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"sfsample": "sfsample.__main__:main"}
