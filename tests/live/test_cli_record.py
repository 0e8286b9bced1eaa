"""`sfsample record` as a script uses it: what is written where, and the exit code.

Law: stdout carries the result and nothing else; a file is complete or absent, with nothing left beside it;
the target runs on, traced by nobody.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfsample import api
from sfsample.cli import record
from sfsample.cli.parse import parse
from sfsample.cli.record import judge
from sfsample.core.arch import AMD64
from sfsample.core.snapshot import Capture
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.recording.stats import Stats
from tests.live.cli_runner import (
    COMMAND,
    DURATIONS,
    STOPPING,
    begun,
    ended,
    parse_folded,
    sampled,
    sfsample,
    wait_until_sampled,
)
from tests.live.targets import ARCH, HANG_S, Target, fixture, running, started

pytestmark = pytest.mark.live
LEAF = "main;outer;middle;leaf_spin"


@pytest.fixture(scope="module")
def leaf() -> Iterator[Target]:
    with running(fixture("v3"), "leaf") as target:
        yield target


@pytest.fixture(scope="module")
def sleeper() -> Iterator[Target]:
    with running(fixture("v3"), "sleep") as target:
        yield target


@pytest.fixture
def named(tmp_path: Path) -> Iterator[tuple[str, list[Target]]]:
    """Two processes of a name that nothing else has."""
    name = f"sfs{os.getpid()}x"
    shutil.copy(fixture("v3"), tmp_path / name)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    with running(tmp_path / name, "leaf") as one, running(tmp_path / name, "leaf", 7) as two:
        yield name, [one, two]


def test_folded_stacks_on_stdout_and_a_summary_on_stderr(leaf: Target) -> None:
    done = sampled("-p", leaf.pid)
    assert done.code == 0
    (stack,) = done.stacks()
    assert stack.startswith("target;")
    assert stack.endswith(LEAF)
    assert done.err[0].startswith("sfsample: ")
    assert all(line.startswith("  ") for line in done.err[1:])
    leaf.assert_unharmed()


def test_quiet_says_nothing(leaf: Target) -> None:
    done = sampled("-p", leaf.pid, "-q")
    assert (done.code, done.err) == (0, [])
    assert done.stacks()


def test_verbose_names_every_module(leaf: Target) -> None:
    text = "\n".join(sampled("-p", leaf.pid, "-v").err)
    assert str(fixture("v3")) in text
    assert "libc.so" in text


@pytest.mark.parametrize(
    "flags",
    [("--unwind", "eh_frame"), ("--unwind", "sframe,eh_frame"), ("--interval", "5ms"), ("-r", "200"),
     ("--mode", "wall"), ("-f", "folded"), ("--stack-bytes", "64K")],
)  # fmt: skip
def test_flags_that_do_not_change_the_stack(leaf: Target, flags: tuple[str, ...]) -> None:
    done = sampled("record", "-p", leaf.pid, *flags)
    assert done.code == 0
    assert all(stack.endswith(LEAF) and "truncated" not in stack for stack in done.stacks())
    assert done.stacks()


def test_threads_are_the_first_frame(leaf: Target) -> None:
    (stack,) = sampled("-p", leaf.pid, "-t").stacks()
    assert stack.startswith(f"target/{leaf.pid};")


def test_a_walk_that_is_cut_says_so_after_the_process(leaf: Target) -> None:
    (stack,) = sampled("-p", leaf.pid, "--max-frames", "2").stacks()
    assert stack == "target;[truncated: max_frames];middle;leaf_spin"


def test_several_processes(leaf: Target, sleeper: Target, tmp_path: Path) -> None:
    words = (
        "-p",
        f"{leaf.pid},{sleeper.pid}",
        "-p",
        leaf.pid,
        "--mode",
        "wall",
        "-t",
        "--stats",
        tmp_path / "s",
    )
    done = sampled(*words, enough=lambda done: len(done.stacks()) == 2)
    assert done.code == 0
    assert {stack.partition(";")[0] for stack in done.stacks()} == {
        f"target/{leaf.pid}",
        f"target/{sleeper.pid}",
    }
    ticks = json.loads((tmp_path / "s").read_text())["ticks"]
    assert max(done.stacks().values()) <= ticks, "a process that is named twice is sampled once"


def test_an_idle_target_is_a_result(sleeper: Target, tmp_path: Path) -> None:
    done = sampled("-p", sleeper.pid, "-o", tmp_path / "out", enough=lambda done: done.code == 0)
    assert (done.code, done.out) == (0, b"")
    assert (tmp_path / "out").read_bytes() == b""
    assert "no thread ran" in done.err[1]
    assert "--mode wall" in done.err[2]


# -- by name


def test_by_name(named: tuple[str, list[Target]]) -> None:
    name, (one, two) = named
    listing = sfsample("-n", name, "-d", "100ms").refused(2).splitlines()
    assert listing[0] == f"sfsample: 2 processes match: {name}"
    assert [int(line.split()[0]) for line in listing[-2:]] == sorted([one.pid, two.pid])
    both = sampled("-n", name, "--all", "-t", enough=lambda done: len(done.stacks()) == 2)
    roots = {s.partition(";")[0] for s in both.stacks()}
    assert roots == {f"{name}/{one.pid}", f"{name}/{two.pid}"}
    # a part of a command line finds the one that has it; the sampler's own command line does not count
    part = command_line(two.pid).decode().replace("\0", " ").rpartition("/")[2].strip()
    partial = sampled("-n", part, "-t")
    assert {s.partition(";")[0] for s in partial.stacks()} == {f"{name}/{two.pid}"}


def test_another_sampler_that_looks_for_the_same_words_is_not_the_target(tmp_path: Path) -> None:
    words = f"of-{os.getpid()}-and-nobody-else"
    out = tmp_path / "out"
    with (
        running(fixture("v3"), "leaf", words) as target,
        begun(*STOPPING, "-n", words, "-o", out, "-r", "5") as other,
    ):
        wait_until_sampled(target.pid)
        done = sampled("-n", words, "-q")
        assert done.code == 0, done.err
        other.send_signal(signal.SIGTERM)
        assert ended(other).code == 0


# -- where it goes


def test_a_file_and_statistics(leaf: Target, tmp_path: Path) -> None:
    out = tmp_path / "o"
    words = (*STOPPING, "-p", leaf.pid, "-r", "200", "-o", out, "--stats", tmp_path / "s")
    done = sampled(*words, enough=lambda _: out.exists() and out.stat().st_size)
    assert (done.code, done.out) == (0, b"")
    assert sum(parse_folded(out.read_bytes()).values()) > 0
    assert sorted(os.listdir(tmp_path)) == ["o", "s"]
    check_stats(json.loads((tmp_path / "s").read_text()), rate=200)


def test_statistics_on_stderr(leaf: Target) -> None:
    done = sampled(*STOPPING, "-p", leaf.pid, "--stats", "-", "-q")
    (line,) = done.err
    check_stats(json.loads(line), rate=99)
    assert done.stacks()


KEYS = {
    "schema": str, "duration_s": float, "rate_hz": float, "ticks": int, "late_ticks": int, "samples": int,
    "captures": dict, "stop_ns": dict, "stacks": dict, "frames": dict, "eintr_prone_stops": int,
    "threads": int, "modules": int, "modules_with_sframe": int, "sampler_cpu_s": float,
    "sampler_max_rss_bytes": int, "problems": list,
}  # fmt: skip


def check_stats(stats: dict[str, object], rate: float) -> None:
    """The keys and types of the contract, and numbers that agree with each other."""
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
    duration = stats["ticks"] / rate  # type: ignore[operator]
    assert stats["rate_hz"] == rate
    assert duration in DURATIONS
    assert duration <= stats["duration_s"] < duration + HANG_S  # type: ignore[operator]
    assert stats["late_ticks"] <= stats["ticks"]  # type: ignore[operator]
    samples = stats["samples"]
    assert samples == sum(stacks.values()) == stacks["outermost"] == frames["context"]
    assert 0 < samples <= captures["stopped"] <= stops["count"]
    assert 0 < stops["p50"] <= stops["p90"] <= stops["p99"] <= stops["max"] <= stops["total"]
    assert (stats["threads"], stats["modules_with_sframe"]) == (1, 1)
    assert stats["modules"] >= 2  # type: ignore[operator]
    assert 0 < stats["sampler_cpu_s"] < HANG_S  # type: ignore[operator]
    assert 1 << 20 < stats["sampler_max_rss_bytes"] < 1 << 30  # type: ignore[operator]


def test_one_file_cannot_take_both(leaf: Target, tmp_path: Path) -> None:
    refused = sfsample(
        "-p", leaf.pid, "-d", "100ms", "-o", tmp_path / "x", "--stats", f"{tmp_path}/./x"
    ).refused(2)
    assert "same file" in refused
    assert os.listdir(tmp_path) == []
    both = ("-p", leaf.pid, "-o", "/dev/null", "--stats", "/dev/null")
    assert sampled(*both, enough=lambda done: done.code == 0).code == 0


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_is_open_already_is_written_to_where_it_stands(leaf: Target, tmp_path: Path, path: str) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("ab") as file:
        done = sfsample("inspect", "-p", leaf.pid, "-o", path, stdout=file)
    assert (done.code, log.read_text().splitlines()[0]) == (0, "before")
    assert len(log.read_text().splitlines()) > 1
    assert "Bad file descriptor" in sfsample("-p", leaf.pid, "-o", "/dev/fd/99").refused(1)


def test_statistics_that_cannot_be_written_cost_no_profile(leaf: Target, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("-p", leaf.pid, "-o", out, "--stats", "/dev/full")
    done = sampled(*words, enough=lambda _: not out.exists() or out.stat().st_size)
    assert done.refused(1).startswith("sfsample: cannot write: /dev/full: No space left on device\n  ")
    assert parse_folded(out.read_bytes())


def test_a_fifo_is_written_to(leaf: Target, tmp_path: Path) -> None:
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


def test_a_reader_that_goes_away(leaf: Target) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = sampled("-p", leaf.pid, "--mode", "wall", stdout=writer, enough=lambda done: not done.err)
    os.close(writer)
    assert (done.code, done.err) == (1, [])
    leaf.assert_unharmed()


def test_a_full_or_closed_stdout(leaf: Target) -> None:
    problem = "sfsample: cannot write: standard output: No space left on device"
    with open("/dev/full", "wb") as full:
        done = sampled("-p", leaf.pid, stdout=full, enough=lambda done: problem in done.err[0])
    assert done.refused(1).startswith(problem)
    closed = sfsample("-p", leaf.pid, wrapper=["/bin/sh", "-c", 'exec "$@" >&-', "sh"])
    assert closed.refused(1).startswith("sfsample: cannot write: standard output: Bad file descriptor")


def test_a_stderr_that_has_gone_costs_nothing(leaf: Target, tmp_path: Path) -> None:
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


# -- ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_result_is_written(
    leaf: Target, tmp_path: Path, number: signal.Signals
) -> None:
    with begun(*STOPPING, "-p", leaf.pid, "-o", tmp_path / "out", "-q") as child:
        wait_until_sampled(leaf.pid)
        assert os.listdir(tmp_path) == []
        child.send_signal(number)
        done = ended(child)
    assert (done.code, done.out, done.err) == (0, b"", [])
    assert os.listdir(tmp_path) == ["out"]
    assert all(stack.endswith(LEAF) for stack in parse_folded((tmp_path / "out").read_bytes()))
    leaf.assert_unharmed()


def test_a_second_ctrl_c_breaks_off(tmp_path: Path) -> None:
    """The program ignores SIGTERM, so the first Ctrl-C leaves the sampler waiting for it."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'no\\n'))\n"
        "os.write(1, b'yes\\n')\n"
        f"while True: signal.pause()  # {tmp_path}"
    )
    with begun("-o", tmp_path / "out", "--mode", "wall", "--", sys.executable, "-c", code) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"yes\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == b"no\n"
        child.send_signal(signal.SIGINT)
        child.wait(HANG_S)
        error = child.stderr.read1().decode()  # type: ignore[union-attr]
        pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        ours = [pid for pid in pids if code.encode() in command_line(pid)]
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
    assert child.returncode == 1
    assert error.endswith("sfsample: aborted\n")
    assert len(ours) == 1
    assert os.listdir(tmp_path) == ["out"], "what was collected was written before the wait"


