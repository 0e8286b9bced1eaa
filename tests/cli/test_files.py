"""`convert` and `diff` read files and write files; a mistake is an error that says what to do."""

import gzip
import json

import pytest

from sfsample.cli import main
from sfsample.cli.parse import parse
from sfsample.errors import UsageError
from sfsample.report import formats
from sfsample.report.formats import read_report
from sfsample.report.suffixes import FORMATS, format_of
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
    assert parse(["convert", "in", "-o", name]).output.format == format_name
    assert parse(["-p", "1", "-o", name]).output.format == format_name


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


@pytest.mark.parametrize("words", [["convert", "{}/none"], ["dump", "--core", "{}/none"]])
def test_missing_file_is_an_error_with_help(tmp_path, capsys, words):
    assert main([word.format(tmp_path) for word in words]) == 1
    first, *more = capsys.readouterr().err.splitlines()
    assert first.endswith(f"{tmp_path}/none: No such file or directory")
    assert [line[:7] for line in more] == ["  give "]


def test_closed_stdin_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["convert", "-"]) == 1
    assert capsys.readouterr().err.startswith("sfsample: cannot read: standard input: it is closed\n  ")


def as_folder(folder, **files: str):
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_directory_is_its_profiles_and_names_the_files_it_skips(tmp_path, capsys):
    folder = as_folder(
        tmp_path / "in", a_folded="p;x 4\n", b_txt="p;x 3\n", c_html="<", d_speedscope_json="{"
    )
    (folder / ".hidden.folded").write_text("p;x 9\n")
    (folder / "e.folded.gz").write_bytes(gzip.compress(b"p;y 2\n"))
    (folder / "below.folded").mkdir()
    assert main(["convert", str(folder)]) == 0
    out = capsys.readouterr()
    assert out.out == "p;x 7\np;y 2\n"
    assert out.err == f"sfsample: skipped in {folder}: below.folded, c.html, d.speedscope.json\n"
    assert main(["convert", str(folder), "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_result_in_a_directory_is_not_read_the_next_time(tmp_path, capsys):
    folder = as_folder(tmp_path / "in", a_folded="p;x 4\n")
    for _ in range(2):
        assert main(["convert", str(folder), "-o", str(folder / "all.folded")]) == 0
    assert (folder / "all.folded").read_text() == "p;x 4\n"
    assert f"skipped in {folder}: all.folded" in capsys.readouterr().err


def test_pattern_is_all_files_that_match(tmp_path, capsys):
    as_folder(tmp_path / "in", a1_folded="p;x 4\n", a2_log="p;x 3\n", b_folded="p;x 100\n")
    (tmp_path / "in/odd[1].folded").write_text("p;x 5\n")
    assert main(["convert", f"{tmp_path}/in/a*"]) == 0
    assert main(["convert", f"{tmp_path}/in/odd[1].folded"]) == 0  # a file of that name
    assert main(["convert", f"{tmp_path}/*", "-q"]) == 0  # a directory matches
    assert capsys.readouterr().out == "p;x 7\np;x 5\np;x 109\n"


def test_diff_compares_directories_and_patterns(tmp_path, capsys):
    before = as_folder(tmp_path / "before", a_folded="p;x 400\n", b_folded="p;x 300\n")
    as_folder(tmp_path / "after", a_folded="p;x 400\n", b_folded="p;y 300\n")
    assert main(["diff", str(before), f"{tmp_path}/after/*.folded"]) == 0
    first, second, *_ = lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"before: {before} (2 files), 700 samples (")
    assert second.startswith(f"after: {tmp_path}/after/*.folded (2 files), 700 samples (")
    assert [line.split()[0] for line in lines if line.endswith(" y")] == ["grew", "grew"]


@pytest.mark.parametrize("command", ["convert", "diff"])
@pytest.mark.parametrize(
    ("name", "message", "help_line"),
    [("empty", "no profile found: {}/empty: it is empty", "searched for files that end in .folded, "),
     ("pictures", "no profile found: {}/pictures: it has a.svg, b.html", "searched for files"),
     ("*.nothing", "no profile found: {}/*.nothing: no file matches", "* and ? match no /")],
)  # fmt: skip
def test_input_without_a_profile_is_an_error(tmp_path, capsys, command, name, message, help_line):  # noqa: PLR0917
    as_folder(tmp_path / "empty")
    as_folder(tmp_path / "pictures", a_svg="", b_html="")
    assert main([command, f"{tmp_path}/{name}", *(["-"] if command == "diff" else [])]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"sfsample: {message.format(tmp_path)}"
    assert second.startswith(f"  {help_line}")


def test_file_of_a_directory_that_cannot_be_read_is_named(tmp_path, capsys):
    folder = as_folder(tmp_path / "in", a_folded="p;x 4\n", b_json="{}")
    assert main(["convert", str(folder)]) == 1
    assert capsys.readouterr().err.startswith(f"sfsample: cannot read: {folder}/b.json: schema: not ")


@pytest.mark.parametrize(
    ("percent", "code", "names"),
    [("10", 6, "grew by more than 10 %: twice, new"), ("99%", 6, "grew by more than 99 %: twice, new"),
     ("110", 6, "grew by more than 110 %: new"), ("0", 2, "not a percentage above 0")],
)  # fmt: skip
def test_diff_fails_on_growth_beyond_noise(tmp_path, capsys, percent, code, names):
    """`same` has a tenth more samples, which is no more than noise."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text("p;twice 1000\np;same 100\np;other 6000\n")
    after.write_text("p;twice 2000\np;same 110\np;new 300\np;other 4690\n")
    assert main(["diff", str(before), str(after), "--fail-on", percent]) == code
    out = capsys.readouterr()
    assert names in out.err.splitlines()[0]
    assert bool(out.out) is (code == 6)
    assert main(["diff", str(before), str(before), "--fail-on", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_diff_relative_compares_shares(recorded, capsys):
    for flags, shares in (([], "cpu"), (["--relative"], "samples")):
        assert main(["diff", str(recorded), str(recorded), "--json", *flags]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["relative"], document["shares_of"]) == (bool(flags), shares)


def test_diff_warns_on_stderr(recorded, tmp_path, capsys):
    other = tmp_path / "other.folded"
    other.write_text("another;main 5\n")
    for flags in [], ["--json"]:
        assert main(["diff", str(recorded), str(other), *flags]) == 0
        out = capsys.readouterr()
        assert out.err.startswith("sfsample: warning: the processes differ: ")
        assert "warning: " not in out.out


def test_diff_writes_text_json_and_html(recorded, tmp_path, capsys):
    other = tmp_path / "b.folded"
    other.write_text("app;start;outer 300\n")
    assert main(["diff", str(recorded), str(other)]) == 0
    assert capsys.readouterr().out.startswith(f"before: {recorded}, 71 ns of CPU time in 1 s, 100 Hz, ")
    assert main(["diff", str(recorded), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "sfsample.diff/1"
    assert main(["diff", str(recorded), str(other), "-o", str(tmp_path / "d.html")]) == 0
    assert b'"diff": true' in (tmp_path / "d.html").read_bytes()
