"""No file from outside takes more memory than its size allows, or is silently taken for less than it states.

The child that reads a file may map 800 MB, so a reader without bounds fails.
"""

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfsample.formats.protobuf import integer, message, packed
from sfsample.report.formats import FORMATS
from tests.builders.reports import full

_MAX_MAPPED_BYTES = 800 << 20
_HANG_S = 120


def run(*words: object, **stdin: Any) -> subprocess.CompletedProcess[bytes]:
    """Run sfsample with little memory."""
    return subprocess.run(
        [sys.executable, "-m", "sfsample", *map(str, words)], capture_output=True, check=False,
        timeout=_HANG_S, **stdin,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MAX_MAPPED_BYTES, _MAX_MAPPED_BYTES)),
    )  # fmt: skip


def assert_refused(done: subprocess.CompletedProcess[bytes], what: str) -> None:
    first, *more = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (1, b"")
    assert first.startswith("sfsample: cannot ")
    assert what in first
    assert more
    assert all(line.startswith("  ") for line in more)


def pprof(*parts: bytes, names: tuple[bytes, ...] = (b"f",)) -> bytes:
    """Return a profile with the function 1 and sample type samples/count; `parts` are fields of Profile."""
    strings = [message(6, text) for text in (b"", b"samples", b"count", *names)]
    function = message(5, integer(1, 1), integer(2, 3))
    return b"".join([message(1, integer(1, 1), integer(2, 2)), function, *parts, *strings])


def location(number: int, lines: int = 1) -> bytes:
    return message(4, integer(1, number), message(4, integer(1, 1)) * lines)


def sample(depth: int = 1, *more: bytes) -> bytes:
    """Return a sample of `depth` times the location 1."""
    return message(2, message(1, b"\1" * depth), packed(2, [1]), *more)


def document(**fields: Any) -> dict[str, Any]:
    """Return a profile with one frame `f` and one sample of it."""
    return {
        "schema": "sfsample.profile/1", "weights": ["samples"], "threads": [{"process": "p", "name": "p"}],
        "modules": [], "frames": [{"text": "f", "inlined": False}],
        "stacks": [{"thread": 0, "frames": [0], "stop_reason": "outermost", "samples": 1}], **fields,
    }  # fmt: skip


def with_list(items: bytes) -> bytes:
    """Return a JSON profile with one unknown field, a list of items."""
    return json.dumps(document()).encode()[:-1] + b', "x": [' + items + b"0]}"


HUGE = {
    "200 bytes of pprof, 400 million frames": lambda: gzip.compress(
        pprof(location(1, 20_000), sample(20_000))
    ),
    "pprof: locations": lambda: pprof(location(1), sample(20_000_000)),
    "pprof: samples": lambda: pprof(location(1), sample() * 4_000_000),
    "pprof: labels": lambda: pprof(location(1), sample(1, message(3, integer(1, 1)) * 6_000_000)),
    "pprof: strings": lambda: pprof(message(6) * 12_000_000),
    "pprof: a name in every line": lambda: pprof(location(1, 20_000), sample(), names=(b"f" * 1_000_000,)),
    "folded: lines": lambda: b"a 1\n" * 12_000_000,
    "folded: stacks": lambda: "".join(f"p;{number:x} 1\n" for number in range(3_000_000)).encode(),
    "folded: one stack": lambda: b"p;" + b"a;" * 20_000_000 + b"a 1\n",
    "folded: gzipped": lambda: gzip.compress(b"a;b 1\n" * 40_000_000, 1),
    "json: gzipped": lambda: gzip.compress(with_list(b"0," * 100_000_000), 1),
    "json: numbers": lambda: with_list(b"257," * 12_000_000),
    "json: objects": lambda: with_list(b"{}," * 12_000_000),
    "json: lists": lambda: with_list(b"[[[]]]," * 6_000_000),
    "json: one wide letter": lambda: with_list(b'"' + b"x" * 50_000_000 + '\U0001f600",'.encode()),
    "json: texts": lambda: with_list('"é!",'.encode() * 9_000_000),
}


# they take seconds each, and are of kinds of which a quicker one is left
SLOW = ("pprof: samples", "pprof: labels", "pprof: strings", "folded: stacks")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[pytest.mark.extended] * (name in SLOW))
        for name, make in HUGE.items()
    ],
)
def test_file_that_would_take_too_much_memory_is_refused(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "huge"
    path.write_bytes(make())
    assert_refused(run("convert", path), f"cannot read: {path}: ")


def test_stream_without_end_is_refused() -> None:
    with open("/dev/zero", "rb") as zeros:
        assert_refused(run("convert", "-", stdin=zeros), "cannot read: -: larger than 400 MiB")
    assert_refused(run("convert", "/dev/zero"), "cannot read: /dev/zero: not a regular file")


@pytest.mark.extended
def test_large_profile_is_read_with_little_memory(tmp_path: Path) -> None:
    """50,000 stacks of 100 frames: the size of a long recording of a large program."""
    stacks = [{"thread": 0, "frames": [(number * 7 + at * at) % 1000 for at in range(100)],
               "stop_reason": "outermost", "samples": 1} for number in range(50_000)]  # fmt: skip
    frames = [{"text": f"function_{number}", "inlined": False} for number in range(1000)]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(document(frames=frames, stacks=stacks)))
    done = run("convert", path, "--merge-by", "module")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"p;[unknown] 50000\n"


