"""Completion in real shells, and the manual page in a real formatter: both know every command and flag."""

import os
import re
import shutil
import subprocess

import pytest

from sfsample.cli import main
from sfsample.cli.completion import _bash, _fish, _zsh
from sfsample.cli.flags import COMMANDS
from sfsample.cli.man import page
from sfsample.cli.parse import described
from tests.live.terminal import Terminal


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"there is no {program} (scripts/setup dev)"
    )


def bash(*words: str) -> set[str]:
    """Return what bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in ("sfsample", *words))
    script = "\n".join(
        [*_bash(), "compopt() { :; }", f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}", "_sfsample",
         'printf "%s\\n" "${COMPREPLY[@]}"']
    )  # fmt: skip
    return set(
        subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@needs("bash")
def test_bash():
    assert bash("con") == {"convert"}
    assert bash("convert", "--merge-b") == {"--merge-by"}
    assert bash("convert", "--merge-by", "") == {"function", "module", "address"}
    assert bash("-p", "1", "--form") == {"--format"}
    assert bash("completion", "z") == {"zsh"}
    assert str(os.getpid()) in bash("top", "-p", str(os.getpid()))
    for command in COMMANDS:
        flags = {name for flag in described(command)[1] for name in flag.names}
        assert flags <= bash(command, "-") | {""}


@needs("fish")
def test_fish(tmp_path):
    script = tmp_path / "sfsample.fish"
    script.write_text("\n".join(_fish()))

    def offered(line: str) -> set[str]:
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {row.partition("\t")[0] for row in said.splitlines()}

    assert "convert" in offered("sfsample con")
    assert offered("sfsample convert --merge-by ") == {"function", "module", "address"}
    assert "--merge-by" in offered("sfsample convert --merge-b")
    assert "--merge-by" not in offered("sfsample diff --")
    assert "--stats" in offered("sfsample --st")
    assert offered("sfsample completion z") == {"zsh"}


@needs("zsh")
@needs("tmux")
def test_zsh(tmp_path):
    script = tmp_path / "sfsample.zsh"
    script.write_text("autoload -U compinit; compinit -D; PS1='zsh> '\n" + "\n".join(_zsh()) + "\n")
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_is_printed(shell, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr()
    assert "merge-by" in out.out
    assert out.err == ""


def test_the_manual_page_has_every_command_and_flag():
    text = "\n".join(page()).replace("\\", "")
    for command in COMMANDS:
        section = text.partition(f".SS sfsample {command}\n")[2].partition("\n.S")[0]
        for flag in described(command)[1]:
            for name in flag.names:
                assert f"fB{name}fR" in section


@needs("groff")
def test_the_manual_page_is_understood(capsys):
    assert main(["man"]) == 0
    command = ["groff", "-man", "-Tutf8", "-ww", "-z"]
    done = subprocess.run(command, input=capsys.readouterr().out, capture_output=True, text=True, check=True)
    assert [line for line in done.stderr.splitlines() if "adjust" not in line and "break" not in line] == []


def test_help_has_the_groups_and_an_example_for_each_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: sfsample COMMAND")
    for command in COMMANDS:
        assert re.search(rf"(?m)^  {command} +\w", text)
