"""`convert` and `diff` read files and write files; a mistake is an error that says what to do."""

import json

import pytest

from sfsample.cli import main
from sfsample.cli.parse import parse
from sfsample.cli.values import FORMATS, format_of
from sfsample.errors import UsageError
from sfsample.report import formats
from sfsample.report.formats import read_report
from tests.builders.reports import full


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "in.json"
    path.write_bytes(formats.FORMATS["json"].write(full()))
    return path


def test_every_format_of_the_flags_has_a_writer():
    assert set(FORMATS) == set(formats.FORMATS)


@pytest.mark.parametrize(
    ("name", "format_name"),
    [("a.html", "html"), ("a.svg", "svg"), ("a.json", "json"), ("a.speedscope.json", "speedscope"),
     ("a.firefox.json", "firefox"), ("a.pb.gz", "pprof"), ("a.PPROF", "pprof"), ("a.txt", "folded"),
     ("-", "folded"), ("a", "folded"), ("dir.html/a", "folded")],
)  # fmt: skip
def test_suffix_chooses_format(name, format_name):
    assert format_of(name) == format_name
    assert parse(["convert", "in", "-o", name]).format == format_name
    assert parse(["-p", "1", "-o", name]).format == format_name


def test_suffix_of_no_format_is_refused():
    for name in ("a.tar.gz", "a.b", "dir.html/a.b"):
        with pytest.raises(UsageError, match=f"no such format: {name}") as refusal:
            format_of(name)
        assert ".speedscope.json" in refusal.value.help[0]


@pytest.mark.parametrize("format_name", FORMATS)
def test_convert_writes_every_format(recorded, tmp_path, capsysbinary, format_name):
    assert main(["convert", str(recorded), "-o", str(tmp_path / "out"), "-f", format_name, "-q"]) == 0
    written = (tmp_path / "out").read_bytes()
    assert main(["convert", str(recorded), "-f", format_name]) == 0
    out = capsysbinary.readouterr()
    assert (out.out, out.err) == (written, b"")
    assert len(written) > 100


def test_convert_adds_up_several_inputs(recorded, tmp_path):
    folded, out = tmp_path / "b.folded", tmp_path / "out.json"
    folded.write_text("app;x 4\n")
    assert main(["convert", str(recorded), str(folded), str(recorded), "-o", str(out)]) == 0
    assert read_report(str(out)).total() == 11 + 4 + 11


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--filter", "^outer$", "--ignore", "inner"], "app;start;outer 3\n"),
        (["--filter", "kernel"], "app;start;[libc.so.6+0x1234];vfs_read_[k] 2\n"),
        (["--focus", "outer"], "app;outer 3\napp;outer;inner_[i] 5\n"),
        (["--focus", "outer", "-t"], "app/10;outer 3\napp/10;outer;inner_[i] 5\n"),
        (
            ["--filter", "start", "--merge-by", "module"],
            "app;[libc.so.6];[app] 8\napp;[libc.so.6];[kernel] 2\n",
        ),
    ],
)
def test_convert_filters_stacks(recorded, capsys, flags, text):
    assert main(["convert", str(recorded), *flags]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["convert", "{}/none.json"], 1, "cannot read: {}/none.json: No such file or directory"),
        (["convert", "{}/in.json", "--filter", "nowhere"], 1, "no stack is left: --filter nowhere"),
        (["convert", "{}/in.json", "--focus", "("], 2, "not a regular expression: ("),
        (
            ["convert", "{}/in.json", "-o", "{}/none/x"],
            1,
            "cannot write: {}/none/x: No such file or directory",
        ),
        (["convert"], 2, "the following arguments are required: INPUT"),
        (["diff", "{}/in.json"], 2, "the following arguments are required: BEFORE AFTER"),
        (["diff", "{}/in.json", "{}/none"], 1, "cannot read: {}/none: No such file or directory"),
        (["convert", "{}/in.json", "-f", "jpeg"], 2, "not one of folded"),
    ],
)
def test_mistake_prints_one_line_and_help(recorded, tmp_path, capsys, words, code, message):  # noqa: PLR0917
    assert main([word.format(tmp_path) for word in words]) == code
    out = capsys.readouterr()
    assert out.out == ""
    assert message.format(tmp_path) in out.err
    assert out.err.startswith("sfsample: ")
    assert "Traceback" not in out.err


@pytest.mark.parametrize(
    "words", [["convert", "{}/none"], ["replay", "{}/none"], ["dump", "--core", "{}/none"]]
)
def test_missing_file_is_an_error_with_help(tmp_path, capsys, words):
    assert main([word.format(tmp_path) for word in words]) == 1
    first, *more = capsys.readouterr().err.splitlines()
    assert first.endswith(f"{tmp_path}/none: No such file or directory")
    assert [line[:7] for line in more] == ["  give "]


def test_closed_stdin_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["convert", "-"]) == 1
    assert capsys.readouterr().err.startswith("sfsample: cannot read: standard input: it is closed\n  ")


def test_diff_writes_text_json_and_html(recorded, tmp_path, capsys):
    other = tmp_path / "b.folded"
    other.write_text("app;start;outer 300\n")
    assert main(["diff", str(recorded), str(other)]) == 0
    assert capsys.readouterr().out.startswith("shares are of all samples")
    assert main(["diff", str(recorded), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "sfsample.diff/1"
    assert main(["diff", str(recorded), str(other), "-o", str(tmp_path / "d.html")]) == 0
    assert b'"diff": true' in (tmp_path / "d.html").read_bytes()