def command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_two_signals_at_once_leave_the_target_unharmed(leaf: Target, tmp_path: Path) -> None:
    for _ in range(5):
        with begun(*STOPPING, "-p", leaf.pid, "-r", "1000", "-o", tmp_path / "out", "-q") as child:
            wait_until_sampled(leaf.pid)
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGINT)
            done = ended(child)
        assert (done.code, done.err) in ((0, []), (1, ["sfsample: aborted"]))
        assert set(os.listdir(tmp_path)) <= {"out"}
        leaf.assert_unharmed()


def test_killed_it_leaves_nothing(leaf: Target, tmp_path: Path) -> None:
    with begun(*STOPPING, "-p", leaf.pid, "-r", "1000", "-o", tmp_path / "out") as child:
        wait_until_sampled(leaf.pid)
        child.kill()
        child.wait(HANG_S)
    assert os.listdir(tmp_path) == []
    leaf.assert_unharmed()


def test_the_target_s_end_ends_it(tmp_path: Path) -> None:
    with (
        running(fixture("v3"), "leaf", ends=True) as target,
        begun("-p", target.pid, "--mode", "wall", "-o", tmp_path / "out") as child,
    ):
        wait_until_sampled(target.pid)
        target.signal(signal.SIGKILL)
        assert ended(child).code == 0
    assert parse_folded((tmp_path / "out").read_bytes())


