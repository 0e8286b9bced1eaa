"""The line about a written file says what to do with it, and --open opens it."""

import pytest

from sfsample.cli import main, written
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
    monkeypatch.setattr(written.webbrowser, "open", lambda uri: opened.append(uri) or found)
    path = recorded.with_name("out.html")
    assert main(["convert", str(recorded), "-q", "--open", "-o", str(path)]) == 0
    assert opened == [path.as_uri()]
    assert ("no browser was found" in capsys.readouterr().err) is not found


@pytest.mark.parametrize("words", [[], ["-o", "x.json"], ["-f", "html"]])
def test_open_needs_a_file_that_a_browser_shows(words, capsys):
    assert main(["1", "--open", *words]) == 2
    assert "--open needs a file that a browser shows" in capsys.readouterr().err
