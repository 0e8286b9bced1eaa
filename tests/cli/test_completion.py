"""Completion scripts run in real shells, and have every command and flag."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.cli.commands import COMMANDS, ENTRIES
from sfsample.cli.completion import bash_script
from sfsample.cli.parse import describe
from tests.live.targets import wait_until
from tests.live.terminal import Terminal


def requires(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"there is no {program} (scripts/setup dev)"
    )


def bash_completions(*words: str) -> set[str]:
    """Return what bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in ("sfsample", *words))
    script = "\n".join(
        [*bash_script(), f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}", "_sfsample",
         'printf "%s\\n" "${COMPREPLY[@]}"']
    )  # fmt: skip
    return set(
        subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@requires("bash")
def test_bash_completes_commands_flags_and_values():
    assert bash_completions("con") == {"convert"}
    assert bash_completions("convert", "--merge-b") == {"--merge-by"}
    assert bash_completions("convert", "--merge-by", "") == {"function", "module", "address"}
    assert bash_completions("-p", "1", "--form") == {"--format"}
    assert bash_completions("completion", "z") == {"zsh"}
    assert str(os.getpid()) in bash_completions("top", "-p", str(os.getpid()))
    assert Path("/proc/self/comm").read_text().strip() in bash_completions("top", "-n", "")
    assert "root" in bash_completions("watch", "--user", "ro")
    assert bash_completions("history", "di") == {"diff"}
    assert bash_completions("history", "diff", "--dep") == {"--deploy"}
    for command in ENTRIES:
        flags = {name for flag in describe(command) for name in flag.names}
        assert flags <= bash_completions(*command.split(), "-") | {""}


@requires("bash")
def test_names_of_processes_run_no_command(tmp_path):
    """bash would expand a process's name that is offered."""
    hostile = shutil.copy(shutil.which("sleep"), tmp_path / "a$(touch BAD)")
    with subprocess.Popen([hostile, "1000"]) as process:
        try:
            comm = Path(f"/proc/{process.pid}/comm")
            wait_until(lambda: comm.read_text() == "a$(touch BAD)\n", "it has its name")
            assert not any("BAD" in word for word in bash_completions("top", "-n", "a"))
        finally:
            process.kill()
    assert not Path("BAD").exists()


@requires("zsh")
@requires("tmux")
def test_zsh_completes_commands_flags_and_values(tmp_path, capsys):
    script = tmp_path / "sfsample.zsh"
    assert main(["completion", "zsh"]) == 0
    script.write_text(f"autoload -U compinit; compinit -D; PS1='zsh> '\n{capsys.readouterr().out}\n")
    terminal = Terminal(tmp_path)
    try:
        terminal.run("exec zsh -f")
        terminal.run(f"source {script}; clear")
        terminal.wait_for("(?m)^zsh>$")
        terminal.keys("-l", "sfsample conv\t")
        terminal.wait_for("sfsample convert")
        terminal.keys("-l", "--", "--merge-b\t")
        terminal.wait_for("--merge-by")
        terminal.keys("-l", "mod\t")
        terminal.wait_for("--merge-by module")
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_prints_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr()
    assert "merge-by" in out.out
    assert out.err == ""


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: sfsample COMMAND")
    for command in COMMANDS:
        assert re.search(rf"(?m)^  {command} +\w", text)
