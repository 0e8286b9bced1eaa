"""Every kind of command line that is refused for its words, or for a file: golden/refused.txt is the table.

To add a command line, write its prompt and an empty line into that file (words as a shell takes them), then
run `pytest tests/cli/test_refused.py --update-golden`.  Read the result as its user: it must say what is
wrong, why, and what to do next.  No process has the pid 2147483647.
"""

import os
import shlex
from pathlib import Path

import pytest

from sfsample.cli import main
from tests.cli.screens import make_files, read_screens, write_screens

GOLDEN = Path(__file__).parents[1] / "golden/refused.txt"
SCREENS = read_screens(GOLDEN)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("refused")
    make_files(made)
    return made


@pytest.mark.parametrize("prompt", SCREENS)
def test_command_line_is_refused(
    prompt: str,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(directory)
    before = sorted(os.listdir())
    code = main(shlex.split(prompt.removeprefix("$ sfsample")))
    printed = capfd.readouterr()
    assert code != 0
    assert printed.out == ""
    assert sorted(os.listdir()) == before
    screen = f"{printed.err}[exit {code}]"
    if pytestconfig.option.update_golden:
        write_screens(GOLDEN, read_screens(GOLDEN) | {prompt: screen})
    else:
        assert screen == SCREENS[prompt]
