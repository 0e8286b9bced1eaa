"""`sfsample record -- COMMAND` starts a program, records it, and terminates it after the recording."""

import os
import sys
from pathlib import Path

import pytest

from sfsample import api
from sfsample.cli.parse import parse
from sfsample.cli.record import targets
from sfsample.core.arch import AMD64
from sfsample.errors import NoSuchProcess
from tests.live.cli_runner import DURATIONS, parse_folded, sfsample
from tests.live.targets import ARCH, fixture

pytestmark = [pytest.mark.live, pytest.mark.any_load]


def test_program_is_recorded_to_its_end(tmp_path: Path) -> None:
    seconds = 1 if ARCH is AMD64 else 5  # under emulation, the first sample comes late
    done = sfsample("-o", tmp_path / "out", "-r", "200", "--", fixture("v3"), "exit", "1", str(seconds))
    assert done.code == 0
    assert done.out.startswith(b"ready "), "the program's own output stays where it was"
    stacks = parse_folded((tmp_path / "out").read_bytes())
    assert any(";main;exit_later" in stack for stack in stacks)


def test_output_of_program_goes_to_stderr_beside_a_result_on_stdout() -> None:
    done = sfsample("-q", "--", fixture("v3"), "exit", "1", "1")
    assert any(";main;exit_later" in stack for stack in done.stacks())
    assert done.err[0].startswith("ready ")


def test_program_keeps_its_own_dashes(tmp_path: Path) -> None:
    for seconds in DURATIONS:  # on a busy machine, the program may end before the first sample
        code = f"import sys, time; print(*sys.argv[1:], flush=True); time.sleep({seconds} / 2)"
        done = sfsample("-q", "-o", tmp_path / "out", "--", sys.executable, "-c", code, "--", "-p", "1", "--")
        if done.code == 0:
            break
    assert (done.code, done.out) == (0, b"-- -p 1 --\n")


def test_program_is_terminated_after_the_recording(tmp_path: Path) -> None:
    done = sfsample("-d", "1s", "-o", tmp_path / "out", "--", fixture("v3"), "leaf", "1")
    assert done.code == 0
    pid = int(done.out.split()[1])
    assert done.err[0] == f"sfsample: terminated {pid}, which this command started"
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
def test_program_that_cannot_be_started_is_an_error(words: list[str], what: str, tmp_path: Path) -> None:
    assert sfsample("-o", tmp_path / "out", "--", *words).refused(1).startswith(f"sfsample: {what}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "fate"), [("exit 7", "its exit code is 7"), ("kill -9 $$", "its exit code is 137")]
)
def test_program_that_ends_before_the_first_sample_is_an_error(code: str, fate: str) -> None:
    def run() -> None:
        with targets(parse(["-q", "--", "sh", "-c", code])) as pids:
            os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
            api.record(pids, 1)

    with pytest.raises(NoSuchProcess, match="ended before the first sample: sh") as caught:
        run()
    assert caught.value.help == (fate,)
