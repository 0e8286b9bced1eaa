"""The line about a written file says what to do with it, and --open opens it."""

import pytest

from sfsample.cli import main
from sfsample.report.formats import FORMATS as WRITERS
from sfsample.report.suffixes import FORMATS, suffix_of
from tests.builders.reports import full


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "in.json"
    path.write_bytes(WRITERS["json"].write(full()))
    return path


@pytest.mark.parametrize("format_name", FORMATS)
def test_line_names_the_file_and_what_to_do_with_it(recorded, tmp_path, capsys, format_name):
    path = tmp_path / f"out{suffix_of(format_name)}"
    assert main(["convert", str(recorded), "-o", str(path)]) == 0
    assert capsys.readouterr().err.startswith(f"sfsample: written {path}: ")


@pytest.mark.parametrize("found", [True, False])
def test_open_opens_the_file(recorded, capsys, monkeypatch, found):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: opened.append(uri) or found)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    path = recorded.with_name("out.html")
    assert main(["convert", str(recorded), "-q", "--open", "-o", str(path)]) == 0
    assert opened == [path.as_uri()]
    assert ("no browser was found" in capsys.readouterr().err) is not found


def test_root_starts_no_program_that_path_or_browser_names(recorded, tmp_path, capsys, monkeypatch):
    browser, mark = tmp_path / "xdg-open", tmp_path / "mark"
    browser.write_text(f"#!/bin/sh\ntouch {mark}\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    path = recorded.with_name("out.html")
    assert main(["convert", str(recorded), "-q", "--open", "-o", str(path)]) == 0
    assert capsys.readouterr().err == f"sfsample: no browser is started as root: open {path} yourself\n"
    assert path.exists()
    assert not mark.exists()


def test_printed_command_has_quoted_paths(recorded, capsys):
    path = recorded.with_name("a b$(id).json")
    assert main(["convert", str(recorded), "-o", str(path)]) == 0
    said = f"sfsample convert '{path}' -o '{path}.html' draws it"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["-o", "x.json"], ["-f", "html"]])
def test_open_needs_a_file_that_a_browser_shows(words, capsys):
    assert main(["1", "--open", *words]) == 2
    assert "--open needs a file that a browser shows" in capsys.readouterr().err
