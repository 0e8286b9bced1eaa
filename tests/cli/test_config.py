"""A TOML file stands for flags of `watch`; those that are typed win, and a mistake names file and key."""

import pytest

from sfsample.cli import main
from sfsample.cli.parse import parse
from sfsample.errors import SfsampleError

CONFIG = """
name = "redis-server"
output-dir = "/var/lib/sfsample"
every = "2m"
for = 30
max-overhead = 1.5
subprocesses = true
all = false
perf-events = false
debug-dir = ["/a", "/b"]
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "watch.toml"
    path.write_text(CONFIG)
    return path


def test_file_has_the_flags(config):
    command = parse(["watch", "--config", str(config)])
    given = command.options
    assert (given.target.name, given.files.output_dir) == ("redis-server", "/var/lib/sfsample")
    assert (given.every, given.slice_s, given.record.max_overhead) == (120, 30, 0.015)
    assert (given.record.subprocesses, given.target.all, given.record.perf_events) == (True, False, False)
    assert command.names.debug_dirs == ("/a", "/b")


def test_typed_flags_win(config):
    given = parse(["watch", f"--config={config}", "--every", "3m", "--perf-events", "--mode", "cpu"]).options
    assert (given.every, given.record.perf_events) == (180, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evry = 3", "unknown key: evry"),
        ('every = "3x"', "--every: not a time above 0 (10, 500ms, 2m, 7d): 3x"),
        ("every = true", "every: not a text or a number: True"),
        ("quiet = 1", "quiet: not true or false: 1"),
        ("every = 2026-01-01", "every: not a text or a number"),
        ("every = [[1]]", "every: not a text or a number: [1]"),
        ("every =", "not TOML: "),
        ("a = 'x'\n[a]", "not TOML: "),
        ("p = 1", "unknown key: p"),
    ],
)
def test_mistake_is_named(tmp_path, capsys, text, message):
    path = tmp_path / "watch.toml"
    path.write_text(text)
    assert main(["watch", "--config", str(path), "1", "--output-dir", str(tmp_path), "--check"]) != 0
    assert message in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('every = "3x"', "--every: not a time"),
        ('every = "0.5s"', "--every is shorter than a second"),
        ("evry = 3", "unknown key: evry"),
    ],
)
def test_mistake_names_the_file(tmp_path, capsys, text, mistake):
    path = tmp_path / "watch.toml"
    path.write_text(text)
    assert main(["watch", "--config", str(path), "1", "--check"]) == 2
    assert capsys.readouterr().err.startswith(f"sfsample: with {path}: {mistake}")


@pytest.mark.parametrize("flags", [["--config"], ["--config="], ["--config", "/dev/zero"], ["--config", "/"]])
def test_what_is_no_file_is_an_error(flags):
    with pytest.raises(SfsampleError):
        parse(["watch", *flags])


def test_large_file_is_refused(tmp_path):
    path = tmp_path / "watch.toml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(SfsampleError, match="larger than 64 KiB"):
        parse(["watch", "--config", str(path)])


def test_check_records_nothing(config, capsys):
    assert main(["watch", "--config", str(config), "--check"]) == 0
    assert capsys.readouterr().err == f"sfsample: {config}: no mistake found\n"
