"""The README is true: its example runs, its commands exist, its table of stop reasons is complete."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import StopReason

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run(command: list[str], pid: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PID": str(pid)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.live
@pytest.mark.any_load
def test_library_example_runs():
    read, write = os.pipe()
    command = [ROOT / "tests/fixtures/v3/target", "recursion", str(write)]
    with subprocess.Popen(command, pass_fds=[write]) as target:
        try:
            os.close(write)
            assert os.read(read, 100).startswith(b"ready")
            example = "\n".join(blocks("python", PAGES["library.md"]))
            command = [sys.executable, "-c", example]
            done = run(command, target.pid)
            while "\n0 samples" in done.stdout:  # on a busy machine the target may not run for a second
                done = run(command, target.pid)
        finally:
            os.close(read)
            target.kill()
    assert done.returncode == 0, done.stderr
    stack = r"^target;_start;.*;recurse;recurse;.*;spin_innermost \d+$"
    assert re.search(stack, done.stdout, flags=re.MULTILINE)
    assert re.search(r"^\d+ samples, longest pause \d+ ns$", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^target R outermost$", done.stdout, flags=re.MULTILINE)


def test_setup_commands_of_the_readme_exist():
    commands = re.findall(r"^    (sh scripts/\w+)$", README, flags=re.MULTILINE)
    assert commands == ["sh scripts/demo", "sh scripts/test"]
    for command in commands:
        assert os.access(ROOT / command.split()[1], os.X_OK)


def test_ci_runs_the_readme_test_command():
    assert "sh scripts/test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_readme_is_short():
    """In the order that a reader needs; the rest is in docs/ by task."""
    assert README.count("\n") <= 130


def test_every_stop_reason_is_explained():
    reasons = PAGES["recording.md"].partition("## Stacks that are not whole")[2]
    first_columns = "\n".join(re.findall(r"^\| (`.*?) \|", reasons, flags=re.MULTILINE))
    explained = set(re.findall(r"`(\w+)`", first_columns))
    assert explained == {str(reason) for reason in StopReason} - {"outermost"}


def test_command_lines_of_the_readme_are_valid():
    from sfsample.cli.parse import parse

    text = "\n".join([README, *PAGES.values()])
    lines = re.findall(r"^    (sfsample [^\n]*?)(?: +#.*)?$", text, flags=re.MULTILINE)
    assert len(lines) >= 20
    for line in lines:
        words = shlex.split(line.split(" > ")[0])
        parse(words[1:])


def test_example_of_the_sframe_page_decodes_its_bytes():
    page = (ROOT / "docs/sframe.md").read_text(encoding="utf-8")
    (example,) = blocks("python", page)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    explained = "".join(re.findall(r"^    ((?:[0-9a-f]{2,8} )+) {2,}", page, flags=re.MULTILINE))
    read = "".join(re.findall(r'"([0-9a-f ]+)"', example))

    assert explained.replace(" ", "") == read.replace(" ", "")
    assert done.stdout.splitlines()[:3] == [
        "0x1000, 16 bytes",
        f"  +0: CFA {Rule(7, 8, deref=False)}, FP None",
        f"  +1: CFA {Rule(7, 16, deref=False)}, FP {Rule(CFA, -16, deref=True)}",
    ]