# -- programs of our own


def test_a_program_is_recorded_to_its_end(tmp_path: Path) -> None:
    seconds = 1 if ARCH is AMD64 else 5  # where all is emulated, the first look comes late
    done = sfsample("-o", tmp_path / "out", "-r", "200", "--", fixture("v3"), "exit", "1", str(seconds))
    assert done.code == 0
    assert done.out.startswith(b"ready "), "the program's own output stays where it was"
    stacks = parse_folded((tmp_path / "out").read_bytes())
    assert any(";main;exit_later" in stack for stack in stacks)


def test_a_program_s_output_does_not_mix_with_the_result() -> None:
    done = sfsample("-q", "--", fixture("v3"), "exit", "1", "1")
    assert any(";main;exit_later" in stack for stack in done.stacks())
    assert done.err[0].startswith("ready ")


def test_a_program_keeps_its_own_dashes(tmp_path: Path) -> None:
    for seconds in DURATIONS:  # when busy, it may be over before the first sample
        code = f"import sys, time; print(*sys.argv[1:], flush=True); time.sleep({seconds} / 2)"
        done = sfsample("-q", "-o", tmp_path / "out", "--", sys.executable, "-c", code, "--", "-p", "1", "--")
        if done.code == 0:
            break
    assert (done.code, done.out) == (0, b"-- -p 1 --\n")


