"""A signal or the end of the target ends `sfsample record`; the profile is written, the target unharmed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from sfsample import api
from sfsample.errors import NoSuchProcess
from sfsample.recording.stats import check_result
from tests.live.cli_runner import STOPPING, begun, ended, parse_folded, wait_until_sampled
from tests.live.targets import HANG_S, Target, fixture, running, started

pytestmark = [pytest.mark.live, pytest.mark.any_load]
LEAF = "main;outer;middle;leaf_spin"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_recording_and_profile_is_written(
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


def test_second_signal_aborts(tmp_path: Path) -> None:
    """The program ignores SIGTERM, so after the first Ctrl-C sfsample waits for its end."""
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
        child.send_signal(signal.SIGTERM)
        child.wait(HANG_S)
        error = child.stderr.read1().decode()  # type: ignore[union-attr]
        pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        programs = [pid for pid in pids if code.encode() in command_line(pid)]
        for pid in programs:
            os.kill(pid, signal.SIGKILL)
    assert child.returncode == 1
    assert error.endswith("sfsample: aborted\n")
    assert len(programs) == 1
    assert os.listdir(tmp_path) == ["out"], "what was collected was written before the wait"


def command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_two_signals_at_once_leave_target_unharmed(leaf: Target, tmp_path: Path) -> None:
    for _ in range(5):
        with begun(*STOPPING, "-p", leaf.pid, "-r", "1000", "-o", tmp_path / "out", "-q") as child:
            wait_until_sampled(leaf.pid)
            child.send_signal(signal.SIGINT)
            child.send_signal(signal.SIGTERM)
            done = ended(child)
        assert (done.code, done.err) in ((0, []), (1, ["sfsample: aborted"]))
        assert set(os.listdir(tmp_path)) <= {"out"}
        leaf.assert_unharmed()


def test_killed_sfsample_leaves_no_file(leaf: Target, tmp_path: Path) -> None:
    with begun(*STOPPING, "-p", leaf.pid, "-r", "1000", "-o", tmp_path / "out") as child:
        wait_until_sampled(leaf.pid)
        child.kill()
        child.wait(HANG_S)
    assert os.listdir(tmp_path) == []
    leaf.assert_unharmed()


def test_end_of_target_ends_recording(tmp_path: Path) -> None:
    with (
        running(fixture("v3"), "leaf", ends=True) as target,
        begun("-p", target.pid, "--mode", "wall", "-o", tmp_path / "out") as child,
    ):
        wait_until_sampled(target.pid)
        target.signal(signal.SIGKILL)
        assert ended(child).code == 0
    assert parse_folded((tmp_path / "out").read_bytes())


class KillingClock:
    """A clock that kills the target when it is first read, between the check and the first stop."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._time = 0.0

    def now(self) -> float:
        self._target.process.kill()
        self._target.process.wait(HANG_S)
        return self._time

    def sleep(self, seconds: float) -> None:
        self._time += seconds


def test_target_that_ends_before_the_first_stop_is_no_such_process() -> None:
    with started([str(fixture("v3")), "leaf", "{fd}"]) as target:
        target.await_ready()
        profile = api.record(target.pid, 1, clock=KillingClock(target))
    with pytest.raises(NoSuchProcess):
        check_result(profile.stats, [target.pid])
