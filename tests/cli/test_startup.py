"""`sfsample --help` imports only what it needs, and prints on stdout.

Start-up time is imports: these tests list modules, and measure no time.
"""

import os
import subprocess
import sys

import pytest

import sfsample
from tests.live.targets import states, wait_until

HEAVY = {"elftools", "ptrace", "demangle", "subprocess", "json", "tempfile", "ctypes", "socket"}
_OWN = """errors cli core core.filesystem core.foreign core.python_view core.printable core.quantities
core.walk_limits cli.output_file
cli.parse cli.commands cli.flags cli.history_flags cli.options
cli.terminal cli.values dumping dumping.options process process.target report
report.suffixes symbolize symbolize.options"""
OWN = {"sfsample", *(f"sfsample.{name}" for name in _OWN.split())}
FOR_RECORD = {f"sfsample.{name}" for name in ("cli.record_options", "recording", "recording.options")}
FOR_WATCH = {f"sfsample.{name}" for name in ("cli.watch_options", "history", "watching", "watching.options")}
FOR = {"record": FOR_RECORD, "watch": FOR_RECORD | FOR_WATCH}


def run(*words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sfsample", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, timeout=60, check=False, **streams)  # type: ignore[call-overload,no-any-return]


def bare_modules() -> set[str]:
    """Return what an interpreter of the same installation imports by itself."""
    code = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("words", [["--help"], ["record", "--help"], ["watch", "-h"], ["--version"]])
def test_help_imports_no_heavy_module(words: list[str]) -> None:
    bare = bare_modules()
    command = [sys.executable, "-X", "importtime", "-m", "sfsample", *words]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    seen = {line.rpartition("|")[2].strip() for line in shown.splitlines()} - bare
    assert seen >= OWN - {"sfsample"}
    assert not {name for name in seen if name.partition(".")[0] in HEAVY}
    own = OWN | FOR.get(words[0], set())
    assert {name for name in seen if name.startswith("sfsample")} <= own


# that only other commands need
_NOT_FOR_DUMP = {"demangle", "http", "ipaddress", "json", "pathlib", "sfsample.api", "sfsample.inspect",
                 "sfsample.recording", "sfsample.report.formats"}  # fmt: skip
_AFTER_LOOK = {"sfsample.dumping.diagnose.verdict", "sfsample.dumping.text", "sfsample.symbolize.symbolizer"}


def test_dump_imports_only_what_it_needs() -> None:
    """It imports what diagnoses and writes while it waits for the second sample of a sleeping process."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            wait_until(lambda: states(child.pid) == {"S"}, "the child sleeps")
            words = [sys.executable, "-X", "importtime", "-m", "sfsample", "dump", "-p", str(child.pid)]
            shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stderr
        finally:
            child.kill()
    seen = [line.rpartition("|")[2].strip() for line in shown.splitlines() if "|" in line]
    assert not _NOT_FOR_DUMP & set(seen)
    assert seen.index("ptrace.syscall") < min(map(seen.index, _AFTER_LOOK))  # the first look decodes calls


def test_record_imports_code_analysis_before_the_first_stop() -> None:
    """Otherwise the import would lengthen a stop; this program itself does not need it."""
    words = ["record", "--mode", "wall", "-d", "0.1", "--", "sleep", "10"]
    shown = subprocess.run([sys.executable, "-X", "importtime", "-m", "sfsample", *words],
                           capture_output=True, text=True, check=True, timeout=60).stderr  # fmt: skip
    assert "sfsample.unwind.steppers.code_analysis.rows" in shown


def test_help_and_version_are_printed_on_stdout() -> None:
    for words in (
        ["--help"],
        ["record", "--help"],
        ["dump", "--help"],
        ["watch", "--help"],
        ["-p", "1", "-h"],
    ):
        done = run(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: sfsample")
    assert run("--version").stdout == f"sfsample {sfsample.__version__}\n"


def test_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("sfsample") == sfsample.__version__


def test_help_has_every_flag_of_the_contract() -> None:
    text = run("record", "--help").stdout
    for flag in ("-p", "-n", "-r", "--interval", "-d", "-o", "-f", "--mode", "-t", "--unwind", "--max-frames",
                 "--stack-bytes", "--stats", "-q", "-v", "--all"):  # fmt: skip
        assert f" {flag}" in text
    assert "--json" in run("dump", "--help").stdout


@pytest.mark.parametrize("columns", ["", "1", "20", "0", "-5", "x", "500", "9" * 30])
def test_help_fits_any_terminal(columns: str) -> None:
    done = run("record", "--help", env={**os.environ, "COLUMNS": columns})
    assert (done.returncode, done.stderr) == (0, "")
    assert "--max-frames" in done.stdout


def test_no_arguments_are_a_usage_error() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sfsample: nothing to do: no process given\n  try: ")


def test_closed_pipe_makes_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run("--help", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_full_or_closed_stdout_makes_no_traceback() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = run("--help", stdout=full)
    assert (done.returncode, done.stderr) == (
        1,
        (
            "sfsample: cannot write: standard output: No space left on device\n"
            "  free some space, or choose another file\n"
        ),
    )
    closed = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m sfsample -p 999999999 >&- 2>&-', sys.executable], check=False
    )
    assert closed.returncode == 1
