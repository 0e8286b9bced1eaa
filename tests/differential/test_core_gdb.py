"""Stacks of core files of gcore are those of gdb, thread by thread and frame by frame."""

import shutil
import subprocess

import pytest

from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.dumping.core import dump_core
from tests.live.targets import fixture, running
from tests.process.test_core_process import dump_stacks, gdb_stacks

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(shutil.which("gcore") is None, reason="gdb, which makes core files, is not installed"),
]


def gdb(*words: str) -> str:
    """Run gdb without debug files; with them it shows inlined functions as frames."""
    command = ["gdb", "-nx", "-batch", "-iex", "set debug-file-directory /nonexistent", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("scenario", ["threads", "deep", "frame", "signal", "nested-signal", "sleep"])
@pytest.mark.parametrize("binary", ["target", "target-nopie"])
def test_stacks_of_a_gcore_file(binary, scenario, tmp_path):
    program = fixture("v3", binary)
    with running(program, scenario) as target:
        subprocess.run(["gcore", "-o", tmp_path / "core", str(target.pid)], check=True, capture_output=True,
                       timeout=120)  # fmt: skip
    core = str(tmp_path / f"core.{target.pid}")
    dump = dump_core(core)
    by_gdb = gdb_stacks(gdb("-ex", "set backtrace past-main", "-ex", "set backtrace past-entry",
                            "-ex", "thread apply all bt", str(program), core))  # fmt: skip

    assert dump.problems == ()
    assert dump.pid == target.pid
    assert {(t.capture, t.stack.stop_reason) for t in dump.threads} == {(Capture.CORE, StopReason.OUTERMOST)}
    assert dump_stacks(dump) == by_gdb