# -- numbers


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("rate_hz", value) for value in ("1e-320", "1e300", "1e999", "0", "-5", "Infinity", "NaN")]
    + [("duration_ns", value) for value in ("1e999", str(1 << 63), "Infinity")]
    + [("started_ns", value) for value in (str(1 << 63), "NaN")]
    + [("stats", f'{{"late_ticks": {value}}}') for value in ("NaN", "-Infinity", "1e999", "9" * 400)]
    + [("stats", '{"x": ' * 60 + "1" + "}" * 60)],
)
def test_number_that_no_format_can_hold_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: str, format_name: str
) -> None:
    from sfsample.cli import main

    path = tmp_path / "numbers.json"
    path.write_text(json.dumps(document())[:-1] + f', "{key}": {value}}}')
    assert main(["convert", str(path), "-f", format_name]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"sfsample: cannot read: {path}: ")


@pytest.mark.parametrize(
    "data",
    [
        b"a;b 9223372036854775808\n",
        b"a;b 9223372036854775807\na;c 1\n",
        json.dumps(document()).replace('"samples": 1', '"samples": 9223372036854775808').encode(),
        pprof(location(1), message(2, packed(1, [1]), packed(2, [(1 << 63) - 1])) * 2),
        pprof(location(1), sample(), integer(9, 1 << 63)),
    ],
)
def test_counts_beyond_63_bits_are_refused(tmp_path: Path, capsys: Any, data: bytes) -> None:
    from sfsample.cli import main

    path = tmp_path / "counts"
    path.write_bytes(data)
    assert main(["convert", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"sfsample: cannot read: {path}: ")


def test_files_that_add_up_to_more_than_63_bits_are_refused(tmp_path: Path, capsys: Any) -> None:
    from sfsample.cli import main

    path = tmp_path / "a.folded"
    path.write_bytes(b"a;b 9223372036854775807\n")
    assert main(["convert", str(path)]) == 0
    assert main(["convert", str(path), str(path)]) == 1
    assert "more than 2**63 - 1" in capsys.readouterr().err


def test_negative_ids_and_lines_of_pprof_are_unknown() -> None:
    from sfsample.report.formats import parse

    negative = (1 << 64) - 7
    labels = [message(3, integer(1, 4), integer(3, negative)), message(3, integer(1, 5), integer(3, 9))]
    line = message(4, integer(1, 1), message(4, integer(1, 1), integer(2, negative)))
    report = parse(pprof(line, sample(1, *labels), integer(12, negative), names=(b"f", b"pid", b"tid")))
    assert (report.threads[0].pid, report.threads[0].tid, report.rate_hz) == (None, 9, None)
    assert report.frames[0].line is None


# -- no profile at all


@pytest.mark.parametrize("data", [b"", b"\n\n", b"# only\n\n# comments\n", gzip.compress(b"", mtime=0)])
@pytest.mark.parametrize("command", ["convert", "diff"])
def test_empty_file_is_refused(tmp_path: Path, capsys: Any, data: bytes, command: str) -> None:
    from sfsample.cli import main

    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.write_bytes(data)
    other.write_bytes(FORMATS["json"].write(full()))
    assert main([command, str(other), str(empty)]) == 1
    assert capsys.readouterr().err.startswith(
        f"sfsample: cannot read: {empty}: no profile: the file is empty\n  "
    )


@pytest.mark.parametrize("words", [["convert"], ["diff", "/dev/null"], ["inspect"]])
def test_fifo_is_refused_at_once(tmp_path: Path, words: list[str]) -> None:
    import os

    path = tmp_path / "fifo"
    os.mkfifo(path)
    done = run(words[0], path, *words[1:])
    assert_refused(done, f"{path}: not a regular file")


def test_pipe_of_a_shell_is_read() -> None:
    for name in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "-"):
        done = run("convert", name, input=b"a;b 1\n")
        assert (done.stdout, done.stderr) == (b"a;b 1\n", b"")


# -- what is written


@pytest.mark.parametrize("format_name", FORMATS)
def test_any_format_of_many_deep_stacks_takes_little_memory(tmp_path: Path, format_name: str) -> None:
    """Nearly all callers differ: a tree of the stacks has 2 million nodes."""
    lines = [f"p;{';'.join(f'f{(number * 7 + at * at) % 1000}' for at in range(200))} 1\n"
             for number in range(10_000)]  # fmt: skip
    path = tmp_path / "deep.folded"
    path.write_text("".join(lines))
    done = run("convert", path, "-f", format_name, "-q", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out").stat().st_size > 1000


@pytest.mark.parametrize("format_name", FORMATS)
def test_long_name_in_many_stacks_is_written_or_refused(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "names.pb"
    path.write_bytes(pprof(location(1), sample(10_000) * 10, names=(b"f" * 5_000_000,)))
    done = run("convert", path, "-f", format_name, "-q", "-o", tmp_path / "out")
    if format_name == "folded":
        assert_refused(done, f"cannot write: {tmp_path}/out: too large for -f folded")
    else:
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.extended
def test_firefox_of_too_many_frames_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "frames.pb"
    path.write_bytes(pprof(location(1), sample(5_000_000)))
    assert_refused(run("convert", path, "-f", "firefox"), "cannot write: -: too large for -f firefox")
    assert run("convert", path, "-f", "html").returncode == 0