def test_a_program_is_ended_with_the_recording(tmp_path: Path) -> None:
    done = sfsample("-d", "1s", "-o", tmp_path / "out", "--", fixture("v3"), "leaf", "1")
    assert done.code == 0
    pid = int(done.out.split()[1])
    assert done.err[0] == f"sfsample: terminated {pid}, which this command had started"
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["/no/such/program"], "cannot start: /no/such/program: No such file or directory"),
        (["no-such-program-at-all"], "cannot start: no-such-program-at-all: No such file or directory"),
        (["/etc/passwd"], "cannot start: /etc/passwd: Permission denied"),
        (["/etc"], "cannot start: /etc: Permission denied"),
        ([""], "cannot start: '': "),
    ],
)
def test_a_program_that_cannot_be_started(words: list[str], what: str, tmp_path: Path) -> None:
    assert sfsample("-o", tmp_path / "out", "--", *words).refused(1).startswith(f"sfsample: {what}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "fate"), [("exit 7", "its exit status is 7"), ("kill -9 $$", "signal 9 killed it")]
)
def test_a_program_that_ends_before_the_first_sample(code: str, fate: str) -> None:
    def run() -> None:
        with record._target(parse(["-q", "--", "sh", "-c", code])) as pids:
            os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
            api.record(pids, 1)

    with pytest.raises(NoSuchProcess, match="ended before the first sample: sh") as caught:
        run()
    assert caught.value.help == (fate,)


# -- judging


def stats(**values: object) -> Stats:
    made = Stats(99)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_what_is_a_result() -> None:
    judge(stats(samples=1, ended_by="target"), [1])
    judge(stats(ticks=10, ended_by="duration"), [1])
    judge(stats(ticks=0, ended_by="signal"), [1])
    judge(stats(ticks=5, ended_by="target"), [1])


def test_what_is_no_result() -> None:
    with pytest.raises(NoSuchProcess, match="ended before the first sample: 1, 2"):
        judge(stats(ticks=1, ended_by="target"), [1, 2])
    with pytest.raises(SfsampleError, match="every tick"):
        judge(stats(ticks=5, late_ticks=5, ended_by="duration"), [1])
    failed = stats(ticks=5, ended_by="duration")
    failed.captures[Capture.FAILED] = 5
    failed.problems["not captured: asleep"] = 5
    with pytest.raises(SfsampleError, match="every capture of 1 failed") as caught:
        judge(failed, [1])
    assert caught.value.help == ("not captured: asleep",)


class Killer:
    """A clock that ends the target when it is first asked, between the check and the first stop."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._time = 0.0

    def now(self) -> float:
        self._target.process.kill()
        self._target.process.wait(HANG_S)
        return self._time

    def sleep(self, seconds: float) -> None:
        self._time += seconds


def test_a_target_that_ends_between_check_and_first_stop() -> None:
    with started([str(fixture("v3")), "leaf", "{fd}"]) as target:
        target.await_ready()
        profile = api.record(target.pid, 1, clock=Killer(target))
    with pytest.raises(NoSuchProcess):
        judge(profile.stats, [target.pid])


def test_progress_only_on_a_terminal(leaf: Target) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*COMMAND, "-p", str(leaf.pid), "-d", "1s"], stdout=subprocess.DEVNULL, stderr=theirs
    ) as child:
        os.close(theirs)
        assert child.wait(HANG_S) == 0
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    start, _, line = shown.partition("\r\n")
    assert start == f"sfsample: recording {leaf.pid}; Ctrl-C ends it"
    assert re.match(r"\r\x1b\[Ksfsample: 0 of 1 s, \d+ samples, .*sampler [\d.]+ %", line)
    assert re.search(r"\r\x1b\[Ksfsample: \d+ samples? of 1 thread in ", line)  # and away again
