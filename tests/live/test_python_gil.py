"""--gil counts the samples of the thread that holds the GIL, and leaves out all others."""

import json
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import sfsample
from tests.live import pythons
from tests.live.cli_runner import in_this_process
from tests.live.pythons import PYTHONS
from tests.live.targets import wait_until
from tests.live.test_python_frames import recorded

pytestmark = [pytest.mark.live, pytest.mark.any_load]

_OWN_GILS = [
    python for python in PYTHONS if python.name != "python3.11"
]  # interpreters with GILs of their own


def running(python: Path, way: str) -> AbstractContextManager[tuple[int, list[int]]]:
    """Start a program; yield its pid, and the ids of the threads that hold a GIL whenever they run."""
    return pythons.running(python, "python_gil_ways.py", way)


def tids(profile: sfsample.Profile) -> set[int]:
    return {key.tid for key in profile.counts}


@pytest.mark.parametrize("mode", ["cpu", "wall"])
@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_only_the_thread_that_runs_python_is_counted(python, mode):
    with running(python, "burn") as (pid, [burner]):
        profile = recorded(pid, 30, mode=mode, gil=True)
        assert tids(profile) == {burner}
        # in wall mode the threads that hash or sleep are left out too, at each tick
        assert profile.stats.without_gil > (2 * 30 if mode == "wall" else 0)
        assert {burner} < tids(recorded(pid, 200, mode="wall"))
        assert profile.stats.threads == 1
        assert profile.stats.engine_why == "asked for"


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_thread_that_sleeps_in_c_with_the_gil_is_counted_in_wall_mode(python):
    with running(python, "sleep") as (pid, [holder]):
        wait_until(lambda: gil_of(pid, holder) == "holds", "the thread holds the GIL")
        profile = recorded(pid, 30, mode="wall", gil=True)
        assert tids(profile) == {holder}
        assert profile.stats.without_gil > 0


def gil_of(pid: int, tid: int) -> Any:
    [process] = json.loads(in_this_process("dump", pid, "--json").out)["processes"]
    [thread] = [thread for thread in process["threads"] if thread["tid"] == tid]
    return thread["gil"]


@pytest.mark.parametrize("python", _OWN_GILS, ids=str)
def test_two_interpreters_with_own_gils_have_two_holders(python):
    with running(python, "interpreters") as (pid, burners):
        wait_until(lambda: tids(recorded(pid, 30, mode="wall", gil=True)) == {*burners}, "both hold a GIL")


def test_program_without_python_has_no_sample_and_the_statistics_say_why():
    with subprocess.Popen(
        ["sh", "-c", "echo; read x; :"], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        options = sfsample.RecordOptions(gil=True, mode="wall")
        profile = sfsample.record(shell.pid, 0.1, options)
        assert not profile.stats.samples
        assert profile.stats.without_gil
        shell.kill()
