"""Where `sfsample record` writes the profile and the statistics, and what a destination that fails costs."""

import json
import os
import signal
import threading
from math import ceil
from pathlib import Path

import pytest

from tests.live.cli_runner import (
    DURATIONS,
    STOPPING,
    begun,
    ended,
    parse_folded,
    sampled,
    sfsample,
    wait_until_sampled,
)
from tests.live.targets import HANG_S, Target

pytestmark = [pytest.mark.live, pytest.mark.any_load]
KEYS = {
    "schema": str, "duration_s": float, "rate_hz": float, "ticks": int, "late_ticks": int, "samples": int,
    "captures": dict, "stop_ns": dict, "stacks": dict, "frames": dict, "eintr_prone_stops": int,
    "threads": int, "modules": int, "modules_with_sframe": int, "sampler_cpu_s": float,
    "sampler_max_rss_bytes": int, "problems": list,
}  # fmt: skip


def test_profile_and_statistics_are_written_to_files(leaf: Target, tmp_path: Path) -> None:
    out = tmp_path / "o"
    words = (*STOPPING, "-p", leaf.pid, "-r", "200", "-o", out, "--stats", tmp_path / "s")
    done = sampled(*words, enough=lambda _: out.exists() and out.stat().st_size)
    assert (done.code, done.out) == (0, b"")
    assert sum(parse_folded(out.read_bytes()).values()) > 0
    assert sorted(os.listdir(tmp_path)) == ["o", "s"]
    check_stats(json.loads((tmp_path / "s").read_text()), rate=200)


def test_statistics_are_written_to_stderr(leaf: Target) -> None:
    done = sampled(*STOPPING, "-p", leaf.pid, "--stats", "-", "-q")
    (line,) = done.err
    check_stats(json.loads(line), rate=99)
    assert done.stacks()


def check_stats(stats: dict[str, object], rate: float) -> None:
    """Check the keys and types of the contract, and that the numbers agree with each other."""
    assert stats.keys() >= KEYS.keys()
    assert all(isinstance(stats[key], kind) for key, kind in KEYS.items())
    captures, stops, stacks, frames = (stats[key] for key in ("captures", "stop_ns", "stacks", "frames"))
    assert isinstance(captures, dict)
    assert isinstance(stops, dict)
    assert isinstance(stacks, dict)
    assert isinstance(frames, dict)
    assert set(captures) == {"stopped", "read", "reused", "failed"}
    held = stats["held_ns"]
    assert isinstance(held, dict)
    assert set(stops) == set(held) == {"count", "p50", "p90", "p99", "max", "total"}
    assert (held["count"], held["max"] <= stops["max"]) == (stops["count"], True)
    assert {"outermost", "max_frames"} <= set(stacks)
    assert {"context", "sframe", "eh_frame"} <= set(frames)
    assert stats["schema"] == "sfsample.stats/1"
    assert stats["rate_hz"] == rate
    [seconds] = [seconds for seconds in DURATIONS if ceil(seconds * rate) == stats["ticks"]]
    assert seconds <= stats["duration_s"] < seconds + HANG_S  # type: ignore[operator]
    assert stats["late_ticks"] <= stats["ticks"]  # type: ignore[operator]
    samples = stats["samples"]
    assert samples == sum(stacks.values()) == stacks["outermost"] == frames["context"]
    assert 0 < samples <= captures["stopped"] <= stops["count"]
    assert 0 < stops["p50"] <= stops["p90"] <= stops["p99"] <= stops["max"] <= stops["total"]
    assert (stats["threads"], stats["modules_with_sframe"]) == (1, 1)
    assert stats["modules"] >= 2  # type: ignore[operator]
    assert 0 < stats["sampler_cpu_s"] < HANG_S  # type: ignore[operator]
    assert 1 << 20 < stats["sampler_max_rss_bytes"] < 1 << 30  # type: ignore[operator]


def test_profile_and_statistics_cannot_share_a_file(leaf: Target, tmp_path: Path) -> None:
    refused = sfsample(
        "-p", leaf.pid, "-d", "100ms", "-o", tmp_path / "x", "--stats", f"{tmp_path}/./x"
    ).refused(2)
    assert "same file" in refused
    assert os.listdir(tmp_path) == []
    both = ("-p", leaf.pid, "-o", "/dev/null", "--stats", "/dev/null")
    assert sampled(*both, enough=lambda done: done.code == 0).code == 0


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_open_descriptor_is_written_at_its_offset(leaf: Target, tmp_path: Path, path: str) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("ab") as file:
        done = sfsample("inspect", "-p", leaf.pid, "-o", path, stdout=file)
    assert (done.code, log.read_text().splitlines()[0]) == (0, "before")
    assert len(log.read_text().splitlines()) > 1
    assert "Bad file descriptor" in sfsample("-p", leaf.pid, "-o", "/dev/fd/99").refused(1)


def test_unwritable_statistics_do_not_cost_the_profile(leaf: Target, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("-p", leaf.pid, "-o", out, "--stats", "/dev/full")
    done = sampled(*words, enough=lambda _: not out.exists() or out.stat().st_size)
    assert done.refused(1).startswith("sfsample: cannot write: /dev/full: No space left on device\n  ")
    assert parse_folded(out.read_bytes())


def test_fifo_is_written(leaf: Target, tmp_path: Path) -> None:
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    with begun("-p", leaf.pid, "-o", fifo, "--mode", "wall") as child:
        wait_until_sampled(leaf.pid)
        child.send_signal(signal.SIGTERM)
        assert ended(child).code == 0
    reader.join(HANG_S)
    assert parse_folded(read[0])


def test_closed_pipe_makes_no_message(leaf: Target) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = sampled("-p", leaf.pid, "--mode", "wall", stdout=writer, enough=lambda done: not done.err)
    os.close(writer)
    assert (done.code, done.err) == (1, [])
    leaf.assert_unharmed()


def test_full_or_closed_stdout_is_an_error(leaf: Target) -> None:
    problem = "sfsample: cannot write: standard output: No space left on device"
    with open("/dev/full", "wb") as full:
        done = sampled("-p", leaf.pid, stdout=full, enough=lambda done: problem in done.err[0])
    assert done.refused(1).startswith(problem)
    closed = sfsample("-p", leaf.pid, wrapper=["/bin/sh", "-c", 'exec "$@" >&-', "sh"])
    assert closed.refused(1).startswith("sfsample: cannot write: standard output: Bad file descriptor")


def test_broken_or_closed_stderr_does_not_cost_the_profile(leaf: Target, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = tmp_path / "out"
    words = ("-p", leaf.pid, "-o", out, "--stats", "-")
    done = sampled(*words, stderr=writer, enough=lambda _: out.exists() and out.stat().st_size)
    os.close(writer)
    assert done.code == 0
    assert parse_folded(out.read_bytes())
    closed = sampled("-p", leaf.pid, wrapper=["/bin/sh", "-c", 'exec "$@" 2>&-', "sh"])
    assert closed.code == 0
    assert closed.stacks()
